"""The cumulative mean, the simplest mixer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from seq2seq.kernels.precision import at_least_float32
from seq2seq.mixers.past import Sums
from seq2seq.mixers.projections import initialize
from seq2seq.network.introspection import MixingProperties
from seq2seq.network.mixer import SelfMixer, real_positions
from seq2seq.network.state import Device, DType


def running_mean(x: Tensor, mask: Tensor, *, causal: bool) -> Tensor:
    """Average the real positions of x (B, T, D): those up to each position if causal, else all."""
    # Sums over a long sequence lose digits in half precision
    wide = at_least_float32(x.dtype)
    x = x.masked_fill(~mask[:, :, None], 0.0)  # padding adds nothing
    if causal:
        # Padding is on the right, so all positions before a real position are real
        mean = x.cumsum(1, dtype=wide) / torch.arange(1, x.shape[1] + 1, device=x.device)[:, None]
    else:
        mean = (x.sum(1, keepdim=True, dtype=wide) / mask.sum(1)[:, None, None]).expand_as(x)  # (B, T, D)
    return mean.to(x.dtype)


def mean_so_far(x: Tensor, state: Sums, position: Tensor) -> tuple[Tensor, Sums]:
    """Return the mean of the past and of x (N, D), which is at position (N,), and the next state."""
    total = state.total + x
    # Positions count from 0
    return (total / (position[:, None] + 1)).to(x.dtype), Sums(total)


class Average(SelfMixer[Sums]):
    """Cumulative mean of the past.

    y_t = W mean_{s <= t} x_s + b; where not causal, the mean of all positions.

    The mixing matrix is M_ts = 1 / t for s <= t, or 1 / T. Published with a feed-forward and a gate, which
    `seq2seq.mixers.aan` has.

    Cost:
        D^2 + D parameters, O(T D^2) time, D numbers of state.

    Reference:
        Zhang et al. 2018, 'Accelerating Neural Transformer via an Average Attention Network'.
    """

    state_growth = "constant"
    properties = MixingProperties(shares_positions=True, shares_channels=True, linear=True)

    def __init__(self, *, dim: int, causal: bool) -> None:
        super().__init__(dim=dim, causal=causal)
        self.out = nn.Linear(dim, dim)
        initialize(self.out)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Average x (B, T, D) over real positions."""
        mask = real_positions(x, mask)
        return self.out(running_mean(x, mask, causal=self.causal))

    def empty_state(self, batch_size: int, max_len: int, *, device: Device = None, dtype: DType = None) -> Sums:
        """Return sums of zero, before any input."""
        return Sums.empty(batch_size, self.dim, device=device, dtype=dtype)

    def step(self, x: Tensor, state: Sums, position: Tensor) -> tuple[Tensor, Sums]:
        """Add x (N, D) at position (N,)."""
        mean, state = mean_so_far(x, state, position)
        return self.out(mean), state
