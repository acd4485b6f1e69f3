"""The average attention network: a mean behind a feed-forward and a gate (Zhang et al. 2018)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seq2seq.mixers.average import mean_so_far, running_mean
from seq2seq.mixers.past import Sums
from seq2seq.mixers.projections import initialize
from seq2seq.network.introspection import MixingProperties
from seq2seq.network.mixer import SelfMixer, real_positions, require_positive
from seq2seq.network.state import Device, DType
from seq2seq.network.weight_blocks import in_blocks


class AAN(SelfMixer[Sums]):
    """Average attention network: the cumulative mean behind a feed-forward and a gate.

    y_t = i_t x_t + f_t g_t, g_t = W_2 relu(W_1 mean_{s <= t} x_s + b_1) + b_2, [i_t, f_t] = sigmoid(W [x_t, g_t] + b).

    If not causal, the mean is over all positions. As in `average`, M_ts = 1 / t for s <= t, or 1 / T.

    Args:
        ffn_dim: F hidden units of the feed-forward.
        gate: Gate x and g; without gates, y = g.

    Cost:
        2 D F + F + 4 D^2 + 3 D parameters (2 D F + F + D without the gate), O(T D F + T D^2) time, D
        numbers of state.

    Reference:
        Zhang et al. 2018, 'Accelerating Neural Transformer via an Average Attention Network'.
    """

    state_growth = "constant"
    properties = MixingProperties(shares_positions=True, shares_channels=True)

    def __init__(self, *, dim: int, causal: bool, ffn_dim: int, gate: bool = True) -> None:
        super().__init__(dim=dim, causal=causal)
        require_positive(ffn_dim, "ffn_dim")
        self.up = nn.Linear(dim, ffn_dim)  # W_1, b_1
        self.down = nn.Linear(ffn_dim, dim)  # W_2, b_2
        self.gates = in_blocks(nn.Linear(2 * dim, 2 * dim), dim, dim) if gate else None  # W, b
        initialize(self.up, self.down, self.gates)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Average x (B, T, D) over real positions, then transform and gate."""
        mask = real_positions(x, mask)
        return self._gated(x, running_mean(x, mask, causal=self.causal))

    def empty_state(self, batch_size: int, max_len: int, *, device: Device = None, dtype: DType = None) -> Sums:
        """Return sums of zero, before any input."""
        return Sums.empty(batch_size, self.dim, device=device, dtype=dtype)

    def step(self, x: Tensor, state: Sums, position: Tensor) -> tuple[Tensor, Sums]:
        """Add x (N, D) at position (N,), then transform and gate the mean."""
        mean, state = mean_so_far(x, state, position)
        return self._gated(x, mean), state

    def _gated(self, x: Tensor, mean: Tensor) -> Tensor:
        g = self.down(F.relu(self.up(mean)))  # (..., D)
        if self.gates is None:
            return g
        keep, take = self.gates(torch.cat([x, g.to(x.dtype)], -1)).sigmoid().chunk(2, -1)  # i and f, (..., D) each
        return keep * x + take * g
