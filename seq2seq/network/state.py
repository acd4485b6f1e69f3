"""The state of incremental decoding: caches of the past, the ancestry that they share, and how a beam reorders them.

Shapes: B sentences, N = B * beam hypotheses, a sentence's hypotheses adjacent; L slots of a cache.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias, TypeVar, cast

import torch
from torch import Tensor

from seq2seq.kernels.attention import attention
from seq2seq.kernels.conv_step import conv_step

# The device and type of new tensors; None is torch's default
Device: TypeAlias = torch.device | str | None
DType: TypeAlias = torch.dtype | None


class Ancestry:
    """The beam rows that each hypothesis descends from, position by position: one table for all caches of a state.

    The first cache that a step appends to writes the table; the caches then share the masks and indices of the step.

    Args:
        batch_size: Sentences B.
        slots: Number of slots L; position p is in slot p // stride mod L, so the table keeps only the last positions.
        beam: Hypotheses of each sentence.
        stride: Consecutive positions that share a slot.
    """

    def __init__(self, batch_size: int, slots: int, beam: int, *, stride: int = 1, device: Device = None) -> None:
        self.slots = slots
        self.beam = beam
        self.stride = stride
        # The row that wrote each slot of hypothesis n, (N, L)
        self.owner = torch.zeros(batch_size * beam, slots, device=device, dtype=torch.int64)
        hypothesis = torch.arange(batch_size * beam, device=device)
        self.sentence = hypothesis // beam  # (N,)
        self.row = hypothesis % beam  # (N,)
        # An upper bound on the positions written so far, counted on the host, since reading the device would stall
        self.length = 0
        self.steps = 0
        self._visible: dict[int, Tensor] = {}
        self._bias: dict[tuple[int, torch.dtype], Tensor] = {}
        self._places: dict[tuple[int, int], Tensor] = {}

    @property
    def limit(self) -> int:
        """An upper bound on the slots in use, a multiple of 16 so that captured steps have few shapes."""
        return self._limit(self.length)

    @property
    def next_limit(self) -> int:
        """The limit during the next step."""
        return self._limit(self.length + 1)

    def _limit(self, length: int) -> int:
        used = -(-length // self.stride)
        return min(-(-used // 16) * 16, self.slots)

    def begin(self, position: Tensor) -> None:
        """Begin the step of position (N,), at which each hypothesis is its own ancestor."""
        self.steps += 1
        self.length += 1
        slot = self._time(position) % self.slots
        self.owner.scatter_(1, slot[:, None], self.row[:, None])
        self.forget()

    def _time(self, position: Tensor) -> Tensor:
        """Return the slot of each position in a cache without an end."""
        return position // self.stride if self.stride > 1 else position

    def forget(self) -> None:
        """Drop the masks and indices of the last step."""
        self._visible, self._bias, self._places = {}, {}, {}

    def places(self, slots: int, position: Tensor, parts: int = 1) -> Tensor:
        """Return where each hypothesis writes into the flat memory of a cache of `slots` slots, (N * parts,)."""
        if (slots, parts) not in self._places:
            block, slot, row = self.sentence, self._time(position) % slots, self.row
            if parts > 1:  # each head has its own slots
                block = block[:, None] * parts + torch.arange(parts, device=position.device)
                slot, row = slot[:, None], row[:, None]
            self._places[slots, parts] = ((block * slots + slot) * self.beam + row).flatten()
        return self._places[slots, parts]

    def visible(self, slots: int, position: Tensor) -> Tensor:
        """Return which used slots of a cache of `slots` slots each hypothesis sees, a mask (B, beam, used * beam).

        These are the slots that its ancestors wrote up to its position (N,).
        """
        if slots not in self._visible:
            now, slot = self._time(position)[:, None], torch.arange(min(self.limit, slots), device=position.device)
            owner = self.owner[:, : len(slot)]
            if slots < self.slots:
                # A ring buffer has the last position of each slot, and the table may have an earlier one there
                latest = now - (now - slot) % slots
                owner = self.owner.gather(1, latest.clamp(min=0) % self.slots)
            own = owner[:, :, None] == torch.arange(self.beam, device=position.device)  # (N, used, beam)
            seen = own & (slot <= now)[:, :, None]  # (N, used, beam)
            self._visible[slots] = seen.view(-1, self.beam, len(slot) * self.beam)
        return self._visible[slots]

    def bias(self, slots: int, position: Tensor, dtype: torch.dtype) -> Tensor:
        """Return `visible` as a bias on attention scores, 0 or -inf, (B, beam, used * beam)."""
        # Computed once for all layers: given only the mask, attention would compute this bias in each layer
        if (slots, dtype) not in self._bias:
            visible = self.visible(slots, position)
            bias = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
            self._bias[slots, dtype] = bias.masked_fill_(~visible, float("-inf"))
        return self._bias[slots, dtype]

    def reorder(self, index: Tensor) -> None:
        """Let hypothesis n continue hypothesis index[n] of the same sentence, in place."""
        used = self.owner[:, : self.limit]
        used.copy_(used.index_select(0, index))
        self.forget()

    def first(self, count: int) -> Ancestry:
        """Return the ancestry of the first `count` sentences, which shares the memory of this one."""
        other = copy.copy(self)
        rows = slice(count * self.beam)
        other.owner, other.sentence, other.row = self.owner[rows], self.sentence[rows], self.row[rows]
        other.forget()
        return other


class Cache:
    """Append-only memory of the past, shared by the hypotheses of a sentence.

    Reordering a beam moves no values: it changes the ancestry. `read` reads a cache without heads. `attend` and
    `convolve` read a cache with heads, in which each head's numbers are adjacent in memory.

    Args:
        values: The appended values, (B, L, beam, width) or, by head, (B, G, L, beam, d), written in place.
        ancestry: The beam rows that wrote the slots of each hypothesis; other caches of the beam share it.
        steps: Number of steps at which values were appended.
    """

    def __init__(self, values: Tensor, ancestry: Ancestry, steps: int = 0) -> None:
        self.values = values
        self.slot_axis = values.dim() - 3
        self.ancestry = ancestry
        self.steps = steps

    @classmethod
    def empty(
        cls,
        batch_size: int,
        slots: int,
        width: int,
        *,
        heads: int | None = None,
        stride: int = 1,
        device: Device = None,
        dtype: DType = None,
    ) -> Cache:
        """Allocate `slots` slots of `width` numbers for each sentence, one hypothesis each.

        Args:
            slots: Positions of the longest target or, for a mixer that reads only the last K positions, K: the cache is
                then a ring buffer.
            heads: Number of heads G, which divides the width.
            stride: Consecutive positions that share a slot.
        """
        sizes = (slots, 1, width) if heads is None else (heads, slots, 1, width // heads)
        values = torch.zeros(batch_size, *sizes, device=device, dtype=dtype)
        return cls(values, Ancestry(batch_size, slots, 1, stride=stride, device=device))

    @property
    def owner(self) -> Tensor:
        """The beam row that wrote each slot of each hypothesis, (N, slots of the ancestry)."""
        return self.ancestry.owner

    def append(self, value: Tensor, position: Tensor) -> None:
        """Write value (N, width) at position (N,) of each hypothesis."""
        # The first cache of a step begins it for all caches that share the ancestry
        if self.steps == self.ancestry.steps:
            self.ancestry.begin(position)
        self.steps = self.ancestry.steps
        *_, slots, _, width = self.values.shape
        # In place: a slot has room for every row of the beam, so hypotheses do not collide
        place = self.ancestry.places(slots, position, value.shape[1] // width)
        self.values.view(-1, width).index_copy_(0, place, value.to(self.values.dtype).reshape(-1, width))

    @property
    def slots(self) -> int:
        """The number of slots; the ancestry may have more, for longer caches that share it."""
        return self.values.shape[self.slot_axis]

    @property
    def limit(self) -> int:
        """An upper bound on the slots in use."""
        return min(self.ancestry.limit, self.slots)

    def used(self) -> Tensor:
        """Return the values up to `limit`."""
        return self.values.narrow(self.slot_axis, 0, self.limit)

    def read(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """Return the slots of each sentence up to `limit`, and which of them each hypothesis sees; nothing is copied.

        Returns:
            The slots (B, slots, width), with the rows of a beam innermost, and the mask (B, beam, slots) of the slots
            that a hypothesis's ancestors have written up to its position (N,).
        """
        batch_size, _, beam, width = self.values.shape
        visible = self.ancestry.visible(self.slots, position)
        return self.used().reshape(batch_size, self.limit * beam, width), visible

    def expand(self, ancestry: Ancestry) -> Cache:
        """Return an empty cache for the hypotheses of an ancestry; this cache must be empty, too."""
        # On a CPU, new zeros take memory only where they are written
        assert self.steps == 0
        *sizes, _, width = self.values.shape
        return Cache(self.values.new_zeros(*sizes, ancestry.beam, width), ancestry)

    def attend(self, q: Tensor, values: Cache, position: Tensor, *, weights: str = "softmax") -> Tensor:
        """Attend from q (B, H, beam, d) at position (N,) to the keys here that each hypothesis sees, in G heads.

        Args:
            values: The cache of the values; H / G query heads share a key head and its value head.
            weights: The function of the scores, as in `attention`.
        """
        k, v = (cache.used().to(q.dtype).flatten(2, 3) for cache in (self, values))  # (B, G, slots, d)
        bias = self.ancestry.bias(self.slots, position, q.dtype)[:, None]  # (B, 1, beam, slots)
        groups = q.shape[1] // k.shape[1]
        if groups == 1:
            return attention(q, k, v, bias=bias, weights=weights)
        # Query heads that share keys become further queries of these keys
        folded = q.unflatten(1, (-1, groups)).flatten(2, 3)  # (B, G, groups * beam, d)
        y = attention(folded, k, v, bias=bias.repeat(1, 1, groups, 1), weights=weights)
        return y.unflatten(2, (groups, -1)).flatten(1, 2)

    def convolve(self, weights: Tensor, position: Tensor, *, softmax: bool, backend: str = "auto") -> Tensor:
        """Return the weighted sum of each hypothesis's last K values, the newest at position (N,): (N, G * d).

        Args:
            weights: (N or 1, G, K).
            softmax: Take the softmax of the weights over K first.
            backend: See `seq2seq.kernels.conv_step`.
        """
        return conv_step(self.values, self.owner, position, weights, softmax=softmax, backend=backend)


# A mixer's memory of each hypothesis: a flat NamedTuple of tensors (hypothesis first) and caches.
State: TypeAlias = tuple[Tensor | Cache, ...]
# A cross mixer's view of each source sentence: a flat NamedTuple of tensors (sentence first).
Context: TypeAlias = tuple[Tensor, ...]
# A state, a context, or a nested list or NamedTuple of them; None for an empty slot.
Nested: TypeAlias = "Tensor | Cache | Sequence[Nested] | None"
Tree = TypeVar("Tree", bound=Nested)


class NoState(NamedTuple):
    """The state of a mixer that remembers nothing between steps."""


def expand(state: Tree, beam: int) -> Tree:
    """Repeat a state of one row per sentence `beam` times; caches of the same stride then share an ancestry."""
    shared: dict[int, Ancestry] = {}
    for cache in caches(state):
        own = cache.ancestry
        # The shared ancestry has as many slots as the longest cache
        known = shared.get(own.stride)
        if known is None or known.slots < own.slots:
            sizes = len(cache.values), own.slots, beam
            shared[own.stride] = Ancestry(*sizes, stride=own.stride, device=cache.values.device)
    return _map(
        state,
        lambda tensor: tensor.repeat_interleave(beam, 0),
        lambda cache: cache.expand(shared[cache.ancestry.stride]),
    )


def reorder(state: Tree, index: Tensor) -> Tree:
    """Let hypothesis n continue hypothesis index[n] (N,) of the same sentence; the old state must not be used again."""
    parts = leaves(state)
    for ancestry in ancestries(parts):
        ancestry.reorder(index)
    if not _tensors(parts):
        return state
    return _map(state, lambda tensor: tensor.index_select(0, index), lambda cache: cache)


def first(state: Tree, count: int, beam: int = 1) -> Tree:
    """Return the first `count` sentences of a state or a context; nothing is copied.

    Args:
        beam: Hypotheses of each sentence, 1 for a context.
    """
    kept = {ancestry: ancestry.first(count) for ancestry in ancestries(state)}
    return _map(
        state,
        lambda tensor: tensor[: count * beam],
        lambda cache: Cache(cache.values[:count], kept[cache.ancestry], cache.steps),
    )


def move(state: Nested, sources: Tensor, targets: Tensor, beam: int = 1) -> None:
    """Copy the sentences `sources` of a state or a context over other sentences `targets`, in place."""
    from_rows, to_rows = hypotheses(sources, beam), hypotheses(targets, beam)
    for ancestry in ancestries(state):
        ancestry.owner.index_copy_(0, to_rows, ancestry.owner.index_select(0, from_rows))
    for tensor in _tensors(state):
        tensor.index_copy_(0, to_rows, tensor.index_select(0, from_rows))
    for cache in caches(state):
        used = cache.used()
        used.index_copy_(0, targets, used.index_select(0, sources))


def refill(state: Nested, sentences: Tensor, fresh: Nested, beam: int = 1) -> None:
    """Copy the sentences of `fresh`, a state before its first step or a context, over `sentences`, in place.

    Caches are not cleared: new hypotheses see only the slots that they write themselves.
    """
    rows = hypotheses(sentences, beam)
    for tensor, new in zip(_tensors(state), _tensors(fresh), strict=True):
        tensor.index_copy_(0, rows, new.to(tensor.dtype))


def difference(state: Nested, other: Nested) -> str:
    """Return the reason why `other` cannot be written over `state`; "" if it can."""
    mine, theirs = leaves(state), leaves(other)
    if len(mine) != len(theirs):
        return f"a step returns a state of {len(theirs)} parts, not {len(mine)}"
    for old, new in zip(mine, theirs, strict=True):
        if not (isinstance(old, Tensor) and isinstance(new, Tensor)):
            if old is not new:
                return "a step returns another cache than it was given"
        elif (old.shape, old.dtype, old.device) != (new.shape, new.dtype, new.device):
            shapes = f"{tuple(new.shape)} of {new.dtype}, not {tuple(old.shape)} of {old.dtype}"
            return f"a step returns a state of {shapes}"
    return ""


def overwrite(state: Nested, new: Nested) -> None:
    """Write the state `new`, of the same caches and shapes, over `state`, in place."""
    pairs = [(old, part) for old, part in zip(_tensors(state), _tensors(new), strict=True) if old is not part]
    memory = {old.untyped_storage().data_ptr() for old in _tensors(state)}
    # A new part may be a view of an old one, which must not be written before it is read
    apart = [part.clone() if part.untyped_storage().data_ptr() in memory else part for _, part in pairs]
    for (old, _), part in zip(pairs, apart, strict=True):
        old.copy_(part)


def set_length(state: Nested, length: int) -> None:
    """Set the bound on the positions written so far, which falls when the longest sentences have left."""
    for ancestry in ancestries(state):
        ancestry.length = length


def hypotheses(sentences: Tensor, beam: int) -> Tensor:
    """Return the rows of the hypotheses of these sentences, (sentences * beam,)."""
    return (sentences[:, None] * beam + torch.arange(beam, device=sentences.device)).flatten()


def caches(state: Nested) -> list[Cache]:
    """List the caches of a state."""
    return [leaf for leaf in leaves(state) if isinstance(leaf, Cache)]


def ancestries(state: Nested) -> list[Ancestry]:
    """List the ancestries of a state, each once."""
    return list(dict.fromkeys(cache.ancestry for cache in caches(state)))


def _tensors(state: Nested) -> list[Tensor]:
    return [leaf for leaf in leaves(state) if isinstance(leaf, Tensor)]


def _map(tree: Tree, on_tensor: Callable[[Tensor], Tensor], on_cache: Callable[[Cache], Cache]) -> Tree:
    return rebuild(tree, [on_tensor(leaf) if isinstance(leaf, Tensor) else on_cache(leaf) for leaf in leaves(tree)])


def leaves(tree: Nested) -> list[Tensor | Cache]:
    """List the tensors and caches of a state or a context, in order."""
    if tree is None:  # the state of an empty slot
        return []
    # An exported step has other objects in place of caches, so leaves are not recognized by their type
    if isinstance(tree, (list, tuple)):
        return [leaf for part in tree for leaf in leaves(part)]
    return [cast("Tensor | Cache", tree)]


def rebuild(tree: Tree, parts: Iterable[Tensor | Cache]) -> Tree:
    """Return a state or a context like `tree`, with other leaves."""
    rest = iter(parts)  # an iterator stays itself, so that inner calls go on where outer ones are
    if tree is None:
        return tree
    if not isinstance(tree, list | tuple):
        return cast("Tree", next(rest))
    inner = [rebuild(part, rest) for part in tree]
    if isinstance(tree, list):
        return cast("Tree", inner)
    if type(tree) is tuple:
        return cast("Tree", tuple(inner))
    # NamedTuples are rebuilt as their own type, by position
    return cast("Callable[..., Tree]", type(tree))(*inner)


def shared_ancestries(parts: Sequence[Tensor | Cache]) -> tuple[list[Ancestry], list[int]]:
    """Return the ancestries of the caches among `parts`, each once, and for each cache the index of its ancestry."""
    found = ancestries(parts)
    return found, [found.index(cache.ancestry) for cache in caches(parts)]
