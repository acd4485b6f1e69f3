"""The cumulative mean with its gradient as one Triton kernel: the example of docs/your-kernel.md."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from seq2seq.kernels.dispatch import require_backend, takes_triton
from seq2seq.mixers.average import Average, running_mean  # the mixer and the reference
from seq2seq.network.mixer import real_positions

OP = "running mean"


def mean(x: Tensor, mask: Tensor, backend: str = "auto") -> Tensor:
    """Compute y_t = mean_{s <= t} x_s over real positions, of x (B, T, D) with mask (B, T)."""
    if not takes_triton(OP, backend, x):
        return running_mean(x, mask, causal=True)  # torch differentiates it
    y: Any = _Mean.apply(x, mask)
    return y


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


class _Mean(torch.autograd.Function):
    """The kernel and its gradient, dx_s = sum_{t >= s} dy_t / t at real positions, 0 elsewhere."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Tensor) -> Tensor:
        ctx.save_for_backward(mask)
        return launch(x, mask, backward=False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        return launch(dy, *ctx.saved_tensors, backward=True), None  # the mask has no gradient


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
