"""The gated delta rule by chunks: a triangular system within a chunk, and one state between chunks."""

from __future__ import annotations

import torch
from torch import Tensor

from seq2seq.kernels.gated_delta.reference import gated_delta_step
from seq2seq.kernels.precision import at_least_float32, without_autocast
from seq2seq.kernels.recurrence import over_positions

__all__ = ["gated_delta", "gated_delta_step"]

# Positions solved at once: a chunk costs the square of its length, and chunks are computed in sequence.
CHUNK = 64


def gated_delta(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, rate: Tensor, *, chunk: int = CHUNK) -> Tensor:
    """Compute y_t = S_t' q_t with S_t = a_t (I - b_t k_t k_t') S_{t-1} + b_t k_t v_t' (Yang et al. 2024).

    Within a chunk S_t = g_t S_0 + sum_{i <= t} (g_t / g_i) k_i u_i' with g_t = a_1 ... a_t, where U with rows u solves
    (I + L) U = b (V - g K S_0), L_ti = b_t (g_t / g_i) k_t . k_i below the diagonal. O(T (c + d) (d + e)) for chunks
    of c positions. Sums, and y, are in float32 at least.

    Shape:
        q, k (B, H, T, d), v (B, H, T, e), log_decay = log a <= 0 and rate = b (B, H, T) -> (B, H, T, e).

    Reference:
        Yang et al. 2024, 'Gated Delta Networks: Improving Mamba2 with Delta Rule'.
    """
    wide = at_least_float32(q.dtype)
    parts = [part.to(wide) for part in (q, k, v, log_decay, rate)]
    state = parts[0].new_zeros(*k.shape[:2], k.shape[-1], v.shape[-1])  # (B, H, d, e)
    # An exported graph has no triangular systems, and a loop over chunks would fix their number
    if torch.compiler.is_exporting():
        return over_positions(_step, (state,), tuple(parts), dim=2)
    outputs = []
    with without_autocast(q):
        for piece in zip(*(part.split(chunk, 2) for part in parts), strict=True):
            y, state = _chunk(*piece, state=state)
            outputs.append(y)
    return torch.cat(outputs, 2)  # (B, H, T, e)


def _step(state: tuple[Tensor], now: tuple[Tensor, ...]) -> tuple[tuple[Tensor], Tensor]:
    q, k, v, log_decay, rate = now
    y, following = gated_delta_step(q, k, v, log_decay, rate, state[0])
    return (following,), y


def _chunk(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, rate: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    total = log_decay.cumsum(-1)  # log g (B, H, c)
    future = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool, device=q.device).triu(1)
    # Masked first, because the exponential would overflow above the diagonal
    ratio = (total[..., :, None] - total[..., None, :]).masked_fill(future, float("-inf")).exp()  # g_t / g_i
    grown = total.exp()[..., None]  # g, (B, H, c, 1)
    rate = rate[..., None]  # b, (B, H, c, 1)
    lower = (rate * ratio * (k @ k.transpose(-1, -2))).tril(-1)  # L, (B, H, c, c)
    target = rate * (v - grown * (k @ state))  # b (V - g K S_0), (B, H, c, e)
    # Unitriangular: the ones of I + L are implied, and only L is stored
    u = torch.linalg.solve_triangular(lower, target, upper=False, unitriangular=True)
    # S_t' q_t: the decayed state before the chunk, and the chunk's own updates up to t
    y = grown * (q @ state) + (ratio * (q @ k.transpose(-1, -2))) @ u
    kept = (ratio[..., -1, :, None] * k).transpose(-1, -2) @ u  # (B, H, d, e)
    return y, grown[..., -1:, :] * state + kept
