"""Attention of short rows with one Triton program for each head of a sentence, and its gradients.

The kernels are off by default, because they have not run on a GPU yet: `seq2seq.kernels.fused` turns them on.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from seq2seq.kernels.dispatch import obstacle
from seq2seq.kernels.dropconnect import keep_words_or_none
from seq2seq.kernels.fused import is_fused
from seq2seq.kernels.launch_config import attention_warps


def is_on() -> bool:
    """Return True in an eager call with gradients inside `fused`."""
    return is_fused() and torch.is_grad_enabled()


def is_served(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, mask: Tensor | None) -> bool:
    """Return True if the kernels serve arguments of `attention`; a mask must be (B, 1, 1, S)."""
    if any(part.dim() != 4 or not part.numel() for part in (q, k, v)):
        return False
    if not attention_warps(q.shape[2], k.shape[2], q.shape[3], q.dtype, backward=True):
        return False
    if k.shape != (q.shape[0], k.shape[1], k.shape[2], q.shape[3]) or v.shape != k.shape or q.shape[1] % k.shape[1]:
        return False
    if mask is not None and (mask.dtype != torch.bool or mask.dim() != 4 or mask.shape[1:] != (1, 1, k.shape[2])):
        return False
    # Autocast would narrow the types of torch's own attention
    if not q.dtype == k.dtype == v.dtype or (q.dtype == torch.float32 and torch.is_autocast_enabled(q.device.type)):
        return False
    return obstacle(q, k, v, *([] if bias is None else [bias])) is None


def one_tile_attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, mask: Tensor | None, *, causal: bool, dropout: float
) -> Tensor:
    """Compute `attention` with the kernels; DropConnect's words are the dropout mask."""
    words = keep_words_or_none((*q.shape[:3],), k.shape[2], dropout, device=q.device, backend="auto")
    y: Any = _OneTile.apply(q, k, v, bias, mask, words, causal, dropout)
    return y


class _OneTile(torch.autograd.Function):
    """Attention with the kernels of both passes."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        from seq2seq.kernels.attention import triton

        *tensors, ctx.causal, ctx.drop = given
        y, lse = triton.forward(*given)
        ctx.save_for_backward(lse, *tensors)
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        from seq2seq.kernels.attention import triton

        grads = triton.backward(dy, *ctx.saved_tensors, causal=ctx.causal, drop=ctx.drop)
        return *grads, None, None, None, None


def divide(x: Tensor, *sizes: int) -> tuple[Tensor, ...]:
    """Split the channels of a joint projection into parts of these sizes; the kernels join their gradients.

    Shape:
        x (..., sum(sizes)) -> (..., size) of each.
    """
    parts: Any = _Divide.apply(x, sizes) if is_on() and x.requires_grad else x.split(sizes, -1)
    return parts


class _Divide(torch.autograd.Function):
    """Split a tensor into parts, and join their gradients without a copy if these are adjacent in memory."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, sizes: tuple[int, ...]) -> tuple[Tensor, ...]:
        return x.split(sizes, -1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        whole = side_by_side(grads)
        return torch.cat(grads, -1) if whole is None else whole, None


def side_by_side(parts: tuple[Tensor, ...]) -> Tensor | None:
    """Return tensors (..., size) as one (..., sum of sizes) without a copy; None if they are not adjacent in memory."""
    first, width = parts[0], 0
    for part in parts:
        same = part.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        adjacent = part.storage_offset() == first.storage_offset() + width and part.stride() == first.stride()
        if not (same and adjacent and part.stride(-1) == 1):
            return None
        width += part.shape[-1]
    return first.as_strided((*first.shape[:-1], width), first.stride())
