"""Relative positions of keys and queries, on a line or on a grid in row-major order."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def require_axes(grid_width: int | None, *, causal: bool) -> int:
    """Return the number of axes: 1 for a line, 2 for a grid with `grid_width` columns, which is encoder-only."""
    if grid_width is None:
        return 1
    if grid_width < 1:
        raise ValueError(f"grid_width is {grid_width}; choose the number of columns, or null for a line")
    if causal:
        raise ValueError("positions on a grid have no past: grid_width is encoder-only; set it to null in the decoder")
    return 2


def coordinates(position: Tensor, grid_width: int | None) -> Tensor:
    """Return the coordinates (axes, ...) of position (...): itself on a line, its row and column on a grid."""
    if grid_width is None:
        return position[None]
    return torch.stack([position // grid_width, position % grid_width])  # row, column


def offsets(query: Tensor, key: Tensor, grid_width: int | None = None) -> Tensor:
    """Return the offsets d = key - query along each axis.

    Shape:
        query positions (..., Q), key positions (S,) -> (axes, ..., Q, S).
    """
    places = coordinates(key, grid_width)  # (axes, S)
    # (axes, 1 ..., S) - (axes, ..., Q, 1)
    return places.view(-1, *[1] * query.dim(), key.shape[0]) - coordinates(query, grid_width)[..., None]


def extents(length: int, grid_width: int | None = None) -> tuple[int, ...]:
    """Return the largest distance between two of `length` positions along each axis."""
    if grid_width is None:
        return (length - 1,)
    return (length - 1) // grid_width, min(grid_width, length) - 1


def slot_offsets(position: Tensor, slots: int, beam: int) -> Tensor:
    """Return the offsets of a cache's slots, `beam` per position, from position (N,): (1, N / beam, beam, slots)."""
    # The beam slots of a position are adjacent in the cache, so slot s has position s // beam
    return offsets(position.view(-1, beam), torch.arange(slots, device=position.device) // beam)


def to_grid(x: Tensor, grid_width: int) -> Tensor:
    """Arrange positions in row-major order, with zeros after the end: (B, T, C) -> (B, rows, grid_width, C)."""
    return F.pad(x, (0, 0, 0, -x.shape[1] % grid_width)).unflatten(1, (-1, grid_width))


def seen_in_line(real: Tensor, *, causal: bool) -> Tensor:
    """Return the attention mask (..., n, n) of lines: each position sees itself and the real positions, real (..., n).

    Args:
        causal: Position i sees positions <= i only.
    """
    size = real.shape[-1]
    own = torch.eye(size, dtype=torch.bool, device=real.device)
    seen = real[..., None, :].expand(*real.shape, size)
    return (seen.tril() if causal else seen) | own
