"""Batches with a token budget: composition, order, and padding of ids into tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Sampler

from seq2seq.data.ragged import Ragged

if TYPE_CHECKING:
    from seq2seq.data.multi_corpus import Mixture
    from seq2seq.data.updates import UpdateCut


class Batch(NamedTuple):
    """Right-padded pairs; masks are True at real tokens, and `tgt_in` is bos + `tgt_out` without its last token."""

    src: Tensor  # (B, S) int64
    src_mask: Tensor  # (B, S) bool
    tgt_in: Tensor  # (B, T) int64
    tgt_out: Tensor  # (B, T) int64
    tgt_mask: Tensor  # (B, T) bool
    index: Tensor  # type: ignore[assignment]  # (B,) int64, position in the split


def padded_width(lengths: np.ndarray | int) -> np.ndarray:
    """Round lengths up to the width they are padded to: a multiple of 2 up to 16, of 4 up to 64, then of 8.

    Batches then come in few shapes: matrix libraries prepare a kernel per shape (on a CPU, training tokens/s of a small
    model fall by a third when every batch has its own), and a compiled model is compiled a few times only.
    """
    lengths = np.asarray(lengths)
    # Rounding up adds at most 18% from 9 tokens on
    step = np.where(lengths <= 16, 2, np.where(lengths <= 64, 4, 8))
    # Ceiling division
    return -(-lengths // step) * step


def aligned(width: Any, multiple: int) -> Any:
    """Round a width, or each of an array, up to a multiple of `multiple`."""
    return -(-width // multiple) * multiple


def longest_width(max_tokens: int) -> int:
    """Compute the largest padded width, and so the longest side of a pair, that fits a budget of `max_tokens`."""
    return int(next(width for width in range(max_tokens, 0, -1) if padded_width(width) <= max_tokens))


def token_batches(
    src_lengths: np.ndarray,
    tgt_lengths: np.ndarray,
    *,
    max_tokens: int,
    seed: int = 0,
    epoch: int = 0,
    shuffle: bool = True,
    multiple_of: int = 1,
) -> list[np.ndarray]:
    """Group pairs of similar length into batches with a token budget.

    The cost of a batch is rows * the longer side's `padded_width`. Every index comes once.

    Args:
        src_lengths: (N,) tokens of the sources.
        tgt_lengths: (N,) tokens of the targets.
        max_tokens: Highest cost of a batch.
        shuffle: Draw the members among pairs of equal widths, and the order of batches, from (seed, epoch); the number
            of batches does not depend on them. Otherwise the longest come first.
        multiple_of: Make the number of batches a multiple of this by halving the fullest ones.

    Returns:
        The indices of each batch.

    Raises:
        ValueError: With `shuffle`, a row alone exceeds the budget; otherwise it becomes a batch by itself. Or there are
            too few rows for `multiple_of` batches.
    """
    if not len(src_lengths):
        return []
    # No state beyond (seed, epoch): a resumed run computes the same batches
    rng = np.random.default_rng([seed, epoch])
    classes = _WidthClasses.of(src_lengths, tgt_lengths)
    ranks = classes.rank(src_lengths, tgt_lengths)  # (N,)
    ends = np.cumsum(np.bincount(ranks, minlength=len(classes.cost)))  # (classes,): rows up to the end of each
    order = _stable_order(ranks, rng if shuffle else None)  # (N,)
    widest = int(classes.cost[ranks[order[-1]]])
    # In training it would exceed the memory at some later step; when evaluating it is a batch by itself
    if shuffle and widest > max_tokens:
        first = int(ends[np.searchsorted(classes.cost, widest) - 1]) if widest > classes.cost[0] else 0
        raise ValueError(
            f"pair {order[first]} is {widest} tokens wide when padded, more than max_tokens={max_tokens}: "
            "raise data.max_tokens, or let the cleaning drop it (data.clean.max_length)"
        )
    # A batch is a run of the sorted rows
    bounds = _split_until(_boundaries(ends, classes.cost, max_tokens), multiple_of)
    batches = [order[start:end] for start, end in pairwise(bounds)]
    if shuffle:
        return [batches[i] for i in rng.permutation(len(batches))]
    # Longest first: memory that is too small shows in the first batch
    return batches[::-1]


def padding_share(
    src_lengths: np.ndarray, tgt_lengths: np.ndarray, batches: list[np.ndarray], *, src_multiple: int = 1
) -> float:
    """Compute the share of padding in all cells, source and target together: 1 - tokens / cells."""
    if not batches:
        return 0.0
    rows = np.concatenate(batches)
    sizes = np.fromiter(map(len, batches), dtype=np.int64, count=len(batches))  # (batches,)
    tokens = 0
    cells = 0
    for lengths, multiple in ((src_lengths[rows], src_multiple), (tgt_lengths[rows], 1)):
        tokens += int(lengths.sum(dtype=np.int64))
        # The longest row of each batch: `reduceat` takes the offsets at which batches begin
        widths = padded_width(np.maximum.reduceat(lengths, np.cumsum(sizes) - sizes))  # (batches,)
        cells += int((sizes * aligned(widths, multiple)).sum())
    return 1 - tokens / cells


def batch_shapes(
    src_lengths: np.ndarray, tgt_lengths: np.ndarray, batches: list[np.ndarray], *, src_multiple: int = 1
) -> set[tuple[int, int, int]]:
    """Collect the shapes of batches: rows, source width and target width, as `collate` pads them."""
    found = set()
    for rows in batches:
        src, tgt = (int(padded_width(lengths[rows].max())) for lengths in (src_lengths, tgt_lengths))
        found.add((len(rows), aligned(src, src_multiple), tgt))
    return found


class _WidthClasses(NamedTuple):
    """All pairs of padded widths (source, target) in the order of batching, so that a pair of sentences is one number.

    40 million pairs are then sorted by counting, in a tenth of the time and a third of the memory of their widths.
    """

    width_of: np.ndarray  # (longest length + 1,): index of a length's padded width among the widths
    order_of: np.ndarray  # (widths, widths): position of a source and a target width in the order
    cost: np.ndarray  # (classes,) int64: the wider side, rising

    @classmethod
    def of(cls, src_lengths: np.ndarray, tgt_lengths: np.ndarray) -> _WidthClasses:
        """Order the classes of these pairs: by rising width of the longer side, then of the shorter."""
        longest = int(max(src_lengths.max(), tgt_lengths.max()))
        every = padded_width(np.arange(longest + 1))
        # Only widths that occur: their pairs are W * W, and a single line may have a hundred thousand tokens
        widths = np.unique(every[_occurring(src_lengths, longest) | _occurring(tgt_lengths, longest)])
        src, tgt = (side.ravel() for side in np.meshgrid(widths, widths, indexing="ij"))  # (W * W,)
        longer = np.maximum(src, tgt).astype(np.int64)
        # One sort key: the longer side in the high bits, then the shorter, then which side it is
        order = np.argsort(((longer << 31) | np.minimum(src, tgt)) * 2 + (src > tgt))
        # The inverse permutation; 16 bits where they do, which numpy sorts by counting
        position = np.empty(order.shape, dtype=np.uint16 if len(order) <= 1 << 16 else np.uint32)
        position[order] = np.arange(len(order))
        width_of = np.searchsorted(widths, every).astype(np.uint32)
        return cls(width_of, position.reshape(len(widths), -1), longer[order])

    def rank(self, src_lengths: np.ndarray, tgt_lengths: np.ndarray) -> np.ndarray:
        """Compute the class of every pair, (N,)."""
        ranks = np.empty(len(src_lengths), dtype=self.order_of.dtype)
        # A million rows at a time, so that temporaries stay small
        for start in range(0, len(ranks), 1 << 20):
            part = slice(start, start + (1 << 20))
            ranks[part] = self.order_of[self.width_of[src_lengths[part]], self.width_of[tgt_lengths[part]]]
        return ranks


def _occurring(lengths: np.ndarray, longest: int) -> np.ndarray:
    """Mark the lengths from 0 to `longest` that occur, (longest + 1,)."""
    found = np.zeros(longest + 1, dtype=bool)
    # A million rows at a time: `bincount` makes a copy of 8 bytes a row
    for start in range(0, len(lengths), 1 << 20):
        found |= np.bincount(lengths[start : start + (1 << 20)], minlength=longest + 1) > 0
    return found


def _stable_order(ranks: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
    """Sort indices by rising class; `rng` shuffles those of a class."""
    start = np.arange(len(ranks), dtype=np.int32 if len(ranks) < 1 << 31 else np.int64)
    if rng is not None:
        rng.shuffle(start)
    # A stable sort keeps the shuffled order within each class
    return start[np.argsort(ranks[start], kind="stable")]


def _boundaries(ends: np.ndarray, cost: np.ndarray, max_tokens: int) -> np.ndarray:
    """Cut rows, in classes of rising cost that end before `ends`, greedily into batches: (batches + 1,) positions."""
    last = np.flatnonzero(np.diff(cost, append=cost[-1] + 1))  # of the classes that cost the same
    # Classes of one cost are filled alike, so merge them
    ends = ends[last]  # (distinct costs,)
    cost = cost[last]
    bounds = [np.zeros(1, dtype=np.int64)]
    start = 0
    for i, end in enumerate(ends.tolist()):
        # Batches of cheaper classes have taken all rows of this one
        if start >= end:
            continue
        # A row wider than the budget is a batch by itself
        rows = max(1, max_tokens // max(1, int(cost[i])))
        bounds.append(np.arange(start + rows, end + 1, rows))
        start += len(bounds[-1]) * rows
        # The rows left over share their batch with costlier ones
        if start < end:
            start = _fill_up(start, i, ends, max_tokens // np.maximum(cost, 1))
            bounds.append(np.array([start]))
    return np.concatenate(bounds)


def _fill_up(start: int, i: int, ends: np.ndarray, rows: np.ndarray) -> int:
    """Find the end of a batch that begins with the last rows of class i and takes costlier ones while they fit."""
    stop = int(ends[i])
    for later in range(i + 1, len(ends)):
        # With one costlier row, every row of the batch costs as much
        fits = min(int(ends[later]), start + int(rows[later]))
        if fits < int(ends[later]):
            return max(stop, fits)
        stop = fits
    return stop


def _split_until(bounds: np.ndarray, multiple_of: int) -> np.ndarray:
    """Halve the batches of most rows until their number divides by `multiple_of`: nothing is dropped or repeated."""
    while missing := -(len(bounds) - 1) % multiple_of:
        rows = np.diff(bounds)
        fullest = np.argsort(-rows, kind="stable")[:missing]
        # A batch of one row cannot be halved; another round halves the halves of others
        fullest = fullest[rows[fullest] > 1]
        if fullest.size == 0:
            raise ValueError(
                f"{int(bounds[-1])} sentences cannot be cut into {multiple_of} batches, for as many processes or the "
                "parts of a large data.batch_tokens: use fewer devices, smaller updates or more data"
            )
        bounds = np.sort(np.concatenate([bounds, bounds[fullest] + rows[fullest] // 2]))
    return bounds


def exactly(batches: list[np.ndarray], count: int) -> list[np.ndarray]:
    """Return `count` batches: halve the fullest if there are fewer, leave out the last if there are more.

    Raises:
        ValueError: There are fewer rows than `count`.
    """
    batches = batches[:count]
    if (total := sum(map(len, batches))) < count:
        raise ValueError(f"{total} sentences cannot be cut into {count} batches: raise data.max_tokens, or add data")
    while missing := count - len(batches):
        rows = np.fromiter(map(len, batches), dtype=np.int64, count=len(batches))
        # From the end, so that earlier positions stay valid while the list grows
        for i in sorted(np.argsort(-rows, kind="stable")[:missing].tolist(), reverse=True):
            if (half := len(batches[i]) // 2) > 0:
                batches[i : i + 1] = [batches[i][:half], batches[i][half:]]
    return batches


class TokenBatchSampler(Sampler[np.ndarray]):
    """Batch sampler with a token budget, of one rank.

    Every index comes once per epoch over all ranks, ranks have equally many batches, and the order is a function of
    (seed, epoch). Batches are computed on first use, and `len` raises ValueError for impossible settings. Lightning
    calls `set_epoch` of a batch sampler's `sampler` and of nothing else, hence that property.

    Args:
        window: Micro-batches of an update on each rank. A window on one rank is the same update as a micro-batch on
            each of `window` ranks: the number of batches is a multiple of window * world_size where there are enough
            sentences, of world_size in any case.
        cut: Cuts updates, whose parts have `max_tokens`, into micro-batches, which are then the batches. None leaves
            the parts whole, and an update is a window of them.
        mixture: Draws the rows of every epoch (None: each has every row once). Their lengths differ by epoch, but the
            number of batches is that of epoch 0: the fullest are halved, or the last ones, in random order, left out;
            in a mixture of two corpora with 196 batches that was two at most.
    """

    def __init__(
        self,
        *,
        src_lengths: np.ndarray,
        tgt_lengths: np.ndarray,
        max_tokens: int,
        seed: int = 0,
        shuffle: bool = True,
        rank: int = 0,
        world_size: int = 1,
        window: int = 1,
        cut: UpdateCut | None = None,
        mixture: Mixture | None = None,
    ) -> None:
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} is not in a world of {world_size}")
        self.src_lengths = src_lengths
        self.tgt_lengths = tgt_lengths
        self.max_tokens = max_tokens
        self.seed = seed
        self.shuffle = shuffle
        self.rank = rank
        self.world_size = world_size
        self.window = window
        self.cut = cut
        self.mixture = mixture
        self.epoch = 0
        self.start = 0  # batches that the next iteration skips
        self._cached: tuple[int, list[np.ndarray]] | None = None  # (epoch, batches)

    @property
    def sampler(self) -> TokenBatchSampler:
        """This sampler itself: Lightning looks for `set_epoch` here."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order the next iteration has."""
        self.epoch = int(epoch)

    def seek(self, *, epoch: int, step: int) -> None:
        """Let the next iteration (only) begin at this rank's batch `step` of `epoch`."""
        if not 0 <= step <= len(self):
            raise ValueError(f"step {step} is outside the epoch's {len(self)} batches")
        self.epoch = int(epoch)
        # `__iter__` resets it
        self.start = int(step)

    def batches(self) -> list[np.ndarray]:
        """Compute the epoch's batches of all ranks, in order; batch i of rank r is number i * world_size + r."""
        if self._cached is None or self._cached[0] != self.epoch:
            batches = self._batches_of(self.epoch)
            # A mixture's later epochs have as many as its first
            if self.mixture and self.epoch:
                batches = exactly(batches, self._count)
            if self.cut:
                order = {"seed": self.seed, "epoch": self.epoch}
                batches = self.cut.apply(batches, self.src_lengths, self.tgt_lengths, **order)
            self._cached = (self.epoch, batches)
        return self._cached[1]

    @cached_property
    def _count(self) -> int:
        """Batches of a mixture's first epoch, over all ranks, before they are cut."""
        return len(self._batches_of(0))

    def _batches_of(self, epoch: int) -> list[np.ndarray]:
        """Compute the batches of an epoch's rows, however many they are."""
        if self.mixture is None:
            return self._token_batches(epoch, self.src_lengths, self.tgt_lengths)
        rows = self.mixture.rows(epoch)
        # Positions within `rows`, mapped back to positions in the split
        return [rows[inside] for inside in self._token_batches(epoch, self.src_lengths[rows], self.tgt_lengths[rows])]

    def _token_batches(self, epoch: int, *lengths: np.ndarray) -> list[np.ndarray]:
        # Every rank computes all batches, and takes its share in `__iter__`: no communication
        options = {"max_tokens": self.max_tokens, "seed": self.seed, "epoch": epoch, "shuffle": self.shuffle}
        if self.cut:
            return token_batches(*lengths, **options, multiple_of=self.cut.parts)
        if self.window > 1:
            with contextlib.suppress(ValueError):  # too few sentences for whole windows
                return token_batches(*lengths, **options, multiple_of=self.window * self.world_size)
        return token_batches(*lengths, **options, multiple_of=self.world_size)

    def __iter__(self) -> Iterator[np.ndarray]:
        """Iterate over the index arrays of this rank, from the position that `seek` set."""
        start = self.start
        self.start = 0
        # Strided: in evaluation, ranks decode batches of similar length at the same time
        yield from self.batches()[self.rank :: self.world_size][start:]

    def __len__(self) -> int:
        """Count the batches of a rank in a whole epoch: the same for every rank and epoch."""
        return len(self.batches()) // self.world_size


def collate(src: Ragged, tgt: Ragged, index: np.ndarray, *, pad_id: int, bos_id: int, src_multiple: int = 1) -> Batch:
    """Pad ids that end in eos into a Batch.

    Args:
        src: Exactly the sources of the batch.
        tgt: Their targets.
        index: (B,) positions in the split.
        src_multiple: S is rounded up to a multiple of this, too (see `seq2seq.training.machine.hardware.src_multiple`).
    """
    src_ids, src_mask = _pad(src, pad_id, src_multiple)  # (B, S)
    tgt_out, tgt_mask = _pad(tgt, pad_id)  # (B, T)
    # Teacher forcing: step t reads y_(t-1), the first one bos
    tgt_in = np.full_like(tgt_out, bos_id)
    tgt_in[:, 1:] = tgt_out[:, :-1]
    # The shift puts the eos of a shorter row on its first padded position
    tgt_in[~tgt_mask] = pad_id
    arrays = (src_ids, src_mask, tgt_in, tgt_out, tgt_mask, np.asarray(index, dtype=np.int64))
    return Batch(*map(torch.from_numpy, arrays))


def _pad(rows: Ragged, pad_id: int, multiple: int = 1) -> tuple[np.ndarray, np.ndarray]:
    width = aligned(int(padded_width(rows.lengths.max())), multiple) if len(rows.lengths) else 0
    columns = np.arange(width)  # (W,)
    mask = columns < rows.lengths[:, None]  # (B, W)
    ids = np.full(mask.shape, pad_id, dtype=np.int64)
    # One gather for all rows: flat positions of the real cells, in row order like `ids[mask]`
    ids[mask] = rows.ids[(rows.starts[:, None] + columns)[mask]]
    return ids, mask
