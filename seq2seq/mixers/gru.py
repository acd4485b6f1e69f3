"""The gated recurrent unit (Cho et al. 2014) and the bidirectional GRU encoder of RNNsearch (Bahdanau et al. 2015)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seq2seq.kernels.precision import without_autocast
from seq2seq.mixer import Properties, SelfMixer

RESETS = ("before", "after")


class GatedUnit(nn.Module):
    """A GRU whose input part is computed for whole sequences at once.

    reset="after" (torch.nn.GRU): r, z = sigmoid(W x + b + U h + b'), n = tanh(W_n x + b_n + r (U_n h + b'_n)),
    h' = (1 - z) n + z h.  reset="before" (Cho et al. 2014; Bahdanau et al. 2015, appendix A.1.1):
    n = tanh(W_n x + b_n + U_n (r h)), h' = (1 - z) h + z n.  Gates are ordered r, z, n.
    """

    def __init__(self, *, input_dim: int, hidden_dim: int, reset: str = "after") -> None:
        super().__init__()
        if reset not in RESETS:
            raise ValueError(f"reset is {reset!r}; choose one of {', '.join(RESETS)}")
        self.hidden_dim, self.reset = hidden_dim, reset
        self.input = nn.Linear(input_dim, 3 * hidden_dim)
        self.recurrent = nn.Linear(hidden_dim, 3 * hidden_dim, bias=reset == "after")
        for gate in self.recurrent.weight.chunk(3):
            nn.init.orthogonal_(gate)
        nn.init.xavier_uniform_(self.input.weight)
        for bias in (self.input.bias, self.recurrent.bias):
            if bias is not None:
                nn.init.zeros_(bias)

    def update(self, gates: Tensor, hidden: Tensor) -> Tensor:
        """The next hidden state (..., H) from the input part of the gates (..., 3 H) and the hidden state (..., H)."""
        size = self.hidden_dim
        if self.reset == "after":
            recurrent = self.recurrent(hidden)
            r, z = torch.sigmoid(gates[..., : 2 * size] + recurrent[..., : 2 * size]).chunk(2, -1)
            n = torch.tanh(gates[..., 2 * size :] + r * recurrent[..., 2 * size :])
            return n + z * (hidden - n)
        weight = self.recurrent.weight
        r, z = torch.sigmoid(gates[..., : 2 * size] + F.linear(hidden, weight[: 2 * size])).chunk(2, -1)
        n = torch.tanh(gates[..., 2 * size :] + F.linear(r * hidden, weight[2 * size :]))
        return hidden + z * (n - hidden)

    def forward(self, x: Tensor) -> Tensor:
        """All hidden states (B, T, H) of x (B, T, D) from a zero state; torch's fused loop where it has our form."""
        if self.reset == "after":
            weights = [self.input.weight, self.recurrent.weight, self.input.bias, self.recurrent.bias]
            with without_autocast(x):  # the fused loop takes one type only
                start = x.new_zeros(1, x.shape[0], self.hidden_dim, dtype=weights[0].dtype)
                return torch.gru(x.to(start.dtype), start, weights, True, 1, 0.0, self.training, False, True)[0]
        return self.loop(x)

    def loop(self, x: Tensor) -> Tensor:
        """What forward computes, one position at a time."""
        gates, states = self.input(x), []
        hidden = gates.new_zeros(x.shape[0], self.hidden_dim)
        for t in range(x.shape[1]):
            hidden = self.update(gates[:, t], hidden)
            states.append(hidden)
        return torch.stack(states, 1)


class BiGRU(SelfMixer):
    """h_j = [forward GRU; backward GRU]_j (Bahdanau et al. 2015, section 3.2); encoder only.

    The backward unit reads each sentence from its own last token, so padding changes nothing. hidden_dim per
    direction is out_dim / 2 (out_dim defaults to dim). Parameters 6 (D + H + 2) H, cost O(S (D + H) H), serial in S.
    """

    properties = Properties(sparse=False, shares_positions=False, shares_channels=False, dynamic=True, linear=False)

    def __init__(self, *, dim: int, causal: bool, out_dim: int | None = None, reset: str = "after") -> None:
        super().__init__()
        if causal:
            raise ValueError("bigru reads the whole sequence, so it is encoder-only; choose another mixer/self@decoder")
        self.dim, self.out_dim, self.causal = dim, out_dim or dim, causal
        if self.out_dim % 2:
            raise ValueError(
                f"a bigru's two directions need an even width, not {self.out_dim}; change model.dim or out_dim"
            )
        hidden_dim = self.out_dim // 2
        self.ahead = GatedUnit(input_dim=dim, hidden_dim=hidden_dim, reset=reset)
        self.back = GatedUnit(input_dim=dim, hidden_dim=hidden_dim, reset=reset)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Read x (B, S, D) in both directions."""
        index = _reverse_index(mask)[:, :, None]
        back = self.back(x.gather(1, index.expand_as(x)))
        return torch.cat([self.ahead(x), back.gather(1, index.expand_as(back))], -1)


def _reverse_index(mask: Tensor) -> Tensor:
    """Where each position of a right-padded batch goes when sentences are reversed in place; padding stays."""
    lengths = mask.sum(1, keepdim=True)
    time = torch.arange(mask.shape[1], device=mask.device)[None]
    return torch.where(time < lengths, lengths - 1 - time, time)
