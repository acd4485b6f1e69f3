"""The gated recurrent unit (Cho et al. 2014) and the bidirectional GRU encoder of RNNsearch (Bahdanau et al. 2015)."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seq2seq.kernels.precision import without_autocast
from seq2seq.kernels.recurrence import over_positions
from seq2seq.network.introspection import MixingProperties
from seq2seq.network.mixer import SelfMixer, real_positions
from seq2seq.network.state import Device, DType
from seq2seq.network.weight_blocks import in_blocks

RESETS = ("before", "after")


class HiddenState(NamedTuple):
    """The hidden state of a recurrence, (N, H)."""

    hidden: Tensor


class GatedUnit(nn.Module):
    """GRU whose input part is computed for whole sequences at once.

    reset="after" (torch.nn.GRU): r, z = sigmoid(W x + b + U h + b'), n = tanh(W_n x + b_n + r (U_n h + b'_n)),
    h' = (1 - z) n + z h. reset="before" (Bahdanau et al. 2015, appendix A.1.1; in Cho et al. 2014 z and 1 - z are
    swapped): n = tanh(W_n x + b_n + U_n (r h)), h' = (1 - z) h + z n. Gates are ordered r, z, n.

    Args:
        input_dim: Width of x.
        hidden_dim: Width H of the state h.
        reset: Apply the reset gate "before" or "after" the product with U_n.
    """

    def __init__(self, *, input_dim: int, hidden_dim: int, reset: str = "after") -> None:
        super().__init__()
        if reset not in RESETS:
            raise ValueError(f"reset is {reset!r}; choose one of {', '.join(RESETS)}")
        self.hidden_dim = hidden_dim
        self.reset = reset
        gates = [hidden_dim] * 3
        self.input = in_blocks(nn.Linear(input_dim, 3 * hidden_dim), *gates)  # W, b
        self.recurrent = in_blocks(nn.Linear(hidden_dim, 3 * hidden_dim, bias=reset == "after"), *gates)  # U, b'
        # Each gate's matrix starts orthogonal, so that products over many steps neither grow nor vanish at first
        for gate in self.recurrent.weight.chunk(3):
            nn.init.orthogonal_(gate)
        nn.init.xavier_uniform_(self.input.weight)
        for bias in (self.input.bias, self.recurrent.bias):
            if bias is not None:
                nn.init.zeros_(bias)

    def update(self, gates: Tensor, hidden: Tensor) -> Tensor:
        """Compute the next hidden state (..., H) from the gates' input part (..., 3 H) and the last state."""
        size = self.hidden_dim
        if self.reset == "after":
            recurrent = self.recurrent(hidden)
            r, z = torch.sigmoid(gates[..., : 2 * size] + recurrent[..., : 2 * size]).chunk(2, -1)
            n = torch.tanh(gates[..., 2 * size :] + r * recurrent[..., 2 * size :])
            return n + z * (hidden - n)  # (1 - z) n + z h
        # With reset "before", U_n needs r, so it cannot share a product with the other gates
        weight = self.recurrent.weight
        r, z = torch.sigmoid(gates[..., : 2 * size] + F.linear(hidden, weight[: 2 * size])).chunk(2, -1)
        n = torch.tanh(gates[..., 2 * size :] + F.linear(r * hidden, weight[2 * size :]))
        return hidden + z * (n - hidden)  # (1 - z) h + z n

    def forward(self, x: Tensor, start: Tensor | None = None) -> Tensor:
        """Compute all hidden states (B, T, H) of x (B, T, D), in torch's fused loop for reset "after".

        Args:
            start: The state before the first position, (B, H); zero by default.
        """
        # An exported graph has no fused loop of variable length, and an int8 layer has no float weights
        fused = isinstance(self.input, nn.Linear) and not torch.compiler.is_exporting()
        if self.reset == "after" and fused:
            weights = [self.input.weight, self.recurrent.weight, self.input.bias, self.recurrent.bias]
            with without_autocast(x):  # the fused loop takes one type only
                dtype = weights[0].dtype
                hidden = x.new_zeros(x.shape[0], self.hidden_dim, dtype=dtype) if start is None else start.to(dtype)
                # has_biases, num_layers, dropout, train, bidirectional, batch_first; [0] has all states, [1] the last
                # Alignment differentiates in evaluation, too, which cuDNN allows in its training mode alone
                train = torch.is_grad_enabled()
                return torch.gru(x.to(dtype), hidden[None], weights, True, 1, 0.0, train, False, True)[0]
        return self.loop(x, start)

    def loop(self, x: Tensor, start: Tensor | None = None) -> Tensor:
        """Compute `forward` one position at a time."""
        gates = self.input(x)  # (B, T, 3 H)
        hidden = gates.new_zeros(x.shape[0], self.hidden_dim) if start is None else start  # (B, H)
        return over_positions(self._advance, (hidden,), (gates,), dim=1)

    def _advance(self, state: tuple[Tensor], now: tuple[Tensor, ...]) -> tuple[tuple[Tensor], Tensor]:
        hidden = self.update(now[0], state[0])
        return (hidden,), hidden


class BiGRU(SelfMixer):
    """Bidirectional GRU encoder of RNNsearch.

    h_j = [forward GRU; backward GRU]_j; encoder only.

    The backward unit reads each sentence from its own last token, so padding changes nothing.

    Args:
        dim: Width D of the input.
        causal: Must be False.
        out_dim: Width of the output, H = out_dim / 2 a direction (default: dim).
        reset: Form of the GRU, see GatedUnit.

    Cost:
        6 (D + H + 2) H parameters, O(S (D + H) H) time, serial in S.

    Reference:
        Bahdanau et al. 2015, 'Neural Machine Translation by Jointly Learning to Align and
        Translate', section 3.2.
    """

    properties = MixingProperties(dynamic=True)

    def __init__(self, *, dim: int, causal: bool, out_dim: int | None = None, reset: str = "after") -> None:
        super().__init__(dim=dim, causal=causal, out_dim=out_dim)
        if causal:
            raise ValueError("bigru reads the whole sequence, so it is encoder-only; choose another mixer/self@decoder")
        if self.out_dim % 2:
            raise ValueError(
                f"a bigru's two directions need an even width, not {self.out_dim}; change model.dim or out_dim"
            )
        hidden_dim = self.out_dim // 2
        self.ahead = GatedUnit(input_dim=dim, hidden_dim=hidden_dim, reset=reset)
        self.back = GatedUnit(input_dim=dim, hidden_dim=hidden_dim, reset=reset)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Read x (B, S, D) in both directions."""
        mask = real_positions(x, mask)
        return both_ways(self.ahead, self.back, x, mask)


class GRU(SelfMixer[HiddenState]):
    """Gated recurrent unit, in both directions where not causal.

    y_t = h_t = GRU(x_t, h_{t-1}); where not causal, [forward GRU; backward GRU]_t, half as wide.

    Information from s reaches t through every state between them: there is no matrix of weights, but a product of
    Jacobians.

    Args:
        causal: Read from left to right only.
        reset: Form of the GRU, see GatedUnit.

    Cost:
        6 D^2 + 6 D parameters (both ways 4.5 D^2 + 6 D; 3 D fewer with reset="before"), O(T D^2)
        time, serial in T, D numbers of state.

    Reference:
        Cho et al. 2014, 'Learning Phrase Representations using RNN Encoder-Decoder for Statistical
        Machine Translation'.
    """

    state_growth = "constant"
    properties = MixingProperties(dynamic=True)

    def __init__(self, *, dim: int, causal: bool, reset: str = "after") -> None:
        super().__init__(dim=dim, causal=causal)
        if not causal and dim % 2:
            raise ValueError(f"a gru's two directions need an even width, not {dim}; change model.dim")
        self.ahead = GatedUnit(input_dim=dim, hidden_dim=dim if causal else dim // 2, reset=reset)
        self.back = None if causal else GatedUnit(input_dim=dim, hidden_dim=dim // 2, reset=reset)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Read x (B, T, D), in both directions where not causal."""
        mask = real_positions(x, mask)
        return self.ahead(x) if self.back is None else both_ways(self.ahead, self.back, x, mask)

    def empty_state(self, batch_size: int, max_len: int, *, device: Device = None, dtype: DType = None) -> HiddenState:
        """Return zeros, with which `forward` starts, too."""
        return HiddenState(torch.zeros(batch_size, self.dim, device=device, dtype=dtype))

    def step(self, x: Tensor, state: HiddenState, position: Tensor) -> tuple[Tensor, HiddenState]:
        """Read x (N, D)."""
        hidden = self.ahead.update(self.ahead.input(x), state.hidden)
        return hidden, HiddenState(hidden)


def both_ways(ahead: nn.Module, back: nn.Module, x: Tensor, mask: Tensor) -> Tensor:
    """Compute [ahead(x); back(x reversed) reversed] (B, S, 2 H); each sentence is reversed from its own last token."""
    index = reverse_index(mask)[:, :, None]  # (B, S, 1)
    reverse = back(x.gather(1, index.expand_as(x)))  # (B, S, H)
    return torch.cat([ahead(x), reverse.gather(1, index.expand_as(reverse))], -1)


def reverse_index(mask: Tensor) -> Tensor:
    """Return the index (B, T) that reverses each right-padded sentence in place; padding stays."""
    lengths = mask.sum(1, keepdim=True)  # (B, 1)
    time = torch.arange(mask.shape[1], device=mask.device)[None]  # (1, T)
    return torch.where(time < lengths, lengths - 1 - time, time)
