"""The encoder-decoder without attention: one vector of fixed size for the whole source (Cho et al. 2014)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from seq2seq.mixers.gru import GatedUnit, HiddenState
from seq2seq.mixers.memory import end_states, mean_over_positions
from seq2seq.mixers.projections import initialize
from seq2seq.network.mixer import CrossMixer, require_positive

SUMMARIES = {"ends": end_states, "mean": mean_over_positions}


class FixedContext(CrossMixer):
    """Recurrent decoder that reads the source as one vector, without attention.

    s_i = GRU([x_i; c], s_{i-1}), s_0 = tanh(W c), y_i = W_s s_i + W_c c.

    c holds the encoder's last states: the forward half of its output at the last position, the backward half at the
    first; use the mean for an encoder that is not a bidirectional recurrence. c does not depend on the state, so all
    positions run in the fused loop of a GRU. Published with an encoder in one direction, and with a maxout before the
    output layer (Cho et al. 2014) or LSTMs in place of GRUs (Sutskever et al. 2014).

    Args:
        dim: Width D of the input.
        out_dim: Width of the output (default: dim).
        hidden_dim: Width H of the state s (default: dim).
        summary: c: "ends", the last states, or "mean", the mean over positions.
        every_step: Read c at every step (Cho et al.); else only s_0 depends on the source, s_i = GRU(x_i, s_{i-1})
            and y_i = W_s s_i (Sutskever et al.).
        reset: Form of the GRU, see GatedUnit.

    Cost:
        3 (D + M + H + 2) H + (M + 1) H + (H + M + 1) D parameters (without every_step, 3 M H + M D
        fewer), O(T (D + M + H) H) time, serial in T but independent of S, H numbers of state.

    Reference:
        Cho et al. 2014, 'Learning Phrase Representations using RNN Encoder-Decoder for Statistical
        Machine Translation'; Sutskever et al. 2014, 'Sequence to Sequence Learning with Neural Networks'.
    """

    def __init__(
        self,
        *,
        dim: int,
        memory_dim: int,
        out_dim: int | None = None,
        hidden_dim: int | None = None,
        summary: str = "ends",
        every_step: bool = True,
        reset: str = "after",
    ) -> None:
        super().__init__(dim=dim, memory_dim=memory_dim, out_dim=out_dim)
        if summary not in SUMMARIES:
            raise ValueError(f"summary is {summary!r}; choose one of {', '.join(SUMMARIES)}")
        if summary == "ends" and memory_dim % 2:
            raise ValueError(f"summary=ends needs an even memory width, not {memory_dim}; set summary=mean")
        self.summary = summary
        hidden_dim = dim if hidden_dim is None else require_positive(hidden_dim, "hidden_dim")
        self.start = nn.Linear(memory_dim, hidden_dim)  # W of s_0
        self.unit = GatedUnit(input_dim=dim + memory_dim * every_step, hidden_dim=hidden_dim, reset=reset)
        self.out_hidden = nn.Linear(hidden_dim, self.out_dim)  # W_s
        self.out_context = nn.Linear(memory_dim, self.out_dim, bias=False) if every_step else None  # W_c
        initialize(self.start, self.out_hidden, self.out_context)

    class Context(NamedTuple):
        """The source's one vector c (B, M), and the first state (B, H)."""

        summary: Tensor
        start: Tensor

    def project(self, memory: Tensor, memory_mask: Tensor) -> FixedContext.Context:
        """Compute c of memory (B, S, M), and the first hidden state."""
        summary = SUMMARIES[self.summary](memory, memory_mask)  # (B, M)
        return self.Context(summary, torch.tanh(self.start(summary)))

    def forward(self, x: Tensor, context: FixedContext.Context) -> Tensor:
        """Run the recurrence over x (B, T, D)."""
        return self._readout(self.unit(self._inputs(x, context), context.start), context)

    def init_state(self, context: FixedContext.Context, max_len: int) -> HiddenState:
        """Return s_0 of each sentence, (B, H)."""
        return HiddenState(context.start)

    def step(
        self, x: Tensor, context: FixedContext.Context, state: HiddenState, position: Tensor
    ) -> tuple[Tensor, HiddenState]:
        """Advance the recurrence by one position; a sentence's hypotheses share c."""
        folded = x.view(context.summary.shape[0], -1, self.dim)  # (B, beam, D)
        gates = self.unit.input(self._inputs(folded, context)).flatten(0, 1)  # (N, 3 H)
        hidden = self.unit.update(gates, state.hidden)
        y = self._readout(hidden.view(*folded.shape[:2], -1), context)
        return y.flatten(0, 1), HiddenState(hidden)

    def _inputs(self, x: Tensor, context: FixedContext.Context) -> Tensor:
        """Return the input of the recurrence for x (B, n, D): [x; c], or x."""
        if self.out_context is None:
            return x
        return torch.cat([x, context.summary[:, None].expand(-1, x.shape[1], -1)], -1)

    def _readout(self, hidden: Tensor, context: FixedContext.Context) -> Tensor:
        """Compute y of states (B, n, H)."""
        y = self.out_hidden(hidden)
        return y if self.out_context is None else y + self.out_context(context.summary)[:, None]
