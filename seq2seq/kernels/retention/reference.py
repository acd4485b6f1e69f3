"""Decayed linear attention as a recurrence: slow and short, the reference for all other implementations."""

from __future__ import annotations

import torch
from torch import Tensor


def retention_reference(q: Tensor, k: Tensor, v: Tensor, *, decay: Tensor | None = None) -> Tensor:
    """Compute S_t = gamma_h S_{t-1} + k_t v_t', y_t = S_t' q_t (Sun et al. 2023, eq. 6), position by position.

    q, k (B, H, T, d), v (B, H, T, e), decay gamma (H,) or None for 1.
    """
    state = q.new_zeros(*k.shape[:2], k.shape[-1], v.shape[-1])  # (B, H, d, e)
    outputs = []
    for t in range(q.shape[2]):
        y, state = retention_step(q[:, :, t], k[:, :, t], v[:, :, t], state, decay=decay)
        outputs.append(y)
    return torch.stack(outputs, 2)  # (B, H, T, e)


def retention_step(
    q: Tensor, k: Tensor, v: Tensor, state: Tensor, *, decay: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compute one position of retention.

    Shape:
        q, k (N, H, d), v (N, H, e), state (N, H, d, e) -> y (N, H, e) and the next state.
    """
    kept = state if decay is None else decay[:, None, None].to(state) * state
    state = kept + (k[..., None] * v[..., None, :]).to(state)  # (N, H, d, e)
    return (q[..., None, :].to(state) @ state).squeeze(-2), state
