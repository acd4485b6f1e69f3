"""Cross entropy of rows of logits on a GPU: one program per row, online softmax, gradient in the logits' memory."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from seq2seq.kernels.triton_ops import LOG2E, log2

# Logits that a thread takes at a time: one 16-byte load of a two-byte type. More would only take registers.
EACH = 8
# Maximum bytes of a row, and the warps of its program. A multiprocessor runs 48 warps at once, so the rows that wait
# for their second reading take 13 of the 50 MB of an H100's cache at 16 KB a row, 26 MB at 64 KB, and 17 MB at 128 KB.
_WARPS = ((16 << 10, 8), (64 << 10, 16))
# Less than any logit; finite, so that a difference from it is never NaN.
_LOWEST = tl.constexpr(-1e38)


@triton.jit(do_not_specialize=("rows",))
def cross_entropy_kernel(
    logits, labels, mask, costs,
    rows, vocab, row_stride, at_label,
    BLOCK: tl.constexpr, GRADIENT: tl.constexpr,
):  # fmt: skip
    """Write -log p_y and -mean log p of a row to costs (2, rows), and its gradient over its logits.

    In each lane, the first loop keeps the highest logit so far and the sum of exp(z - highest). The second loop reads
    the row again from the L2 cache, which holds the rows of all running programs.
    """
    row = tl.program_id(0).to(tl.int64)
    base = logits + row * row_stride
    lane = tl.arange(0, BLOCK)
    real = tl.load(mask + row) != 0
    label = tl.load(labels + row).to(tl.int32)
    # Padding reads nothing: its bound is 0
    bound = tl.where(real, vocab, 0)
    # All numbers are relative to a logit, so that logits far from zero lose no precision.
    own = tl.load(base + label, mask=real, other=0.0).to(tl.float32)
    highest = tl.full((BLOCK,), _LOWEST, tl.float32)
    weight = tl.zeros((BLOCK,), tl.float32)  # sum of exp(z - highest) of each lane
    total = tl.zeros((BLOCK,), tl.float32)  # sum of z - own
    for start in range(0, bound, BLOCK):
        inside = start + lane < bound
        z = tl.load(base + start + lane, mask=inside, other=float("-inf")).to(tl.float32)
        # One of the two powers in weight * exp(old - new) + exp(z - new) is 1
        power = tl.exp2(tl.abs(z - highest) * -LOG2E)
        weight = tl.where(z > highest, weight * power + 1.0, weight + power)
        highest = tl.maximum(highest, z)
        total += tl.where(inside, z - own, 0.0)
    top = tl.max(highest, 0)
    bits = log2(tl.sum(weight * tl.exp2((highest - top) * LOG2E), 0))  # log2 of the sum of exp(z - top)
    nll = bits / LOG2E + (top - own)
    tl.store(costs + row, tl.where(real, nll, 0.0))
    tl.store(costs + rows + row, tl.where(real, nll - tl.sum(total, 0) / vocab, 0.0))
    if GRADIENT:
        for start in range(0, vocab, BLOCK):
            column = start + lane
            z = tl.load(base + column, mask=column < bound, other=float("-inf")).to(tl.float32)
            gradient = tl.exp2((z - top) * LOG2E - bits) - tl.where(column == label, at_label, 0.0)
            gradient = tl.where(real, gradient, 0.0)
            tl.store(base + column, gradient.to(logits.dtype.element_ty), mask=column < vocab)


def cross_entropy(logits: Tensor, labels: Tensor, mask: Tensor, *, at_label: float, gradient: bool) -> Tensor:
    """Compute costs (2, n) of logits (n, V); if `gradient`, overwrite the logits with p - at_label * onehot."""
    rows, vocab = logits.shape
    costs = torch.empty(2, rows, dtype=torch.float32, device=logits.device)
    if not rows:
        return costs
    with torch.cuda.device_of(logits):
        cross_entropy_kernel[(rows,)](
            logits, labels, mask, costs, rows, vocab, logits.stride(0), at_label,
            **constants(vocab, logits.dtype, gradient),
        )  # fmt: skip
    return costs


def constants(vocab: int, dtype: torch.dtype, gradient: bool) -> dict[str, int | bool]:
    """Return the constants that the kernel is compiled for, launch settings included."""
    row = vocab * dtype.itemsize
    warps = next((warps for most, warps in _WARPS if row <= most), 32)
    return {"BLOCK": EACH * 32 * warps, "GRADIENT": gradient, "num_warps": warps, "num_stages": 1}
