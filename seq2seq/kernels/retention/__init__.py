"""Decayed linear attention y_i = sum_{j <= i} gamma^(i-j) (q_i . k_j) v_j: whole sequences at once, or by chunks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from seq2seq.kernels.precision import at_least_float32, without_autocast
from seq2seq.kernels.retention.reference import retention_step

__all__ = ["retention", "retention_parallel", "retention_step"]

# Positions weighted at once: a chunk costs the square of its length, and chunks are computed in sequence.
CHUNK = 64


def retention(q: Tensor, k: Tensor, v: Tensor, *, decay: Tensor | None = None, chunk: int = CHUNK) -> Tensor:
    """Compute causal retention by chunks of c positions: O(T (c + d) e) time, no (T, d, e) states.

    Products within a chunk are weighted by D_ij = gamma^(i-j) for j <= i, else 0; earlier positions are read from one
    state (d, e). Sums are taken in float32 at least.

    Shape:
        q, k (B, H, T, d), v (B, H, T, e) -> (B, H, T, e).

    Args:
        decay: gamma (H,), None for 1.
        chunk: c.

    Reference:
        Sun et al. 2023, eq. 7.
    """
    q, k, v = _wide(q, k, v)
    length = q.shape[2]
    with without_autocast(q):
        if length <= chunk:
            return _weigh(q, k, v, decays(decay, length, q).tril())
        # Real positions do not read the padding at the end: (B, H, chunks, c, d or e)
        q, k, v = (F.pad(part, (0, 0, 0, -length % chunk)).unflatten(2, (-1, chunk)) for part in (q, k, v))
        within = _weigh(q, k, v, decays(decay, chunk, q).tril().unsqueeze(-3))  # from positions of the same chunk
        before = _states(k, v, decay, chunk)  # (B, H, chunks, d, e)
        # The state belongs to the last position before the chunk, 1 to c steps back
        age = torch.arange(1, chunk + 1, device=q.device)
        faded = q if decay is None else q * (decay[:, None].to(q) ** age)[:, None, :, None]
        return (within + faded @ before).flatten(2, 3)[:, :, :length]  # (B, H, T, e)


def retention_parallel(q: Tensor, k: Tensor, v: Tensor, *, decay: Tensor | None = None) -> Tensor:
    """Compute ((q k') * D) v, D_ij = gamma^|i-j|, both ways in time, in O(T^2 (d + e)).

    Shape:
        q, k (B, H, T, d), v (B, H, T, e) -> (B, H, T, e).

    Reference:
        Sun et al. 2023, eq. 5.
    """
    q, k, v = _wide(q, k, v)
    with without_autocast(q):
        return _weigh(q, k, v, decays(decay, q.shape[2], q))


def decays(decay: Tensor | None, length: int, like: Tensor) -> Tensor:
    """Return D (H or 1, T, T) of `retention_parallel`; its lower triangle is the D of `retention`."""
    time = torch.arange(length, device=like.device)
    distance = time[:, None] - time  # i - j, (T, T)
    one = like.new_ones(1) if decay is None else decay.to(like)  # (H,) or (1,)
    # With exponents |i - j|, no power of gamma overflows
    return one[:, None, None] ** distance.abs()


def _weigh(q: Tensor, k: Tensor, v: Tensor, weights: Tensor) -> Tensor:
    return ((q @ k.transpose(-1, -2)) * weights) @ v  # D is a factor; there is no softmax


def _states(k: Tensor, v: Tensor, decay: Tensor | None, chunk: int) -> Tensor:
    """Return the state before each chunk, (B, H, chunks, d, e): the decayed sum of k v' over the past."""
    left = torch.arange(chunk - 1, -1, -1, device=k.device)  # steps to the chunk's last position
    fresh = k if decay is None else k * (decay[:, None].to(k) ** left)[:, None, :, None]
    added = fresh.transpose(-1, -2) @ v  # (B, H, chunks, d, e)
    fade = 1.0 if decay is None else (decay.to(k) ** chunk)[:, None, None]  # decay over a chunk, (H, 1, 1)
    state = torch.zeros_like(added[:, :, 0])  # (B, H, d, e)
    states = []
    for number in range(added.shape[2]):
        states.append(state)
        state = state * fade + added[:, :, number]
    return torch.stack(states, 2)


def _wide(*parts: Tensor) -> list[Tensor]:
    return [part.to(at_least_float32(part.dtype)) for part in parts]
