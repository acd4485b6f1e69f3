"""A learned matrix over positions between two MLPs over channels."""

from __future__ import annotations

from torch import Tensor, nn

from seq2seq.mixers.mlp import PositionMatrix
from seq2seq.mixers.past import Past
from seq2seq.mixers.projections import initialize
from seq2seq.network.introspection import MixingProperties
from seq2seq.network.mixer import SelfMixer, real_positions, require_divisible
from seq2seq.network.state import Device, DType


class Separable(SelfMixer[Past]):
    """Learned matrix over positions between two MLPs over channels.

    y = g(M_h f(x)), f and g W_2 gelu(W_1 x).

    Channels and positions are mixed in turns, as in a separable filter: a small MLP-Mixer. `mlp` is the same
    with linear f and g. MLPs are as wide as the model. M is the same for every sentence, lower-triangular if causal. It
    starts as a random convolution, not as the published models do, unless `start` says so (see PositionMatrix).

    Args:
        max_len: N; longer sequences are a ValueError.
        start: M at first: "convolution", "mlp_mixer" or "resmlp".

    Cost:
        4 D^2 + 4 D + H N^2 parameters, O(T^2 D + T D^2) time, O(T D) state: all outputs of f.

    Reference:
        Tolstikhin et al. 2021, 'MLP-Mixer: An all-MLP Architecture for Vision'.
    """

    properties = MixingProperties(shares_channels=True)
    length_arguments = ("max_len",)

    def __init__(self, *, dim: int, causal: bool, num_heads: int, max_len: int, start: str = "convolution") -> None:
        super().__init__(dim=dim, causal=causal)
        require_divisible(dim, num_heads)
        self.before = _channel_mlp(dim)  # f
        self.after = _channel_mlp(dim)  # g
        self.positions = PositionMatrix(num_heads=num_heads, max_len=max_len, causal=causal, start=start)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Mix x (B, T, D); padding counts as zero where positions mix, after the first MLP."""
        mask = real_positions(x, mask)
        return self.after(self.positions(self.before(x), mask))

    def empty_state(self, batch_size: int, max_len: int, *, device: Device = None, dtype: DType = None) -> Past:
        """Return an empty cache; ValueError if it is longer than the matrix."""
        return self.positions.empty_state(batch_size, max_len, self.dim, device=device, dtype=dtype)

    def step(self, x: Tensor, state: Past, position: Tensor) -> tuple[Tensor, Past]:
        """Append the output of the first MLP, then mix the past."""
        return self.after(self.positions.step(self.before(x), state.past, position)), state


def _channel_mlp(dim: int) -> nn.Sequential:
    up = nn.Linear(dim, dim)
    down = nn.Linear(dim, dim)
    initialize(up, down)
    return nn.Sequential(up, nn.GELU(), down)
