"""Bahdanau's decoder: a GRU that attends to the source inside its recurrence (Bahdanau et al. 2015)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from seq2seq.mixers.additive import AdditiveScore
from seq2seq.mixers.gru import GatedUnit, HiddenState
from seq2seq.mixers.memory import mean_over_positions
from seq2seq.mixers.projections import initialize
from seq2seq.network.introspection import mark_mixing, record_mixing
from seq2seq.network.mixer import CrossMixer, require_positive
from seq2seq.network.weight_blocks import in_blocks

READOUTS = ("linear", "maxout")
INITIALS = ("mean", "backward")


class Bahdanau(CrossMixer):
    """Recurrent decoder of RNNsearch: a GRU that attends to the source at every step.

    s_i = GRU([x_i; c_i], s_{i-1}), c_i = sum_j softmax_j(v' tanh(W s_{i-1} + b + U h_j)) h_j.

    The layer's input x_i is the embedding of y_{i-1} in RNNsearch. U h_j is computed once per source sentence.

    Args:
        dim: Width of the input.
        memory_dim: Width of the encoder's output h.
        out_dim: Width of the output (default: dim).
        hidden_dim: Width H of the state s (default: dim).
        score_dim: Width A of the scores' hidden layer (default: H).
        readout: "linear": W_s s_i + W_c c_i; "maxout": max over pairs of U s_{i-1} + V x_i + C c_i
            (A.2.2).
        initial: "mean": s_0 = tanh(W mean_j h_j); "backward": from the backward half of h_1, as
            published.
        reset: Form of the GRU, see GatedUnit.

    Cost:
        (M + 1) H + M A + (H + 2) A + 3 (D + M + H + 2) H + (H + M + 1) out_dim parameters with the
        defaults of readout, initial and reset; O(T S (A + M) + T (D + M + H) H + S M A) time, serial
        in T; H numbers of state.

    Reference:
        Bahdanau et al. 2015, 'Neural Machine Translation by Jointly Learning to Align and
        Translate', appendix A.
    """

    def __init__(
        self,
        *,
        dim: int,
        memory_dim: int,
        out_dim: int | None = None,
        hidden_dim: int | None = None,
        score_dim: int | None = None,
        readout: str = "linear",
        initial: str = "mean",
        reset: str = "after",
    ) -> None:
        super().__init__(dim=dim, memory_dim=memory_dim, out_dim=out_dim)
        for value, options, name in ((readout, READOUTS, "readout"), (initial, INITIALS, "initial")):
            if value not in options:
                raise ValueError(f"{name} is {value!r}; choose one of {', '.join(options)}")
        self.readout = readout
        self.initial = initial
        if initial == "backward" and memory_dim % 2:
            raise ValueError(f"initial=backward needs an even memory width, not {memory_dim}; set initial=mean")
        hidden_dim = dim if hidden_dim is None else require_positive(hidden_dim, "hidden_dim")
        score_dim = hidden_dim if score_dim is None else require_positive(score_dim, "score_dim")
        # W of s_0, U of the scores, and the GRU, whose input is [x_i; c_i]
        self.start = nn.Linear(memory_dim // 2 if initial == "backward" else memory_dim, hidden_dim)
        self.key = nn.Linear(memory_dim, score_dim, bias=False)
        self.attend = AdditiveScore(query_dim=hidden_dim, score_dim=score_dim)
        self.unit = GatedUnit(input_dim=dim, hidden_dim=hidden_dim, reset=reset)
        # The context's part of the gates; x's part is computed for all positions at once
        self.read = in_blocks(nn.Linear(memory_dim, 3 * hidden_dim, bias=False), *[hidden_dim] * 3)
        # Maxout takes the larger of two numbers for each output
        width = 2 * self.out_dim if readout == "maxout" else self.out_dim
        self.out_hidden = nn.Linear(hidden_dim, width)
        self.out_context = nn.Linear(memory_dim, width, bias=False)
        self.out_input = nn.Linear(dim, width, bias=False) if readout == "maxout" else None
        initialize(self.start, self.key, self.read, self.out_hidden, self.out_context, self.out_input)

    class Context(NamedTuple):
        """The memory (B, S, M), its keys U h (B, S, A), its mask (B, S), and the first state (B, H)."""

        memory: Tensor
        keys: Tensor
        mask: Tensor
        start: Tensor

    def project(self, memory: Tensor, memory_mask: Tensor) -> Bahdanau.Context:
        """Compute keys of memory (B, S, M) and the first hidden state."""
        if self.initial == "backward":
            summary = memory[:, 0, self.memory_dim // 2 :]  # the backward half of h_1 has read the whole source
        else:
            summary = mean_over_positions(memory, memory_mask)
        return self.Context(memory, self.key(memory), memory_mask, torch.tanh(self.start(summary)))

    def forward(self, x: Tensor, context: Bahdanau.Context) -> Tensor:
        """Run the recurrence over x (B, T, D)."""
        gates, hidden = self.unit.input(x), context.start[:, None]  # (B, T, 3H), (B, 1, H)
        states = [hidden]
        reads = []
        # The read at t depends on the state after t - 1, so positions cannot run in parallel
        for t in range(x.shape[1]):
            hidden, read = self._advance(gates[:, t : t + 1], hidden, context)
            states.append(hidden)
            reads.append(read)
        # Maxout reads s_{i-1}, and linear reads s_i
        return self._readout(x, torch.cat(states[:-1], 1), torch.cat(states[1:], 1), torch.cat(reads, 1))

    def introspect(self, x: Tensor, context: Bahdanau.Context) -> dict[str, Tensor]:
        """Return the attention weights of each step, (B, 1, T, S); earlier reads that the state holds do not count."""
        return {"weights": self.read_weights(x, context)}

    def read_weights(self, x: Tensor, context: Bahdanau.Context) -> Tensor:
        """Return the attention weights of each step, (B, 1, T, S)."""
        with record_mixing() as weights:
            self.forward(x, context)
        return torch.cat(weights, 1)[:, None]

    def init_state(self, context: Bahdanau.Context, max_len: int) -> HiddenState:
        """Return s_0 of each sentence, (B, H)."""
        return HiddenState(context.start)

    def step(
        self, x: Tensor, context: Bahdanau.Context, state: HiddenState, position: Tensor
    ) -> tuple[Tensor, HiddenState]:
        """Advance the recurrence by one position; a sentence's hypotheses are queries of one attention."""
        batch_size = context.memory.shape[0]
        folded = x.view(batch_size, -1, self.dim)  # (B, beam, D)
        before = state.hidden.view(batch_size, x.shape[0] // batch_size, -1)  # (B, beam, H)
        hidden, read = self._advance(self.unit.input(folded), before, context)
        y = self._readout(folded, before, hidden, read)
        return y.view(x.shape[0], -1), HiddenState(hidden.flatten(0, 1))

    def _advance(self, gates: Tensor, hidden: Tensor, context: Bahdanau.Context) -> tuple[Tensor, Tensor]:
        weights = mark_mixing(self.attend(hidden, context.keys, context.mask))  # (B, n, S)
        read = weights.to(context.memory.dtype) @ context.memory  # (B, n, M)
        return self.unit.update(gates + self.read(read), hidden), read

    def _readout(self, x: Tensor, before: Tensor, after: Tensor, read: Tensor) -> Tensor:
        if self.out_input is None:
            return self.out_hidden(after) + self.out_context(read)
        pairs = self.out_hidden(before) + self.out_input(x) + self.out_context(read)  # (B, n, 2 out_dim)
        return pairs.unflatten(-1, (self.out_dim, 2)).amax(-1)
