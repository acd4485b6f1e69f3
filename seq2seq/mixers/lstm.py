"""The long short-term memory (Hochreiter & Schmidhuber 1997) as a self mixer."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from seq2seq.kernels.precision import without_autocast
from seq2seq.kernels.recurrence import over_positions
from seq2seq.mixers.gru import both_ways
from seq2seq.network.introspection import MixingProperties
from seq2seq.network.mixer import SelfMixer, real_positions
from seq2seq.network.state import Device, DType
from seq2seq.network.weight_blocks import in_blocks


class MemoryUnit(nn.Module):
    """LSTM whose input part is computed for whole sequences at once.

    i, f, o = sigmoid(W x + b + U h), g = tanh(W_g x + b_g + U_g h), c' = f c + i g, h' = o tanh(c'). torch.nn.LSTM has
    two biases, whose sum is b. Gates are ordered i, f, g, o. b_f starts at one, so that memories last.

    Reference:
        Gers et al. 2000, 'Learning to Forget'.
    """

    def __init__(self, *, input_dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.hidden_dim = hidden_dim
        gates = [hidden_dim] * 4
        self.input = in_blocks(nn.Linear(input_dim, 4 * hidden_dim), *gates)  # W, b
        self.recurrent = in_blocks(nn.Linear(hidden_dim, 4 * hidden_dim, bias=False), *gates)  # U
        # Each gate's matrix starts orthogonal, so that products over many steps neither grow nor vanish at first
        for gate in self.recurrent.weight.chunk(4):
            nn.init.orthogonal_(gate)
        nn.init.xavier_uniform_(self.input.weight)
        nn.init.zeros_(self.input.bias)
        nn.init.ones_(self.input.bias[hidden_dim : 2 * hidden_dim])  # b_f

    def update(self, gates: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the next hidden and cell states (..., H) from the gates' input part (..., 4 H) and the old states."""
        i, f, g, o = (gates + self.recurrent(hidden)).chunk(4, -1)  # (..., H) each
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        return o.sigmoid() * cell.tanh(), cell

    def forward(self, x: Tensor) -> Tensor:
        """Compute all hidden states (B, T, H) of x (B, T, D) from zero, in torch's fused loop."""
        # An exported graph has no fused loop of variable length, and an int8 layer has no float weights
        if torch.compiler.is_exporting() or not isinstance(self.input, nn.Linear):
            return self.loop(x)
        # Torch's loop has a second bias, which is zero here
        weights = [self.input.weight, self.recurrent.weight, self.input.bias, torch.zeros_like(self.input.bias)]
        with without_autocast(x):  # the fused loop takes one type only
            start = x.new_zeros(1, x.shape[0], self.hidden_dim, dtype=weights[0].dtype)
            # has_biases, num_layers, dropout, train, bidirectional, batch_first
            given = (x.to(start.dtype), [start, start], weights, True, 1, 0.0, torch.is_grad_enabled(), False, True)
            return torch.lstm(*given)[0]  # all hidden states, (B, T, H)

    def loop(self, x: Tensor) -> Tensor:
        """Compute `forward` one position at a time."""
        gates = self.input(x)  # (B, T, 4 H)
        hidden, cell = (gates.new_zeros(x.shape[0], self.hidden_dim) for _ in range(2))  # (B, H)
        return over_positions(self._advance, (hidden, cell), (gates,), dim=1)

    def _advance(self, state: tuple[Tensor, Tensor], now: tuple[Tensor, ...]) -> tuple[tuple[Tensor, Tensor], Tensor]:
        following = self.update(now[0], *state)
        return following, following[0]


class LSTM(SelfMixer):
    """Long short-term memory, in both directions where not causal.

    y_t = h_t, (h_t, c_t) = LSTM(x_t, h_{t-1}, c_{t-1}); both ways, half as wide, if not causal.

    Information from s reaches t through every state between them: there is no matrix of weights, but a product of
    Jacobians.

    Cost:
        8 D^2 + 4 D parameters (both ways 6 D^2 + 4 D), O(T D^2) time, serial in T, 2 D numbers of
        state.

    Reference:
        Hochreiter & Schmidhuber 1997, 'Long Short-Term Memory'; Gers et al. 2000, 'Learning to Forget'
        (the forget gate); Graves & Schmidhuber 2005, 'Framewise phoneme classification with bidirectional LSTM' (both
        ways).
    """

    state_growth = "constant"
    properties = MixingProperties(dynamic=True)

    def __init__(self, *, dim: int, causal: bool) -> None:
        super().__init__(dim=dim, causal=causal)
        if not causal and dim % 2:
            raise ValueError(f"an lstm's two directions need an even width, not {dim}; change model.dim")
        self.ahead = MemoryUnit(input_dim=dim, hidden_dim=dim if causal else dim // 2)
        self.back = None if causal else MemoryUnit(input_dim=dim, hidden_dim=dim // 2)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Read x (B, T, D), in both directions where not causal."""
        mask = real_positions(x, mask)
        return self.ahead(x) if self.back is None else both_ways(self.ahead, self.back, x, mask)

    class State(NamedTuple):
        """The hidden state and the cell, (N, D) each."""

        hidden: Tensor
        cell: Tensor

    def empty_state(self, batch_size: int, max_len: int, *, device: Device = None, dtype: DType = None) -> State:
        """Return zeros, with which `forward` starts, too."""
        zeros = torch.zeros(batch_size, self.dim, device=device, dtype=dtype)
        return self.State(zeros, zeros)

    def step(self, x: Tensor, state: State, position: Tensor) -> tuple[Tensor, State]:
        """Read x (N, D)."""
        hidden, cell = self.ahead.update(self.ahead.input(x), *state)
        return hidden, self.State(hidden, cell)
