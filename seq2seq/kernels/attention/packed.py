"""Attention to the real keys of right-padded rows without a mask, by torch's kernel for sequences of any lengths."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

# Limit of FlashAttention's backward pass.
_WIDEST_HEAD = 256


def packed_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, *, dropout: float = 0.0) -> Tensor:
    """Compute softmax(q k' / sqrt(d) where allowed) v on a GPU; each row of the batch is a sequence of its own length.

    Nothing is copied, and the host reads no length. The rows keep their padding, and the kernel gets two sequences for
    each row: the queries of the row with its real keys, and its padded keys without a query.

    Args:
        q: (B, H, T, d).
        k: (B, H, S, d), as is v.
        mask: (B, S), True at the real keys; each row has at least one, and all of them come before its padding.
        dropout: Must be 0.

    Returns:
        (B, H, T, d).

    Raises:
        ValueError: The kernel cannot serve the call; the message says what to change.

    Reference: Dao 2023, 'FlashAttention-2'.
    """
    if problem := obstacle(q, dropout=dropout):
        raise ValueError(f"packed attention cannot serve this: {problem}, or leave packed at false")
    rows, length, width = k.shape[0], q.shape[2], k.shape[2]
    queries, keys = bounds(mask.sum(1), length, width)  # (2 B + 1,) each
    y: Any = varlen_attn(_flat(q), _flat(k), _flat(v), queries, keys, length, width)  # (B T, H, d)
    return y.unflatten(0, (rows, length)).transpose(1, 2)


def bounds(lengths: Tensor, queries: int, keys: int) -> tuple[Tensor, Tensor]:
    """Return a 0 and the ends of the sequences of `packed_attention`, for queries and keys: (2 B + 1,) int32 each.

    Args:
        lengths: Real keys of each row, (B,).
        queries: Queries of each row, T.
        keys: Keys of each row, padding included, S.
    """
    row = torch.arange(len(lengths), device=lengths.device)  # (B,)
    ends = (row + 1) * queries
    real = row * keys + lengths
    # (B, 2): ends of the sequence of real keys, and of the sequence of padding
    pairs = torch.stack([ends, ends], 1), torch.stack([real, (row + 1) * keys], 1)
    of_queries, of_keys = (torch.nn.functional.pad(pair.flatten(), (1, 0)).to(torch.int32) for pair in pairs)
    return of_queries, of_keys


def obstacle(q: Tensor, *, dropout: float = 0.0) -> str | None:
    """Return why `packed_attention` cannot serve queries (B, H, T, d), and a remedy; None if it can."""
    if problem := settings_obstacle(q.shape[-1], dropout):
        return problem
    if not q.is_cuda:
        return f"it needs a GPU, and tensors are on {q.device.type}"
    if q.dtype not in (torch.float16, torch.bfloat16):
        return f"it takes half precision, not {q.dtype}: set trainer.precision=bf16"
    return None


def settings_obstacle(head_dim: int, dropout: float) -> str | None:
    """Return why `packed_attention` cannot serve heads of `head_dim` channels, None if it can."""
    if dropout:
        return "it drops no attention weights: set model.attention_dropout=0"
    if head_dim > _WIDEST_HEAD or head_dim % 8:
        return f"heads have {head_dim} channels, and it takes multiples of 8 up to {_WIDEST_HEAD}"
    return None


def _flat(x: Tensor) -> Tensor:
    """Return (B, H, T, d) as (B T, H, d)."""
    return x.transpose(1, 2).flatten(0, 1)
