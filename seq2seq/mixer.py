"""The contract of a token mixer: the part of an encoder-decoder that moves information between positions.

Shapes: B sentences, S source length, T target length, D width, N = B * beam hypotheses, a sentence's adjacent.
Masks are boolean, True = a real token; batches are right-padded.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from seq2seq.introspection import MixingProperties

# What a mixer keeps per hypothesis: a flat NamedTuple of tensors (hypothesis first) and caches.
State = Any
# What a cross mixer keeps per source sentence: a flat NamedTuple of tensors (sentence first).
Context = Any


class NoState(NamedTuple):
    """The state of a mixer that remembers nothing between steps."""


class Cache:
    """What grows with the target: preallocated, append-only, aware of which slots each hypothesis descends from.

    `values` (B, L, beam, *width) is written in place and never reordered; `owner` (N, L) says which of its
    sentence's rows wrote slot t of hypothesis n. Reordering a beam only index-selects `owner`.
    """

    def __init__(self, values: Tensor, owner: Tensor, length: int = 0) -> None:
        self.values, self.owner, self.length = values, owner, length

    @classmethod
    def empty(cls, batch_size: int, max_len: int, width: int, *, device: Any = None, dtype: Any = None) -> Cache:
        """A cache of `max_len` slots of `width` numbers for each of `batch_size` sentences, one row each."""
        values = torch.zeros(batch_size, max_len, 1, width, device=device, dtype=dtype)
        return cls(values, torch.zeros(batch_size, max_len, device=device, dtype=torch.int64))

    def append(self, value: Tensor, position: Tensor) -> None:
        """Write value (N, width) at position (N,) of each hypothesis."""
        sentence, row = self._places()
        self.values[sentence, position, row] = value.to(self.values.dtype)
        self.owner.scatter_(1, position[:, None], row[:, None])
        self.length = min(self.length + 1, self.values.shape[1])

    def read(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """All slots of a sentence, (B, slots, width), and which each hypothesis sees, (B, N / B, slots).

        Nothing is copied: hypotheses of a sentence share its slots and differ in what is visible to them.
        The slots returned are bounded by the positions written, rounded up to 16 so that shapes stay few.
        """
        limit = min(-(-self.length // 16) * 16, self.values.shape[1])
        batch_size, _, beam, width = self.values.shape
        slots = self.values[:, :limit].reshape(batch_size, limit * beam, width)
        time = torch.arange(limit, device=position.device)
        mine = self.owner[:, :limit, None] == torch.arange(beam, device=position.device)  # (N, limit, beam)
        visible = mine & (time <= position[:, None])[:, :, None]
        return slots, visible.view(batch_size, beam, limit * beam)

    def expand(self, beam: int) -> Cache:
        """Room for `beam` hypotheses per sentence; only before anything is written."""
        assert self.length == 0
        assert self.values.shape[2] == 1
        values = self.values.repeat(1, 1, beam, 1)
        return Cache(values, self.owner.repeat_interleave(beam, 0))

    def reorder(self, index: Tensor) -> Cache:
        """Hypothesis n continues hypothesis index[n] of the same sentence."""
        return Cache(self.values, self.owner.index_select(0, index), self.length)

    def select(self, sentences: Tensor) -> Cache:
        """Keep only these sentences, with all their hypotheses."""
        rows = self.owner.view(-1, self.values.shape[2], self.owner.shape[1])
        return Cache(self.values.index_select(0, sentences), rows.index_select(0, sentences).flatten(0, 1), self.length)

    def _places(self) -> tuple[Tensor, Tensor]:
        hypothesis = torch.arange(self.owner.shape[0], device=self.owner.device)
        beam = self.values.shape[2]
        return hypothesis // beam, hypothesis % beam


def _map(state: Any, on_tensor: Callable[[Tensor], Tensor], on_cache: Callable[[Cache], Cache]) -> Any:
    if state is None:
        return None
    if isinstance(state, Tensor):
        return on_tensor(state)
    if isinstance(state, Cache):
        return on_cache(state)
    parts = [_map(part, on_tensor, on_cache) for part in state]
    return parts if isinstance(state, list) else type(state)(*parts)


def expand(state: State, beam: int) -> State:
    """The same state for each of `beam` hypotheses per sentence."""
    return _map(state, lambda t: t.repeat_interleave(beam, 0), lambda c: c.expand(beam))


def reorder(state: State, index: Tensor) -> State:
    """Hypothesis n continues hypothesis index[n], (N,), which must belong to the same sentence."""
    return _map(state, lambda t: t.index_select(0, index), lambda c: c.reorder(index))


def select(state: State | Context, sentences: Tensor, beam: int = 1) -> Any:
    """Keep only these sentences (beam = hypotheses per sentence; 1 for a Context)."""
    rows = (sentences[:, None] * beam + torch.arange(beam, device=sentences.device)).flatten()
    return _map(state, lambda t: t.index_select(0, rows), lambda c: c.select(sentences))


class SelfMixer(nn.Module, ABC):
    """Mixes a sequence with itself: (B, T, dim) -> (B, T, out_dim).

    A causal one lets position t see positions <= t only, and also has `init_state` and `step`, which together
    compute `forward` one position at a time. An encoder-only mixer raises ValueError on causal=True.
    """

    dim: int
    out_dim: int
    causal: bool
    state_growth = "linear"  # of the state in the target's length: "linear" (holds a Cache) or "constant"
    properties: MixingProperties | None = (
        None  # what `python -m seq2seq.inspect --atlas` holds the mixer to; None: nothing
    )

    @abstractmethod
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Mix x (B, T, dim) under mask (B, T)."""

    def introspect(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:
        """What `python -m seq2seq.inspect` draws of this mixer besides its mixing matrix, by name; nothing by default.

        "kernels": fixed ones (H, K); "predicted kernels": along x, (B, T, H, K); "weights": (B, H, T, T); any other
        name: a number for each head, (H,), where "centers" c, (H,) or (H, 2: row, column), and "sharpness" a of scores
        -a |d - c|^2 are drawn together.
        """
        return {}

    def init_state(self, batch_size: int, max_len: int, *, device: Any = None, dtype: Any = None) -> State:
        """The state before the first position of `batch_size` sentences of at most `max_len` positions."""
        raise ValueError(f"{type(self).__name__} cannot decode step by step; build it with causal=True")

    def step(self, x: Tensor, state: State, position: Tensor) -> tuple[Tensor, State]:
        """One position: x (N, dim), position (N,) -> (N, out_dim) and the next state; the old one is used up."""
        raise ValueError(f"{type(self).__name__} cannot decode step by step; build it with causal=True")


class CrossMixer(nn.Module, ABC):
    """Mixes the source into the target: (B, T, dim) and a memory (B, S, memory_dim) -> (B, T, out_dim)."""

    dim: int
    out_dim: int
    memory_dim: int
    state_growth = "constant"

    @abstractmethod
    def project(self, memory: Tensor, memory_mask: Tensor) -> Context:
        """What of memory (B, S, memory_dim), mask (B, S), is computed once per source sentence."""

    @abstractmethod
    def forward(self, x: Tensor, context: Context) -> Tensor:
        """Mix the source into x (B, T, dim), whole sequences."""

    def introspect(self, x: Tensor, context: Context) -> dict[str, Tensor]:
        """As SelfMixer.introspect; weights over the source are (B, heads, T, S)."""
        return {}

    def init_state(self, context: Context, max_len: int) -> State:
        """The state before the first position, one row per source sentence."""
        return NoState()

    @abstractmethod
    def step(self, x: Tensor, context: Context, state: State, position: Tensor) -> tuple[Tensor, State]:
        """One position: x (N, dim), position (N,) -> (N, out_dim) and the next state; the old one is used up."""


def require_divisible(dim: int, parts: int, what: str = "num_heads") -> int:
    """dim / parts, or a ValueError that names both and the remedy."""
    if parts < 1 or dim % parts:
        good = [n for n in range(1, dim + 1) if dim % n == 0 and n <= 64]
        raise ValueError(f"dim {dim} is not divisible by {what} {parts}; choose {what} from {good}")
    return dim // parts


def require_probability(value: float, what: str) -> float:
    """value if 0 <= value < 1, else a ValueError."""
    if not 0.0 <= value < 1.0:
        raise ValueError(f"{what} is {value}; choose a probability from 0 up to, not including, 1")
    return value
