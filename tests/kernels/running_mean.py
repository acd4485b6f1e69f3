"""The cumulative mean with its gradient as one Triton kernel: the example of docs/your-kernel.md."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from seq2seq.kernels.dispatch import is_plain, require_backend, takes_triton
from seq2seq.kernels.precision import at_least_float32
from seq2seq.mixers.average import Average, running_mean  # the mixer and the reference
from seq2seq.network.mixer import real_positions

OP = "running mean"


def mean(x: Tensor, mask: Tensor, backend: str = "auto") -> Tensor:
    """Compute y_t = mean_{s <= t} x_s over real positions, of x (B, T, D) with mask (B, T)."""
    if is_plain(OP, backend, x):  # an eager call on a CPU: torch's own operations and gradients
        return running_mean(x, mask, causal=True)
    return mean_forward(x, mask, backend)


@triton.jit(do_not_specialize=("length",))
def mean_kernel(x, mask, y, length, width, TILE: tl.constexpr, COLUMNS: tl.constexpr, BACKWARD: tl.constexpr):
    """Write the mean of x (B, T, D) up to each position; if BACKWARD, x is dy, and y becomes dx."""
    sentence = tl.program_id(0).to(tl.int64)  # 64 bits: offsets may pass 2^31
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((COLUMNS,), tl.float32)
    for first in range(0, length, TILE):
        t = first + tl.arange(0, TILE)
        t = length - 1 - t if BACKWARD else t  # from the end
        within = (t >= 0) & (t < length)
        real = tl.load(mask + sentence * length + t, mask=within, other=0)[:, None] != 0  # (TILE, 1)
        inside = within[:, None] & (column < width)[None, :]  # (TILE, COLUMNS)
        at = (sentence * length + t)[:, None] * width + column[None, :]
        count = tl.maximum(t + 1, 1)[:, None].to(tl.float32)
        # Padding is not read: NaN times 0 would be NaN
        values = tl.load(x + at, mask=inside if BACKWARD else inside & real, other=0.0).to(tl.float32)
        values = values / count if BACKWARD else values
        sums = total[None, :] + tl.cumsum(values, 0)
        total += tl.sum(values, 0)
        sums = tl.where(real, sums, 0.0) if BACKWARD else sums / count
        tl.store(y + at, sums.to(y.dtype.element_ty), mask=inside)


def launch(x: Tensor, mask: Tensor, *, backward: bool) -> Tensor:
    """Run the kernel: a program for each sentence and 64 channels."""
    batch, length, width = x.shape
    y = torch.empty((batch, length, width), dtype=x.dtype, device=x.device)
    grid = (batch, triton.cdiv(width, 64))
    with torch.cuda.device_of(x):
        mean_kernel[grid](x.contiguous(), mask.contiguous(), y, length, width, TILE=16, COLUMNS=64, BACKWARD=backward)
    return y


@torch.library.custom_op("mypackage::mean", mutates_args=())
def mean_forward(x: Tensor, mask: Tensor, backend: str) -> Tensor:
    """Choose the kernel or its twin when the call runs."""
    if takes_triton(OP, backend, x):
        return launch(x, mask, backward=False)
    return running_mean(x, mask, causal=True).contiguous()


@torch.library.custom_op("mypackage::mean_backward", mutates_args=())
def mean_backward(dy: Tensor, mask: Tensor, backend: str) -> Tensor:
    """Compute dx_s = sum_{t >= s} dy_t / t at real positions, 0 elsewhere."""
    if takes_triton(OP, backend, dy):
        return launch(dy, mask, backward=True)
    share = dy.to(at_least_float32(dy.dtype)) / torch.arange(1, dy.shape[1] + 1, device=dy.device)[:, None]
    dx = share.flip(1).cumsum(1).flip(1).masked_fill(~mask[:, :, None], 0.0)
    return dx.to(dy.dtype).contiguous()


@mean_forward.register_fake
def _(x: Tensor, mask: Tensor, backend: str) -> Tensor:
    return x.new_empty(x.shape)  # shape, type and strides of y, without data


@mean_backward.register_fake
def _(dy: Tensor, mask: Tensor, backend: str) -> Tensor:
    return dy.new_empty(dy.shape)


def save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    """Keep what the backward pass needs."""
    _, mask, ctx.backend = inputs
    ctx.save_for_backward(mask)


def differentiate(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    """Return the gradient of x; mask and backend have no gradient."""
    return mean_backward(dy, *ctx.saved_tensors, ctx.backend), None, None


mean_forward.register_autograd(differentiate, setup_context=save)


class FastAverage(Average):
    """`Average` with the kernel for its causal form; the other form is one mean for all positions."""

    def __init__(self, *, dim: int, causal: bool, backend: str = "auto") -> None:
        super().__init__(dim=dim, causal=causal)
        self.backend = require_backend(backend)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Average x (B, T, D) over real positions."""
        mask = real_positions(x, mask)
        y = mean(x, mask, self.backend) if self.causal else running_mean(x, mask, causal=False)
        return self.out(y)
