"""Channels in heads, and the projections around them: what the attention-like mixers are made of."""

from __future__ import annotations

from torch import Tensor, nn


def split(x: Tensor, heads: int) -> Tensor:
    """(..., T, D) -> (..., H, T, D / H)."""
    return x.unflatten(-1, (heads, -1)).transpose(-2, -3)


def merge(x: Tensor) -> Tensor:
    """(..., H, T, D / H) -> (..., T, D)."""
    return x.transpose(-2, -3).flatten(-2)


def projection(dim: int, *sizes: int) -> nn.Linear:
    """x W without a bias: matrices of these output sizes side by side, each initialised by itself."""
    layer = nn.Linear(dim, sum(sizes), bias=False)
    for block in layer.weight.split(sizes):
        nn.init.xavier_uniform_(block)
    return layer
