"""Scaled dot-product attention by its definition."""

from __future__ import annotations

import torch
from torch import Tensor

from seq2seq.kernels.dropout import dropout as dropout_


def attention_reference(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, causal: bool = False, dropout: float = 0.0
) -> Tensor:
    """softmax(q k' / sqrt(d) where allowed) v (Vaswani et al. 2017, eq. 1), with dropout on the weights.

    q (..., T, d), k and v (..., S, d), mask boolean and broadcastable to (..., T, S), True = may be seen.
    """
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)  # (..., T, S)
    if causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return dropout_(scores.softmax(-1).to(v.dtype), dropout) @ v
