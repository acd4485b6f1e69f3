"""A decoding step of the convolutions on a GPU: one program per hypothesis and head reads K rows of the cache."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from seq2seq.kernels import launch_config
from seq2seq.kernels.triton_ops import LOG2E, unit_stride


@triton.jit
def conv_step_kernel(
    values, owner, position, weights, y,
    beam, heads, taps, slots, owners,
    value_batch, value_head, value_slot, value_row, owner_row, weight_row, weight_head,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, TAPS: tl.constexpr, SOFTMAX: tl.constexpr,
):  # fmt: skip
    """Compute sum_k w_k v_{position+k-K+1} for one hypothesis and head; TAPS is K rounded up to a power of two."""
    # 64 bits: offsets in the cache may exceed 2^31
    head, hypothesis = tl.program_id(0) % heads, (tl.program_id(0) // heads).to(tl.int64)
    k, column = tl.arange(0, TAPS), tl.arange(0, COLUMNS)  # (TAPS,), (COLUMNS,)
    # (TAPS,): the position that tap k reads
    time = tl.load(position + hypothesis).to(tl.int32) + k - (taps - 1)
    outside = float("-inf") if SOFTMAX else 0.0  # taps from K on have weight 0
    # The head's weights, (TAPS,), normalized here if they are logits
    at = weights + hypothesis * weight_row + head * weight_head + k
    weight = tl.load(at, mask=k < taps, other=outside).to(tl.float32)
    if SOFTMAX:
        weight = tl.exp2((weight - tl.max(weight, 0)) * LOG2E)
        weight = weight / tl.sum(weight, 0)
    # The slot of `time` in the hypothesis's sentence, in the beam row that wrote it: nothing is reordered
    real = (time >= 0) & (k < taps)
    row = tl.load(owner + hypothesis * owner_row + time % owners, mask=real, other=0).to(tl.int64)
    row = hypothesis // beam * value_batch + time % slots * value_slot + row * value_row + head * value_head
    mask = real[:, None] & (column < WIDTH)[None, :]  # (TAPS, COLUMNS)
    rows = tl.load(values + row[:, None] + column[None, :], mask=mask, other=0.0).to(tl.float32)
    mixed = tl.sum(weight[:, None] * rows, 0)  # (COLUMNS,)
    tl.store(y + (hypothesis * heads + head) * WIDTH + column, mixed.to(y.dtype.element_ty), mask=column < WIDTH)


def conv_step(values: Tensor, owner: Tensor, position: Tensor, weights: Tensor, softmax: bool) -> Tensor:
    """Compute y (N, H R) from values (B, H, L, beam, R), owner (N, M), position (N,) and weights (N or 1, H, K)."""
    values, owner, weights, position = map(unit_stride, (values, owner, weights, position))
    rows, heads, taps = owner.shape[0], *weights.shape[1:]  # N, H, K
    _, _, slots, beam, width = values.shape
    y = torch.empty((rows, heads * width), dtype=values.dtype, device=values.device)
    sizes = (beam, heads, taps, slots, owner.shape[1])
    weight_row = weights.stride(0) if weights.shape[0] == rows else 0  # stride 0: one kernel for all hypotheses
    strides = (*values.stride()[:4], owner.stride(0), weight_row, weights.stride(1))
    with torch.cuda.device_of(values):
        conv_step_kernel[(rows * heads,)](
            values, owner, position, weights, y, *sizes, *strides, **constants(taps, width, softmax)
        )
    return y


@launch_config.remembered
def constants(taps: int, head_dim: int, softmax: bool) -> dict[str, int | bool]:
    """Return the kernel's compile-time constants and launch settings."""
    columns, rows = launch_config.columns(head_dim), triton.next_power_of_2(taps)
    values: dict[str, int | bool] = {"WIDTH": head_dim, "COLUMNS": columns, "TAPS": rows, "SOFTMAX": softmax}
    # A warp for each 1024 numbers of the (TAPS, COLUMNS) tile: 32 per thread
    return values | {"num_warps": max(1, min(8, columns * rows // 1024)), "num_stages": 1}
