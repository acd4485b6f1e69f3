"""A decoding step of the convolutions as one product for each head of a sentence, over all of its slots in place."""

from __future__ import annotations

import torch
from torch import Tensor

from seq2seq.kernels.precision import at_least_float32


def conv_step(values: Tensor, owner: Tensor, position: Tensor, weights: Tensor, *, softmax: bool) -> Tensor:
    """Compute `conv_step_reference`, but gather the weights for the slots instead of the slots for the weights."""
    if softmax:
        weights = weights.softmax(-1, dtype=at_least_float32(weights.dtype))
    slots = values.shape[2]
    slot = torch.arange(slots, device=position.device)
    age = (position[:, None] - slot) % slots  # (N, L): positions since the slot was written
    time = position[:, None] - age
    writers = owner.gather(1, time.clamp(min=0) % owner.shape[1])  # (N, L)
    read = (age < weights.shape[-1]) & (time >= 0)  # (N, L)
    return weigh_slots(values, weights, age, read, writers)


def weigh_slots(values: Tensor, weights: Tensor, age: Tensor, read: Tensor, writers: Tensor) -> Tensor:
    """Return the weighted sum of a sentence's slots for each of its hypotheses.

    Args:
        values: (B, H, L, beam, R).
        weights: Normalized, (N or 1, H, K), the oldest position first.
        age: Positions since a slot was written, (N, L).
        read: Which slots count, (N, L).
        writers: The beam row that wrote each slot of a hypothesis, (N, L).

    Returns:
        (N, H * R).
    """
    batch_size, heads, slots, beam, _ = values.shape
    tap = (weights.shape[-1] - 1 - age).clamp(min=0)  # (N, L)
    by_slot = weights.expand(age.shape[0], -1, -1).gather(2, tap[:, None].expand(-1, heads, -1))  # (N, H, L)
    own = (writers[:, :, None] == torch.arange(beam, device=age.device)) & read[:, :, None]  # (N, L, beam)
    spread = by_slot[..., None].to(values.dtype) * own[:, None]  # (N, H, L, beam)
    spread = spread.view(batch_size, beam, heads, slots * beam).transpose(1, 2)  # (B, H, beam, L * beam)
    return (spread @ values.flatten(2, 3)).transpose(1, 2).flatten(2).flatten(0, 1)
