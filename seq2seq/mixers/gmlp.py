"""The MLP whose gate mixes positions (gMLP)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seq2seq.mixers.mlp import PositionMatrix
from seq2seq.mixers.past import Past
from seq2seq.mixers.projections import initialize
from seq2seq.network.introspection import MixingProperties
from seq2seq.network.mixer import SelfMixer, real_positions
from seq2seq.network.state import Device, DType
from seq2seq.network.weight_blocks import in_blocks


class GatedMLP(SelfMixer[Past]):
    """Spatial gating unit: an MLP whose gate mixes positions.

    y_i = V (u_i * (sum_j M_ij LN(v_j) + b_i)), [u, v] = gelu(U x), * elementwise.

    One N x N matrix M serves all channels, lower-triangular if causal. M starts near zero and b at one, so that the
    mixer starts as an MLP over channels. Here u and v are as wide as the model; in the published models they
    are two or three times as wide and serve as the feed-forward, too. The causal form is ours.

    Args:
        max_len: N; longer sequences are a ValueError.

    Cost:
        3 D^2 + 5 D + N^2 + N parameters, O(T^2 D + T D^2) time, O(T D) state: all of LN(v).

    Reference:
        Liu et al. 2021, 'Pay Attention to MLPs'.
    """

    properties = MixingProperties(shares_channels=True)
    length_arguments = ("max_len",)

    def __init__(self, *, dim: int, causal: bool, max_len: int) -> None:
        super().__init__(dim=dim, causal=causal)
        self.inner = in_blocks(nn.Linear(dim, 2 * dim), dim, dim)
        self.out = nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim)
        # Near zero, with a bias of one: the gate starts at about 1 and mixes nothing yet (section 2.1)
        self.positions = PositionMatrix(num_heads=1, max_len=max_len, causal=causal, std=1e-2)
        self.bias = nn.Parameter(torch.ones(max_len))
        initialize(self.inner, self.out)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Gate x (B, T, D); padding counts as zero where positions mix, after the norm's bias."""
        mask = real_positions(x, mask)
        u, v = F.gelu(self.inner(x)).chunk(2, -1)  # (B, T, D) each
        gate = self.positions(self.norm(v), mask) + self.bias[: x.shape[1], None]  # (B, T, D)
        return self.out(u * gate)

    def empty_state(self, batch_size: int, max_len: int, *, device: Device = None, dtype: DType = None) -> Past:
        """Return an empty cache; ValueError if it is longer than the matrix."""
        return self.positions.empty_state(batch_size, max_len, self.dim, device=device, dtype=dtype)

    def step(self, x: Tensor, state: Past, position: Tensor) -> tuple[Tensor, Past]:
        """Append this position's v, then gate u by all of the past."""
        u, v = F.gelu(self.inner(x)).chunk(2, -1)  # (N, D) each
        gate = self.positions.step(self.norm(v), state.past, position) + self.bias[position][:, None]
        return self.out(u * gate), state
