"""Pooling between the stages of an encoder, which halves its positions, and its inverse for alignments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor


class Halving(NamedTuple):
    """Average pooling with stride 2 that ignores padding; on a grid of 2 x 2 positions.

    y_i = mean of those of x_2i and x_2i+1 that are real; a last position alone stays as it is.

    Attributes:
        grid: Rows and columns, both even, of the grid that the first positions fill row by row; None for a line.

    Reference:
        Dai et al. 2020, Funnel-Transformer: Filtering out Sequential Redundancy for Efficient Language Processing
        (sentences); Wang et al. 2021, Pyramid Vision Transformer (images).
    """

    grid: tuple[int, int] | None = None

    def __call__(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return (B, ceil(S / 2), D), or of a grid (B, S / 4, D), and the mask of x (B, S, D), right-padded."""
        if self.grid:
            # Images have one size: a batch may have padding after it, and a rehearsal with made-up lengths lack some
            size = self.grid[0] * self.grid[1]
            x, mask = F.pad(x, (0, 0, 0, max(0, size - x.shape[1]))), F.pad(mask, (0, max(0, size - mask.shape[1])))
            y = F.avg_pool2d(x[:, :size].transpose(1, 2).unflatten(2, self.grid), 2)  # (B, D, rows / 2, columns / 2)
            return y.flatten(2).transpose(1, 2), mask[:, :size].unflatten(1, self.grid)[:, ::2, ::2].flatten(1)
        real = mask[:, None].to(x.dtype)  # (B, 1, S)
        # Both are means over the same places, so that their ratio counts real positions alone
        total = F.avg_pool1d(x.transpose(1, 2) * real, 2, ceil_mode=True)
        share = F.avg_pool1d(real, 2, ceil_mode=True).clamp_min(0.5)
        return (total / share).transpose(1, 2), mask[:, ::2]


def stage_begins(layers: int, stages: int) -> list[bool]:
    """Return, for each layer, whether a new stage begins there; the stages are as even as possible."""
    return [layer > 0 and layer * stages // layers != (layer - 1) * stages // layers for layer in range(layers)]


def spread(weights: Tensor, halvings: Iterable[Halving], mask: Tensor) -> Tensor:
    """Divide weights (B, T, S') over shortened sources evenly among the positions that made each of theirs: (B, T, S).

    Args:
        halvings: What shortened sources of S positions to S', in their order.
        mask: (B, S), True at real positions.
    """
    for halving, before in reversed(list(_masks(halvings, mask))):
        weights = _spread_once(weights, halving, before)
    return weights


def _masks(halvings: Iterable[Halving], mask: Tensor) -> Iterator[tuple[Halving, Tensor]]:
    """Yield each halving with the mask before it."""
    for halving in halvings:
        yield halving, mask
        _, mask = halving(mask[..., None].float(), mask)


def _spread_once(weights: Tensor, halving: Halving, mask: Tensor) -> Tensor:
    real = mask.to(weights.dtype)  # (B, S)
    if halving.grid:
        grid = (weights / 4).unflatten(2, (-1, halving.grid[1] // 2))
        cells = grid.repeat_interleave(2, 2).repeat_interleave(2, 3).flatten(2)
        return F.pad(cells, (0, mask.shape[1] - cells.shape[2]))
    pairs = F.pad(real, (0, real.shape[1] % 2)).unflatten(1, (-1, 2)).sum(2).clamp_min(1)  # real positions of each
    return (weights / pairs[:, None]).repeat_interleave(2, 2)[..., : mask.shape[1]] * real[:, None]
