"""A linear map of each position, without mixing."""

from __future__ import annotations

from torch import Tensor, nn

from seq2seq.mixers.projections import initialize
from seq2seq.network.introspection import MixingProperties
from seq2seq.network.mixer import SelfMixer
from seq2seq.network.state import Device, DType, NoState


class Identity(SelfMixer):
    """Linear map of each position, without mixing.

    y_t = W x_t + b; the mixing matrix is the identity, M_ts = [t = s].

    The baseline of every comparison, which shows how much a self mixer gains. A decoder with it knows only the last
    token and, with position encodings, the length of its past.

    Cost:
        D^2 + D parameters, O(T D^2) time, no state.
    """

    state_growth = "constant"
    properties = MixingProperties(sparse=True, shares_positions=True, shares_channels=True, linear=True)

    def __init__(self, *, dim: int, causal: bool) -> None:
        super().__init__(dim=dim, causal=causal)
        self.out = nn.Linear(dim, dim)
        initialize(self.out)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map x (B, T, D)."""
        return self.out(x)

    def empty_state(self, batch_size: int, max_len: int, *, device: Device = None, dtype: DType = None) -> NoState:
        """Return an empty state."""
        return NoState()

    def step(self, x: Tensor, state: NoState, position: Tensor) -> tuple[Tensor, NoState]:
        """Map x (N, D)."""
        return self.out(x), state
