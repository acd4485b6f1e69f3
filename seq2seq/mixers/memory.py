"""Contexts that several cross mixers read, and summaries of the source in one vector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Values(NamedTuple):
    """The source's values in heads, (B, H, S, D / H), and its mask (B, S)."""

    value: Tensor
    mask: Tensor


class KeyedMemory(NamedTuple):
    """The memory (B, S, M), its keys (B, S, K), with which queries are compared, and its mask (B, S)."""

    memory: Tensor
    keys: Tensor
    mask: Tensor


def shortened_rate(values: Mapping[str, Any], factor: int) -> dict[str, Any]:
    """Return the arguments of a mixer for a memory `factor` times shorter: its rate counts positions of the memory."""
    return {**values, "rate": values.get("rate", 1.0) / factor}


def mean_over_positions(memory: Tensor, mask: Tensor) -> Tensor:
    """Return the mean (B, M) of the real positions of memory (B, S, M) under mask (B, S)."""
    weights = mask / mask.sum(1, keepdim=True)  # (B, S)
    return (weights.to(memory.dtype)[:, None] @ memory).squeeze(1)


def end_states(memory: Tensor, mask: Tensor) -> Tensor:
    """Return the last states (B, M) of a bidirectional encoder's memory (B, S, M) under mask (B, S).

    The forward half has read the whole source at its last real position, the backward half at its first.
    """
    ahead, back = memory.chunk(2, -1)  # (B, S, M / 2) each
    last = (mask.sum(1) - 1)[:, None, None].expand(-1, 1, ahead.shape[-1])  # (B, 1, M / 2)
    return torch.cat([ahead.gather(1, last).squeeze(1), back[:, 0]], -1)
