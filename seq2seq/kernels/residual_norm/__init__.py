"""Dropout, residual sum and layer norm of a sublayer: on a GPU one kernel each way, within `seq2seq.kernels.fused`.

Post-norm, norm(x + dropout(y)), is one call. Pre-norm is two calls: x and norm(x) before the sublayer, and
x + dropout(y) after it. The norm's kernel sums the gradients of x and norm(x).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from seq2seq.kernels.dispatch import obstacle
from seq2seq.kernels.dropconnect import keep_probability
from seq2seq.kernels.dropout import Dropout
from seq2seq.kernels.fused import is_fused
from seq2seq.kernels.layer_norm import LayerNorm

# A program takes whole rows, so their width is limited
MAX_WIDTH = 4096


def residual_norm(x: Tensor | None, y: Tensor, *, dropout: Dropout, norm: LayerNorm | None) -> Tensor:
    """Compute norm(x + dropout(y)) of (..., D), in the type of x; x or norm is left out if it is None."""
    if x is not None and dropout.training and _takes_triton(x, y):
        keep = int(keep_probability(dropout.drop) * 256)  # of 256
        if norm is not None or keep < 256:
            total, normed = _fused(x, y, norm, keep)
            return total if normed is None else normed
    y = dropout(y)
    if x is not None:
        # A mixer may return a wider type than the residual stream has
        y = x + y.to(x.dtype)
    return y if norm is None else norm(y)


def skip_and_norm(x: Tensor, norm: LayerNorm) -> tuple[Tensor, Tensor]:
    """Return x for a later sum, and norm(x), both (..., D)."""
    if norm.training and _takes_triton(x, x):
        return _fused(x, None, norm, 256)
    return x, norm(x)


def _takes_triton(x: Tensor, y: Tensor) -> bool:
    served = bool(x.numel()) and x.shape[-1] <= MAX_WIDTH and x.shape == y.shape
    return is_fused() and served and obstacle(x, y) is None


def _fused(x: Tensor, y: Tensor | None, norm: LayerNorm | None, keep: int) -> Any:
    # Torch's generator seeds the kernels, so that manual_seed has effect; the seed stays on the device
    seed = torch.randint(2**62, (1,), device=x.device) if keep < 256 else None
    affine = (None, None, 0.0) if norm is None else (norm.weight, norm.bias, norm.eps)
    return _ResidualNorm.apply(x, y, seed, *affine, keep)


class _ResidualNorm(torch.autograd.Function):
    """s = x + dropout(y) and norm(s), by Triton's kernels, with gradients through both."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        y: Tensor | None,
        seed: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        keep: int,
    ) -> tuple[Tensor, Tensor | None]:
        # Imported on use: a machine without a GPU may lack Triton
        from seq2seq.kernels.residual_norm import triton

        y = None if y is None else y.contiguous()
        s, out, stats = triton.forward(x.contiguous(), y, seed, weight, bias, eps=eps, keep=keep)
        ctx.save_for_backward(s if weight is not None else None, stats, weight, seed)
        ctx.how = {"keep": keep, "dtype": None if y is None else y.dtype}
        # The gradient of an unused output is None instead of zeros
        ctx.set_materialize_grads(False)
        return (x if y is None else s), out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, ds: Tensor | None, dout: Tensor | None) -> tuple[Tensor | None, ...]:
        from seq2seq.kernels.residual_norm import triton

        s, stats, weight, seed = ctx.saved_tensors
        if weight is not None and dout is None:
            dout = torch.zeros_like(s)
        ds, dout = (None if grad is None else grad.contiguous() for grad in (ds, dout))
        dx, dy, sums = triton.backward(ds, dout, s, stats, weight, seed, **ctx.how)
        dweight, dbias = (None, None) if weight is None or sums is None else sums.to(weight.dtype)
        return dx, dy, None, dweight, dbias, None, None
