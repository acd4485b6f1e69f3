"""The state of incremental decoding: a cache of the past, and how a beam reorders it.

Shapes: B sentences, N = B * beam hypotheses, a sentence's hypotheses adjacent; L slots of a cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, TypeVar

import torch
from torch import Tensor


class Cache:
    """Append-only memory of the past, shared by the hypotheses of a sentence.

    Reordering a beam moves no values: it index-selects `owner`, the rows that each hypothesis descends from.

    Args:
        values: What was appended, (B, L, beam, width), written in place.
        owner: Which of its sentence's `beam` rows wrote slot t of hypothesis n, (N, L).
        length: Bound on the positions written so far.
    """

    def __init__(self, values: Tensor, owner: Tensor, length: int = 0) -> None:
        self.values = values
        self.owner = owner
        self.length = length

    @classmethod
    def empty(
        cls,
        batch_size: int,
        max_len: int,
        width: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Cache:
        """Allocate `max_len` slots of `width` numbers for each sentence, one hypothesis each."""
        values = torch.zeros(batch_size, max_len, 1, width, device=device, dtype=dtype)  # (B, L, 1, width)
        owner = torch.zeros(batch_size, max_len, device=device, dtype=torch.int64)  # (N, L), N = B
        return cls(values, owner)

    def append(self, value: Tensor, position: Tensor) -> None:
        """Write value (N, width) at position (N,) of each hypothesis."""
        sentence, row = self._rows()
        # in place: a slot has room for every row of the beam, so hypotheses do not collide
        self.values[sentence, position, row] = value.to(self.values.dtype)
        self.owner.scatter_(1, position[:, None], row[:, None])  # from here on its own ancestor
        # a bound, counted on the host: reading positions from the device would stall it
        self.length = min(self.length + 1, self.values.shape[1])

    def read(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """Return all slots of each sentence and which of them each hypothesis sees; nothing is copied.

        Returns:
            The slots (B, slots, width), hypotheses side by side, and the visible ones (B, N / B, slots): those
            of a hypothesis's own ancestors up to its position (N,).
        """
        # rounded up to 16, so that a compiled step meets few shapes
        limit = min(-(-self.length // 16) * 16, self.values.shape[1])
        batch_size, _, beam, width = self.values.shape
        # (B, slots, width), beam rows innermost
        slots = self.values[:, :limit].reshape(batch_size, limit * beam, width)
        time = torch.arange(limit, device=position.device)
        own = self.owner[:, :limit, None] == torch.arange(beam, device=position.device)  # (N, limit, beam)
        visible = own & (time <= position[:, None])[:, :, None]  # (N, limit, beam)
        return slots, visible.view(batch_size, beam, limit * beam)  # (B, beam, slots)

    def expand(self, beam: int) -> Cache:
        """Make room for `beam` hypotheses per sentence, before anything is written."""
        # rows are added while all are empty, so there is nothing to copy; a CPU gives memory only for slots in use
        assert self.length == 0
        assert self.values.shape[2] == 1
        batch_size, slots, _, width = self.values.shape
        values = self.values.new_zeros(batch_size, slots, beam, width)
        return Cache(values, self.owner.repeat_interleave(beam, 0))

    def reorder(self, index: Tensor) -> Cache:
        """Let hypothesis n continue hypothesis index[n] of the same sentence."""
        # (N, L) integers move, (B, L, beam, width) values stay
        return Cache(self.values, self.owner.index_select(0, index), self.length)

    def select(self, sentences: Tensor) -> Cache:
        """Keep only these sentences, with all their hypotheses."""
        values = self.values.index_select(0, sentences)
        rows = self.owner.view(-1, self.values.shape[2], self.owner.shape[1])  # (B, beam, L)
        return Cache(values, rows.index_select(0, sentences).flatten(0, 1), self.length)

    def _rows(self) -> tuple[Tensor, Tensor]:
        """Return the sentence of each hypothesis and its row among the sentence's, both (N,)."""
        hypothesis = torch.arange(self.owner.shape[0], device=self.owner.device)
        beam = self.values.shape[2]
        return hypothesis // beam, hypothesis % beam


# What a mixer remembers of each hypothesis: a flat NamedTuple of tensors (hypothesis first) and caches.
State: TypeAlias = tuple[Tensor | Cache, ...]
# What a cross mixer reads of each source sentence: a flat NamedTuple of tensors (sentence first).
Context: TypeAlias = tuple[Tensor, ...]
# A state, a context, or a nested list or NamedTuple of them; None for an empty slot.
Tree = TypeVar("Tree")


class NoState(NamedTuple):
    """The state of a mixer that remembers nothing between steps."""


def expand(state: Tree, beam: int) -> Tree:
    """Repeat a state, one row per sentence, for each of `beam` hypotheses per sentence."""
    return _map(state, lambda tensor: tensor.repeat_interleave(beam, 0), lambda cache: cache.expand(beam))


def reorder(state: Tree, index: Tensor) -> Tree:
    """Let hypothesis n continue hypothesis index[n], (N,), which must belong to the same sentence."""
    return _map(state, lambda tensor: tensor.index_select(0, index), lambda cache: cache.reorder(index))


def select(state: Tree, sentences: Tensor, beam: int = 1) -> Tree:
    """Keep only these sentences of a state or a context.

    Args:
        state: A state, or a context, whose tensors have one row per sentence.
        sentences: Their indices, in the order in which they stay.
        beam: Hypotheses of each sentence, 1 for a context.
    """
    # of hypotheses, (sentences * beam,)
    rows = (sentences[:, None] * beam + torch.arange(beam, device=sentences.device)).flatten()
    return _map(state, lambda tensor: tensor.index_select(0, rows), lambda cache: cache.select(sentences))


def _map(tree: Any, on_tensor: Callable[[Tensor], Tensor], on_cache: Callable[[Cache], Cache]) -> Any:
    if tree is None:  # the state of an empty slot
        return None
    if isinstance(tree, Tensor):
        return on_tensor(tree)
    if isinstance(tree, Cache):
        return on_cache(tree)
    parts = [_map(part, on_tensor, on_cache) for part in tree]
    # NamedTuples are rebuilt as their own type, by position
    return parts if isinstance(tree, list) else type(tree)(*parts)
