"""Pooling that halves the positions between stages of an encoder, and its inverse for alignments."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor


class Halving(NamedTuple):
    """Average pooling with stride 2 that ignores padding; on a grid, each pool has 2 x 2 positions.

    y_i is the mean of the real positions among x_2i and x_2i+1.

    Attributes:
        grid: Rows and columns, both even, of the grid that the first positions fill row by row; None for a line.

    Reference:
        Dai et al. 2020, 'Funnel-Transformer' (lines); Wang et al. 2021, 'Pyramid Vision Transformer' (grids).
    """

    grid: tuple[int, int] | None = None

    def __call__(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Pool x (B, S, D) under mask (B, S), right-padded; return the result and its mask.

        The result is (B, ceil(S / 2), D), or (B, rows * columns / 4, D) on a grid.
        """
        if self.grid:
            size = self.grid[0] * self.grid[1]
            # A batch may be padded beyond the grid, and the artificial batches of a rehearsal may be shorter
            missing = max(0, size - x.shape[1])
            x = F.pad(x, (0, 0, 0, missing))
            mask = F.pad(mask, (0, missing))
            y = F.avg_pool2d(x[:, :size].transpose(1, 2).unflatten(2, self.grid), 2)  # (B, D, rows / 2, columns / 2)
            return y.flatten(2).transpose(1, 2), mask[:, :size].unflatten(1, self.grid)[:, ::2, ::2].flatten(1)
        real = mask[:, None].to(x.dtype)  # (B, 1, S)
        # The ratio of two means over the same pairs is the mean over real positions
        total = F.avg_pool1d(x.transpose(1, 2) * real, 2, ceil_mode=True)
        share = F.avg_pool1d(real, 2, ceil_mode=True).clamp_min(0.5)
        return (total / share).transpose(1, 2), mask[:, ::2]


def stage_begins(layers: int, stages: int) -> list[bool]:
    """Return, for each layer, whether a new stage begins there; the stages are as even as possible."""
    return [layer > 0 and layer * stages // layers != (layer - 1) * stages // layers for layer in range(layers)]


def spread(weights: Tensor, halvings: Iterable[Halving], mask: Tensor) -> Tensor:
    """Divide weights (B, T, S') on pooled positions evenly among the real positions of each pool: (B, T, S).

    Args:
        halvings: The halvings from S to S' positions, in order.
        mask: (B, S), True at real positions.
    """
    steps = []
    for halving in halvings:
        steps.append((halving, mask))
        _, mask = halving(mask[..., None].float(), mask)
    for halving, before in reversed(steps):
        weights = _spread_once(weights, halving, before)
    return weights


def _spread_once(weights: Tensor, halving: Halving, mask: Tensor) -> Tensor:
    real = mask.to(weights.dtype)  # (B, S)
    if halving.grid:
        grid = (weights / 4).unflatten(2, (-1, halving.grid[1] // 2))
        cells = grid.repeat_interleave(2, 2).repeat_interleave(2, 3).flatten(2)
        return F.pad(cells, (0, mask.shape[1] - cells.shape[2]))
    pairs = F.pad(real, (0, real.shape[1] % 2)).unflatten(1, (-1, 2)).sum(2).clamp_min(1)  # real positions of each pair
    return (weights / pairs[:, None]).repeat_interleave(2, 2)[..., : mask.shape[1]] * real[:, None]
