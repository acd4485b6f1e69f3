"""The gated delta rule as a recurrence: slow and short, the reference for the computation by chunks."""

from __future__ import annotations

import torch
from torch import Tensor


def gated_delta_reference(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, rate: Tensor) -> Tensor:
    """Compute S_t = a_t (I - b_t k_t k_t') S_{t-1} + b_t k_t v_t', y_t = S_t' q_t, position by position.

    q, k (B, H, T, d), v (B, H, T, e), log_decay = log a and rate = b (B, H, T).

    Reference:
        Yang et al. 2024, eq. 10, whose state is the transpose of this one.
    """
    state = q.new_zeros(*k.shape[:2], k.shape[-1], v.shape[-1])  # (B, H, d, e)
    outputs = []
    for t in range(q.shape[2]):
        now = (part[:, :, t] for part in (q, k, v, log_decay, rate))
        y, state = gated_delta_step(*now, state=state)
        outputs.append(y)
    return torch.stack(outputs, 2)  # (B, H, T, e)


def gated_delta_step(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, rate: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute one position: move the decayed state's value for the key k toward v, at the rate b.

    Shape:
        q, k (N, H, d), v (N, H, e), log_decay, rate (N, H), state (N, H, d, e) -> y (N, H, e) and the next state.
    """
    q, k, v, log_decay, rate = (part.to(state) for part in (q, k, v, log_decay, rate))
    state = log_decay.exp()[..., None, None] * state  # a S
    answer = (k[..., None, :] @ state).squeeze(-2)  # S' k, (N, H, e)
    state = state + k[..., None] * (rate[..., None] * (v - answer))[..., None, :]  # (N, H, d, e)
    return (q[..., None, :] @ state).squeeze(-2), state
