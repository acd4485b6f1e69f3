"""States that several mixers share: a cache of the past, the window of a convolution, and sums."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from seq2seq.kernels.precision import at_least_float32
from seq2seq.mixers.projections import split
from seq2seq.network.state import Cache, Device, DType


class Past(NamedTuple):
    """State of a mixer that keeps one slot of numbers for each position, or for the last K."""

    past: Cache


class Window(NamedTuple):
    """The last K - 1 inputs of a convolution, oldest first, (N, K - 1, C)."""

    past: Tensor

    @classmethod
    def empty(cls, batch_size: int, kernel_size: int, channels: int, device: Device, dtype: DType) -> Window:
        """Return zeros for the inputs before the first position."""
        return cls(torch.zeros(batch_size, kernel_size - 1, channels, device=device, dtype=dtype))

    def appended(self, z: Tensor) -> tuple[Tensor, Window]:
        """Append the newest input z (N, C); return the last K inputs, (N, K, C), and the next state."""
        inputs = torch.cat([self.past, z.to(self.past.dtype)[:, None]], 1)
        return inputs, Window(inputs[:, 1:])


class Sums(NamedTuple):
    """Sums over the past, (N, ...), in float32 at least."""

    total: Tensor

    @classmethod
    def empty(cls, *sizes: int, device: Device, dtype: DType) -> Sums:
        """Return zeros of these sizes: nothing has been added yet."""
        return cls(torch.zeros(sizes, device=device, dtype=at_least_float32(dtype)))


class WindowedPast(NamedTuple):
    """Keys and values of the past, side by side, and the last K - 1 inputs (N, K - 1, C) of a preceding convolution.

    The inputs are ordered from the oldest to the newest.
    """

    past: Cache
    recent: Tensor

    @classmethod
    def empty(cls, past: Cache, kernel_size: int, channels: int) -> WindowedPast:
        """Return an empty cache, and zeros for the inputs before the first position."""
        return cls(past, past.values.new_zeros(len(past.values), kernel_size - 1, channels))


def attend_to_past(past: Cache, inner: Tensor, position: Tensor, heads: int) -> tuple[list[Tensor], Tensor, Tensor]:
    """Append keys and values at position (N,), and return the inputs of attention to the past.

    Args:
        inner: Queries, keys and values side by side, (N, 3 E), or only values, (N, E).

    Returns:
        The queries (B, H, beam, d) and keys (B, H, slots, d), if any, the values (B, H, slots, d), and a mask of the
        slots that each hypothesis sees (B, beam, slots). A sentence's hypotheses are its queries.
    """
    # Slots have keys and values, or only values
    width = past.values.shape[-1]
    past.append(inner[:, -width:], position)
    slots, visible = past.read(position)
    if inner.shape[-1] == width:
        return [], split(slots.to(inner.dtype), heads), visible
    query = inner[:, :-width]  # (N, E)
    k, v = (split(part, heads) for part in slots.to(inner.dtype).chunk(2, -1))
    return [split(query.reshape(slots.shape[0], -1, query.shape[-1]), heads), k], v, visible
