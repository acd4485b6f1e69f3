"""States that many mixers share: a cache of the past, and the window of a convolution."""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from seq2seq.mixers.projections import split
from seq2seq.network.state import Cache

CacheT = TypeVar("CacheT", bound=Cache)


class Past(NamedTuple, Generic[CacheT]):
    """State of a mixer that keeps one slot of numbers for each position."""

    past: CacheT


class Window(NamedTuple):
    """The last K - 1 inputs of a convolution, oldest first, (N, K - 1, C)."""

    past: Tensor

    @classmethod
    def empty(
        cls, batch_size: int, kernel_size: int, channels: int, *, device: Any = None, dtype: Any = None
    ) -> Window:
        """Return zeros, which stand before the first position."""
        return cls(torch.zeros(batch_size, kernel_size - 1, channels, device=device, dtype=dtype))


def attend_to_past(past: Cache, inner: Tensor, position: Tensor, heads: int) -> tuple[list[Tensor], Tensor, Tensor]:
    """Append keys and values at position (N,), and return what attention to the past takes; hypotheses are queries.

    Args:
        inner: Queries, keys and values side by side, (N, 3 E), or values alone, (N, E).

    Returns:
        The queries (B, H, beam, d) and keys (B, H, slots, d), if there are any, the values (B, H, slots, d), and which
        slots each hypothesis sees (B, beam, slots).
    """
    # Slots have keys and values, or values alone
    width = past.values.shape[-1]
    past.append(inner[:, -width:], position)
    slots, visible = past.read(position)
    if inner.shape[-1] == width:
        return [], split(slots.to(inner.dtype), heads), visible
    query = inner[:, :-width]  # (N, E)
    k, v = (split(part, heads) for part in slots.to(inner.dtype).chunk(2, -1))
    return [split(query.reshape(slots.shape[0], -1, query.shape[-1]), heads), k], v, visible
