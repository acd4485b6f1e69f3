"""Projections of attention-like mixers, and their channels in heads."""

from __future__ import annotations

from torch import Tensor, nn


def split(x: Tensor, heads: int) -> Tensor:
    """Divide channels into heads: (..., T, D) -> (..., H, T, D / H)."""
    return x.unflatten(-1, (heads, -1)).transpose(-2, -3)


def merge(x: Tensor) -> Tensor:
    """Join heads: (..., H, T, D / H) -> (..., T, D)."""
    return x.transpose(-2, -3).flatten(-2)


def projection(dim: int, *sizes: int) -> nn.Linear:
    """Make x W without a bias: matrices of these output sizes side by side, each initialized by itself."""
    layer = nn.Linear(dim, sum(sizes), bias=False)
    # Xavier's scale depends on both widths: side by side, matrices would start smaller than alone
    for block in layer.weight.split(sizes):
        nn.init.xavier_uniform_(block)
    return layer
