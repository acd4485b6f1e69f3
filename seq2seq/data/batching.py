"""Batches with a token budget: their members, their order, and the padding of ids into tensors."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from seq2seq.data.ragged import Ragged


class Batch(NamedTuple):
    """Right-padded pairs; masks are True at real tokens, and `tgt_in` is bos + `tgt_out` without its last token."""

    src: Tensor  # (B, S) int64
    src_mask: Tensor  # (B, S) bool
    tgt_in: Tensor  # (B, T) int64
    tgt_out: Tensor  # (B, T) int64
    tgt_mask: Tensor  # (B, T) bool
    index: Tensor  # type: ignore[assignment]  # (B,) int64, position in the split


def padded_width(lengths: np.ndarray | int) -> np.ndarray:
    """Round lengths up to the width of their padding: a multiple of 2 up to 16, of 4 up to 64, then of 8.

    Batches then have few shapes. Matrix libraries prepare a kernel for each shape (on a CPU, a small model trains a
    third slower when every batch has its own shape), and a compiled model is compiled for each shape.
    """
    lengths = np.asarray(lengths)
    # From 9 tokens on, rounding adds at most 18%
    step = np.where(lengths <= 16, 2, np.where(lengths <= 64, 4, 8))
    # Ceiling division
    return -(-lengths // step) * step


def aligned(width: Any, multiple: int) -> Any:
    """Round a width, or each width of an array, up to a multiple of `multiple`."""
    return -(-width // multiple) * multiple


def longest_width(max_tokens: int) -> int:
    """Compute the largest padded width that fits a budget of `max_tokens`; no side of a pair may be longer."""
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
    """Group pairs of similar length into batches with a token budget; each pair is in one batch.

    The cost of a batch is rows * the longer side's `padded_width`.

    Args:
        src_lengths: (N,) tokens of the sources.
        tgt_lengths: (N,) tokens of the targets.
        max_tokens: Highest cost of a batch.
        shuffle: Shuffle pairs of equal widths, and the order of batches, by (seed, epoch); their number stays the same.
            If False, the longest pairs come first.
        multiple_of: Make the number of batches a multiple of this by halving the fullest ones.

    Raises:
        ValueError: A row exceeds the budget and `shuffle` is set (otherwise it is a batch by itself), or there are too
            few rows for `multiple_of` batches.
    """
    if not len(src_lengths):
        return []
    # A function of (seed, epoch): a resumed run computes the same batches
    rng = np.random.default_rng([seed, epoch])
    classes = _WidthClasses.of(src_lengths, tgt_lengths)
    ranks = classes.rank(src_lengths, tgt_lengths)  # (N,)
    ends = np.cumsum(np.bincount(ranks, minlength=len(classes.cost)))  # (classes,): rows up to the end of each
    order = np.arange(len(ranks), dtype=np.int32 if len(ranks) < 1 << 31 else np.int64)  # (N,)
    if shuffle:
        rng.shuffle(order)
    # A stable sort keeps the shuffled order within each class
    order = order[np.argsort(ranks[order], kind="stable")]
    widest = int(classes.cost[ranks[order[-1]]])
    # In training, such a row would exceed the memory at some later step
    if shuffle and widest > max_tokens:
        first = int(ends[np.searchsorted(classes.cost, widest) - 1]) if widest > classes.cost[0] else 0
        raise ValueError(
            f"pair {order[first]} is {widest} tokens wide when padded, more than max_tokens={max_tokens}: "
            "raise data.max_tokens, or let the cleaning drop it (data.clean.max_length)"
        )
    # A batch is a range of the sorted rows
    batches = [order[start:end] for start, end in pairwise(_boundaries(ends, classes.cost, max_tokens))]
    batches = exactly(batches, aligned(len(batches), multiple_of))
    if shuffle:
        return [batches[i] for i in rng.permutation(len(batches))]
    # Longest first: too little memory shows in the first batch
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
        # The longest row of each batch, by the offsets at which batches begin
        widths = padded_width(np.maximum.reduceat(lengths, np.cumsum(sizes) - sizes))  # (batches,)
        cells += int((sizes * aligned(widths, multiple)).sum())
    return 1 - tokens / cells


def batch_shapes(
    src_lengths: np.ndarray, tgt_lengths: np.ndarray, batches: list[np.ndarray], *, src_multiple: int = 1
) -> set[tuple[int, int, int]]:
    """Collect the shapes of batches as `collate` pads them: rows, source width and target width."""
    found = set()
    for rows in batches:
        src, tgt = (int(padded_width(lengths[rows].max())) for lengths in (src_lengths, tgt_lengths))
        found.add((len(rows), aligned(src, src_multiple), tgt))
    return found


class _WidthClasses(NamedTuple):
    """Class numbers of all pairs of padded widths (source, target), in the order of batching.

    A counting sort orders 40 million sentence pairs by these numbers in a tenth of the time and a third of the memory.
    """

    width_of: np.ndarray  # (longest length + 1,): index of each length's padded width
    order_of: np.ndarray  # (widths, widths): class of each source and target width
    cost: np.ndarray  # (classes,) int64: the wider side, ascending

    @classmethod
    def of(cls, src_lengths: np.ndarray, tgt_lengths: np.ndarray) -> _WidthClasses:
        """Order the classes by the longer side, then by the shorter side; longer targets come first in a tie."""
        longest = int(max(src_lengths.max(), tgt_lengths.max()))
        every = padded_width(np.arange(longest + 1))
        # Only widths that occur: there are W * W pairs, and a single line may have a hundred thousand tokens
        widths = np.unique(every[_occurring(src_lengths, longest) | _occurring(tgt_lengths, longest)])
        src, tgt = (side.ravel() for side in np.meshgrid(widths, widths, indexing="ij"))  # (W * W,)
        longer = np.maximum(src, tgt).astype(np.int64)
        order = np.lexsort((src > tgt, np.minimum(src, tgt), longer))  # the last key counts first
        # The inverse permutation, in 16 bits if possible, which numpy sorts by counting
        position = np.empty(order.shape, dtype=np.uint16 if len(order) <= 1 << 16 else np.uint32)
        position[order] = np.arange(len(order))
        width_of = np.searchsorted(widths, every).astype(np.uint32)
        return cls(width_of, position.reshape(len(widths), -1), longer[order])

    def rank(self, src_lengths: np.ndarray, tgt_lengths: np.ndarray) -> np.ndarray:
        """Return the class of every pair, (N,)."""
        ranks = np.empty(len(src_lengths), dtype=self.order_of.dtype)
        # A million rows at a time, so that temporaries stay small
        for start in range(0, len(ranks), 1 << 20):
            part = slice(start, start + (1 << 20))
            ranks[part] = self.order_of[self.width_of[src_lengths[part]], self.width_of[tgt_lengths[part]]]
        return ranks


def _occurring(lengths: np.ndarray, longest: int) -> np.ndarray:
    """Mark the lengths from 0 to `longest` that occur, (longest + 1,)."""
    found = np.zeros(longest + 1, dtype=bool)
    # A million rows at a time: `bincount` copies 8 bytes a row
    for start in range(0, len(lengths), 1 << 20):
        found |= np.bincount(lengths[start : start + (1 << 20)], minlength=longest + 1) > 0
    return found


def _boundaries(ends: np.ndarray, cost: np.ndarray, max_tokens: int) -> np.ndarray:
    """Cut sorted rows greedily into batches, and return their bounds, (batches + 1,).

    Args:
        ends: (classes,) rows up to the end of each class.
        cost: (classes,) tokens that a row costs, ascending.
    """
    # Merge classes of equal cost, which are filled alike
    last = np.flatnonzero(np.diff(cost, append=cost[-1] + 1))
    ends = ends[last]  # (distinct costs,)
    cost = cost[last]
    bounds = [np.zeros(1, dtype=np.int64)]
    start = 0
    for i, end in enumerate(ends.tolist()):
        # A batch of cheaper classes has taken all rows of this one
        if start >= end:
            continue
        # A row wider than the budget is a batch by itself
        rows = max(1, max_tokens // max(1, int(cost[i])))
        bounds.append(np.arange(start + rows, end + 1, rows))
        start += len(bounds[-1]) * rows
        # The remaining rows share a batch with costlier ones
        if start < end:
            start = _fill_up(start, i, ends, max_tokens // np.maximum(cost, 1))
            bounds.append(np.array([start]))
    return np.concatenate(bounds)


def _fill_up(start: int, i: int, ends: np.ndarray, rows: np.ndarray) -> int:
    """Find the end of a batch that holds the last rows of class i and as many costlier rows as fit."""
    stop = int(ends[i])
    for later in range(i + 1, len(ends)):
        # A costlier row raises the cost of every row of the batch
        fits = min(int(ends[later]), start + int(rows[later]))
        if fits < int(ends[later]):
            return max(stop, fits)
        stop = fits
    return stop


def exactly(batches: list[np.ndarray], count: int) -> list[np.ndarray]:
    """Return `count` batches: halve the fullest if there are fewer, leave out the last if there are more.

    Raises:
        ValueError: There are fewer rows than `count`.
    """
    batches = batches[:count]
    if (total := sum(map(len, batches))) < count:
        raise ValueError(
            f"{total} sentences cannot be cut into {count} batches, for as many processes or the parts of a large "
            "data.batch_tokens: use fewer devices, smaller updates, larger batches (data.max_tokens) or more data"
        )
    while missing := count - len(batches):
        rows = np.fromiter(map(len, batches), dtype=np.int64, count=len(batches))
        # From the end, so that earlier positions stay valid while the list grows
        for i in sorted(np.argsort(-rows, kind="stable")[:missing].tolist(), reverse=True):
            if (half := len(batches[i]) // 2) > 0:
                batches[i : i + 1] = [batches[i][:half], batches[i][half:]]
    return batches


def collate(src: Ragged, tgt: Ragged, index: np.ndarray, *, pad_id: int, bos_id: int, src_multiple: int = 1) -> Batch:
    """Pad ids that end in eos into a Batch.

    Args:
        index: (B,) positions in the split.
        src_multiple: S is also a multiple of this (see `seq2seq.training.machine.hardware.src_multiple`).
    """
    src_ids, src_mask = _pad(src, pad_id, src_multiple)  # (B, S)
    tgt_out, tgt_mask = _pad(tgt, pad_id)  # (B, T)
    # Teacher forcing: step t reads y_(t-1), and the first step reads bos
    tgt_in = np.full_like(tgt_out, bos_id)
    tgt_in[:, 1:] = tgt_out[:, :-1]
    # The shift moved the eos of a shorter row to its first padded position
    tgt_in[~tgt_mask] = pad_id
    arrays = (src_ids, src_mask, tgt_in, tgt_out, tgt_mask, np.asarray(index, dtype=np.int64))
    return Batch(*map(torch.from_numpy, arrays))


def _pad(rows: Ragged, pad_id: int, multiple: int = 1) -> tuple[np.ndarray, np.ndarray]:
    width = aligned(int(padded_width(rows.lengths.max())), multiple) if len(rows.lengths) else 0
    columns = np.arange(width)  # (W,)
    mask = columns < rows.lengths[:, None]  # (B, W)
    ids = np.full(mask.shape, pad_id, dtype=np.int64)
    # One gather for all rows, in the order of `ids[mask]`
    ids[mask] = rows.ids[(rows.starts[:, None] + columns)[mask]]
    return ids, mask
