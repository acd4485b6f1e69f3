"""Pooling that shortens the source between stages of an encoder, and its inverse for alignments."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor


class Pooling(NamedTuple):
    """Average pooling with stride n that ignores padding; on a grid, each pool has n x n positions.

    y_i is the mean of the real positions among x_ni .. x_ni+n-1.

    Attributes:
        grid: Rows and columns, multiples of n, of the grid that the first positions fill row by row; None for a line.
        stride: n.

    Reference:
        Dai et al. 2020, 'Funnel-Transformer' (lines); Wang et al. 2021, 'Pyramid Vision Transformer' (grids).
    """

    grid: tuple[int, int] | None = None
    stride: int = 2

    def __call__(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Pool x (B, S, D) under mask (B, S), right-padded; return the result and its mask.

        The result is (B, ceil(S / n), D), or (B, rows * columns / n^2, D) on a grid.
        """
        n = self.stride
        if self.grid:
            size = self.grid[0] * self.grid[1]
            # A batch may be padded beyond the grid, and the artificial batches of a rehearsal may be shorter
            missing = max(0, size - x.shape[1])
            x = F.pad(x, (0, 0, 0, missing))
            mask = F.pad(mask, (0, missing))
            y = F.avg_pool2d(x[:, :size].transpose(1, 2).unflatten(2, self.grid), n)  # (B, D, rows / n, columns / n)
            return y.flatten(2).transpose(1, 2), mask[:, :size].unflatten(1, self.grid)[:, ::n, ::n].flatten(1)
        real = mask[:, None].to(x.dtype)  # (B, 1, S)
        # The ratio of two means over the same pool is the mean over real positions
        total = F.avg_pool1d(x.transpose(1, 2) * real, n, ceil_mode=True)
        share = F.avg_pool1d(real, n, ceil_mode=True).clamp_min(1 / n)
        return (total / share).transpose(1, 2), mask[:, ::n]


def stage_begins(layers: int, stages: int) -> list[bool]:
    """Return, for each layer, whether a new stage begins there; the stages are as even as possible."""
    return [layer > 0 and layer * stages // layers != (layer - 1) * stages // layers for layer in range(layers)]


def spread(weights: Tensor, poolings: Iterable[Pooling], mask: Tensor) -> Tensor:
    """Divide weights (B, T, S') on pooled positions evenly among the real positions of each pool: (B, T, S).

    Args:
        poolings: The poolings from S to S' positions, in order.
        mask: (B, S), True at real positions.
    """
    steps = []
    for pooling in poolings:
        steps.append((pooling, mask))
        _, mask = pooling(mask[..., None].float(), mask)
    for pooling, before in reversed(steps):
        weights = _spread_once(weights, pooling, before)
    return weights


def _spread_once(weights: Tensor, pooling: Pooling, mask: Tensor) -> Tensor:
    n = pooling.stride
    real = mask.to(weights.dtype)  # (B, S)
    if pooling.grid:
        grid = (weights / n**2).unflatten(2, (-1, pooling.grid[1] // n))
        cells = grid.repeat_interleave(n, 2).repeat_interleave(n, 3).flatten(2)
        return F.pad(cells, (0, mask.shape[1] - cells.shape[2]))
    # Real positions of each pool
    count = F.pad(real, (0, -real.shape[1] % n)).unflatten(1, (-1, n)).sum(2).clamp_min(1)
    return (weights / count[:, None]).repeat_interleave(n, 2)[..., : mask.shape[1]] * real[:, None]
