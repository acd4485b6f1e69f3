"""Luong's attention: its scores and windows, for any decoder and as a recurrent decoder with input feeding (2015)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from seq2seq.kernels.precision import at_least_float32
from seq2seq.mixers.additive import AdditiveScore
from seq2seq.mixers.gru import GatedUnit
from seq2seq.mixers.memory import KeyedMemory, mean_over_positions
from seq2seq.mixers.projections import projection
from seq2seq.network.introspection import mark_mixing, record_mixing
from seq2seq.network.mixer import CrossMixer, require_length, require_positive
from seq2seq.network.state import NoState
from seq2seq.network.weight_blocks import in_blocks

SCORES = ("dot", "general", "concat", "location")
SCOPES = ("global", "local_m", "local_p")


class LuongRead(nn.Module):
    """Attention weights and attentional vector of Luong et al. 2015.

    w_ij = softmax_j of a score of s_i and h_j within a window; y_i = tanh(W_c [sum_j w_ij h_j; s_i]).

    Args:
        query_dim: Width Q of s.
        memory_dim: Width M of h.
        out_dim: Width of y.
        score: "dot", s'h, unscaled and so large in wide layers; "general", s'W h; "concat", v' tanh(W [s; h]);
            "location", (W s)_j, which does not depend on h.
        scope: The window: "global", the whole source; "local_m", |j - p| <= D around p_i = i, but at most the last
            position; "local_p", around p_i = S sigmoid(v_p' tanh(W_p s_i)), S the source's length, with weights
            times exp(-2 (j - p)^2 / D^2), a Gaussian of standard deviation D / 2.
        half_window: D, 1 or more.
        max_len: Longest source, for "location" only.
        coverage: Add the number C_ij to the hidden layer of "concat", see AdditiveScore.
    """

    def __init__(
        self,
        *,
        query_dim: int,
        memory_dim: int,
        out_dim: int,
        score: str,
        scope: str,
        half_window: int,
        max_len: int | None,
        coverage: bool = False,
    ) -> None:
        super().__init__()
        for value, options, name in ((score, SCORES, "score"), (scope, SCOPES, "scope")):
            if value not in options:
                raise ValueError(f"{name} is {value!r}; choose one of {', '.join(options)}")
        if score == "dot" and query_dim != memory_dim:
            raise ValueError(f"score=dot needs equal widths, not {query_dim} and {memory_dim}; set score=general")
        if (score == "location") != (max_len is not None):
            raise ValueError(
                f"max_len is {max_len}, the longest source; only score=location needs it: with score={score} set "
                + ("max_len, for example to ${model.max_len}" if score == "location" else "max_len=null")
            )
        if coverage and score != "concat":
            raise ValueError(f"coverage needs score=concat, not score={score}; change one of them")
        self.score = score
        self.scope = scope
        self.half_window = require_positive(half_window, "half_window")
        self.max_len = max_len
        # U of concat's [W, U], W of general; both are applied once per source sentence
        widths = {"general": query_dim, "concat": query_dim}
        self.key = projection(memory_dim, widths[score]) if score in widths else None
        self.additive = (
            AdditiveScore(query_dim=query_dim, score_dim=query_dim, coverage=coverage) if score == "concat" else None
        )
        self.location = None if max_len is None else projection(query_dim, max_len)
        # W_p and v_p
        self.place = projection(query_dim, query_dim) if scope == "local_p" else None
        self.place_score = projection(query_dim, 1) if scope == "local_p" else None
        self.out = projection(memory_dim + query_dim, out_dim)  # W_c
        if score == "general":
            # Scores start as large as products of unit vectors, since s'W h sums Q numbers
            with torch.no_grad():
                self.key.weight.mul_(query_dim**-0.5)  # type: ignore[union-attr]

    def project(self, memory: Tensor, mask: Tensor) -> KeyedMemory:
        """Compute the keys of memory (B, S, M) under mask (B, S)."""
        if self.max_len is not None:
            require_length(memory.shape[1], self.max_len)
        return KeyedMemory(memory, memory if self.key is None else self.key(memory), mask)

    def forward(
        self, query: Tensor, context: KeyedMemory, position: Tensor, coverage: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return y (B, n, out_dim) and the weights (B, n, S) of query s (B, n, Q) at position (B or 1, n)."""
        weights = mark_mixing(self._weights(query, context, position, coverage))  # (B, n, S)
        read = weights.to(context.memory.dtype) @ context.memory  # (B, n, M)
        return torch.tanh(self.out(torch.cat([read, query], -1))), weights

    def _weights(self, query: Tensor, context: KeyedMemory, position: Tensor, coverage: Tensor | None) -> Tensor:
        energy = self._energy(query, context.keys, coverage)
        # Positions need more than the 8 bits of bfloat16
        energy = energy.to(at_least_float32(energy.dtype))
        allowed = context.mask[:, None]  # (B, 1, S)
        if self.scope == "global":
            return energy.masked_fill(~allowed, float("-inf")).softmax(-1)
        center = self._center(query, context.mask, position)[..., None]  # (B, n, 1)
        distance = torch.arange(energy.shape[-1], device=energy.device) - center  # (B, n, S)
        allowed = allowed & (distance.abs() <= self.half_window)
        weights = energy.masked_fill(~allowed, float("-inf")).softmax(-1)
        if self.scope == "local_m":
            return weights
        return weights * torch.exp(-2.0 * (distance / self.half_window).square())

    def _energy(self, query: Tensor, keys: Tensor, coverage: Tensor | None) -> Tensor:
        """Return the scores (B, n, S) of query (B, n, Q)."""
        if self.additive is not None:
            return self.additive.energy(query, keys, coverage)
        if self.location is not None:
            return self.location(query)[..., : keys.shape[1]]
        return query @ keys.transpose(-1, -2)

    def _center(self, query: Tensor, mask: Tensor, position: Tensor) -> Tensor:
        """Return p (B, n)."""
        length = mask.sum(1, keepdim=True)  # (B, 1)
        if self.place is None or self.place_score is None:
            # The window does not move past the end of the source
            return torch.minimum(position, length - 1)
        place = self.place_score(torch.tanh(self.place(query))).squeeze(-1)  # (B, n)
        return length * torch.sigmoid(place.to(at_least_float32(place.dtype)))


def _without_local_m(values: Mapping[str, Any], factor: int) -> dict[str, Any]:
    """Return the arguments for a shortened memory; ValueError for local_m, whose windows would be misplaced."""
    if values.get("scope") == "local_m":
        raise ValueError(
            "scope=local_m reads position i of the source for position i of the target, and model.encoder_stages "
            "shortens the source: choose scope=local_p, or encoder_stages=1"
        )
    return dict(values)


class LuongAttention(CrossMixer):
    """Luong's attention to the source, for any decoder.

    y_i = tanh(W_c [sum_j w_ij h_j; x_i]), w_ij = softmax_j(x_i' W h_j) or another score in a window.

    The arguments score, scope, half_window and max_len are as in `LuongRead`, with x in place of s. Published over
    stacked LSTMs on both sides (Luong et al. 2015).

    Cost:
        (M + D) D parameters, and M D (general), (M + D + 2) D (concat) or D max_len (location), and D^2
        + D for local_p; O(T S D) time, also in windows, which are masks; no state.

    Reference:
        Luong et al. 2015, 'Effective Approaches to Attention-based Neural Machine Translation',
        section 3.
    """

    length_arguments = ("max_len",)

    def __init__(
        self,
        *,
        dim: int,
        memory_dim: int,
        score: str = "general",
        scope: str = "global",
        half_window: int = 10,
        max_len: int | None = None,
    ) -> None:
        super().__init__(dim=dim, memory_dim=memory_dim)
        self.read = LuongRead(
            query_dim=dim,
            memory_dim=memory_dim,
            out_dim=dim,
            score=score,
            scope=scope,
            half_window=half_window,
            max_len=max_len,
        )

    shortened_values = staticmethod(_without_local_m)

    def project(self, memory: Tensor, memory_mask: Tensor) -> KeyedMemory:
        """Compute the keys of memory (B, S, M)."""
        return self.read.project(memory, memory_mask)

    def forward(self, x: Tensor, context: KeyedMemory) -> Tensor:
        """Read the source from each position of x (B, T, D)."""
        return self.read(x, context, torch.arange(x.shape[1], device=x.device)[None])[0]

    def read_weights(self, x: Tensor, context: KeyedMemory) -> Tensor:
        """Return the attention weights of x (B, T, D), (B, 1, T, S); with local_p they sum to less than 1."""
        return self.read(x, context, torch.arange(x.shape[1], device=x.device)[None])[1][:, None]

    def step(self, x: Tensor, context: KeyedMemory, state: NoState, position: Tensor) -> tuple[Tensor, NoState]:
        """Read the source at one position; a sentence's hypotheses are its queries."""
        folded = x.view(context.mask.shape[0], -1, self.dim)  # (B, beam, D)
        y, _ = self.read(folded, context, position.view(folded.shape[:2]))
        return y.flatten(0, 1), NoState()


class Luong(CrossMixer):
    """Luong's recurrent decoder, whose attentional vector is part of its next input.

    s_i = GRU([x_i; y_{i-1}], s_{i-1}), y_i = tanh(W_c [sum_j w_ij h_j; s_i]), s_0 = tanh(W mean_j h_j); w_ij =
    softmax_j(score(s_i, h_j)) over all j or, by scope, in a window around i or around a predicted position, there
    times a Gaussian; with coverage, the score also reads sum_{k < i} w_kj.

    Scores and windows are as in `LuongRead`: unlike Bahdanau's decoder, this one attends from the state after x_i.
    Without input feeding, s_i = GRU(x_i, s_{i-1}), and all positions run in the fused loop of a GRU. Published with
    LSTMs that begin with the encoder's last states (Luong et al. 2015); coverage was published in Bahdanau's decoder,
    and with fertility (Tu et al. 2016).

    Args:
        dim: Width D of input, state and output.
        memory_dim: Width M of the encoder's output h.
        score: As in `LuongRead`, as are scope, half_window and max_len.
        input_feeding: Feed y_{i-1}, zero before the first.
        coverage: Add to score=concat how much h_j has been read, C_ij = sum_{k < i} w_kj: v' tanh(W [s; h_j] + Z C_ij).

    Cost:
        M D + 6 D^2 + 6 D + (M + D) D parameters, 3 D^2 for input feeding, D for coverage, and as many for score and
        scope as LuongAttention; O(T S D + T D^2) time, serial in T; 2 D + S numbers of state.

    Reference:
        Luong et al. 2015, 'Effective Approaches to Attention-based Neural Machine Translation';
        Tu et al. 2016, 'Modeling Coverage for Neural Machine Translation' (coverage).
    """

    length_arguments = ("max_len",)

    def __init__(
        self,
        *,
        dim: int,
        memory_dim: int,
        score: str = "general",
        scope: str = "global",
        half_window: int = 10,
        max_len: int | None = None,
        input_feeding: bool = True,
        coverage: bool = False,
    ) -> None:
        super().__init__(dim=dim, memory_dim=memory_dim)
        self.start = projection(memory_dim, dim)  # W of s_0
        self.unit = GatedUnit(input_dim=dim, hidden_dim=dim)
        # The part of y in the gates; the part of x is computed for all positions at once
        self.feed = in_blocks(nn.Linear(dim, 3 * dim, bias=False), *[dim] * 3) if input_feeding else None
        if self.feed is not None:
            nn.init.xavier_uniform_(self.feed.weight)  # as one matrix, like the part of x
        self.coverage = coverage
        self.read = LuongRead(
            query_dim=dim,
            memory_dim=memory_dim,
            out_dim=dim,
            score=score,
            scope=scope,
            half_window=half_window,
            max_len=max_len,
            coverage=coverage,
        )

    shortened_values = staticmethod(_without_local_m)

    class Context(NamedTuple):
        """Parts of the source that LuongRead reads, and the first state (B, D)."""

        memory: Tensor
        keys: Tensor
        mask: Tensor
        start: Tensor

    class State(NamedTuple):
        """The hidden state and the last output, (N, D) each, and C, (N, S), or without coverage a zero, (N, 1)."""

        hidden: Tensor
        output: Tensor
        coverage: Tensor

    def project(self, memory: Tensor, memory_mask: Tensor) -> Luong.Context:
        """Compute the keys of memory (B, S, M), and the first hidden state."""
        start = torch.tanh(self.start(mean_over_positions(memory, memory_mask)))
        return self.Context(*self.read.project(memory, memory_mask), start)

    def forward(self, x: Tensor, context: Luong.Context) -> Tensor:
        """Run the recurrence over x (B, T, D)."""
        position = torch.arange(x.shape[1], device=x.device)[None]  # (1, T)
        if self.feed is None and not self.coverage:
            states = self.unit(x, context.start)  # (B, T, D)
            return self.read(states, KeyedMemory(*context[:3]), position)[0]
        gates = self.unit.input(x)  # (B, T, 3 D)
        state = self._begin(context)
        outputs = []
        # The gates at t depend on the read at t - 1, so positions cannot run in parallel
        for t in range(x.shape[1]):
            state = self._advance(gates[:, t : t + 1], state, context, position[:, t : t + 1])
            outputs.append(state.output)
        return torch.cat(outputs, 1)

    def introspect(self, x: Tensor, context: Luong.Context) -> dict[str, Tensor]:
        """Return the attention weights of each step, (B, 1, T, S); earlier reads that the state holds do not count."""
        return {"weights": self.read_weights(x, context)}

    def read_weights(self, x: Tensor, context: Luong.Context) -> Tensor:
        """Return the attention weights of each step, (B, 1, T, S); with local_p they sum to less than 1."""
        with record_mixing() as weights:
            self.forward(x, context)
        return torch.cat(weights, 1)[:, None]

    def init_state(self, context: Luong.Context, max_len: int) -> Luong.State:
        """Return s_0 of each sentence, and zeros for its output and coverage."""
        return self.State(*(part.squeeze(1) for part in self._begin(context)))

    def step(
        self, x: Tensor, context: Luong.Context, state: Luong.State, position: Tensor
    ) -> tuple[Tensor, Luong.State]:
        """Advance the recurrence by one position; a sentence's hypotheses are queries of one attention."""
        batch_size = context.memory.shape[0]
        gates = self.unit.input(x.view(batch_size, -1, self.dim))  # (B, beam, 3 D)
        folded = self.State(*(part.view(batch_size, gates.shape[1], -1) for part in state))
        following = self._advance(gates, folded, context, position.view(gates.shape[:2]))
        following = self.State(*(part.flatten(0, 1) for part in following))
        return following.output, following

    def _begin(self, context: Luong.Context) -> Luong.State:
        """Return the state before the first position, (B, 1, ...)."""
        hidden = context.start[:, None]  # (B, 1, D)
        slots = context.mask if self.coverage else context.mask[:, :1]
        # Coverage sums many small parts, which needs float32
        coverage = torch.zeros_like(slots, dtype=at_least_float32(hidden.dtype))[:, None]
        return self.State(hidden, torch.zeros_like(hidden), coverage)

    def _advance(self, gates: Tensor, state: Luong.State, context: Luong.Context, position: Tensor) -> Luong.State:
        """Compute the next state from gates (B, n, 3 D), a state (B, n, ...) and position (B or 1, n)."""
        if self.feed is not None:
            gates = gates + self.feed(state.output)
        hidden = self.unit.update(gates, state.hidden)
        output, weights = self.read(hidden, KeyedMemory(*context[:3]), position, state.coverage)
        return self.State(hidden, output, state.coverage + weights if self.coverage else state.coverage)
