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
    index: Tensor  # type: ignore[assignment]  # (B,) int64, position in the split or a stream's text; -1: idle micro-batch


def padded_width(lengths: np.ndarray | int) -> np.ndarray:
    """Round lengths up to the width of their padding: a multiple of 2 up to 16, of 4 up to 64, then of 8.

    Batches then have few shapes. Matrix libraries prepare a kernel for each shape (on a CPU, a small model trains a
    third slower when every batch has its own shape), and a GPU captures its passes for each shape.
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
            If False, the longest pairs come first, and a row that exceeds the budget is a batch by itself.
        multiple_of: Make the number of batches a multiple of this by halving the fullest ones.

    Raises:
        ValueError: There are too few rows for `multiple_of` batches.
    """
    if not len(src_lengths):
        return []
    # A function of (seed, epoch): a resumed run computes the same batches
    rng = np.random.default_rng([seed, epoch])
    widths = np.unique(padded_width(np.arange(max(src_lengths.max(), tgt_lengths.max()) + 1)))
    keys = _sort_keys(src_lengths, tgt_lengths, widths)  # (N,)
    order = np.arange(len(keys), dtype=np.int32 if len(keys) < 1 << 31 else np.int64)  # (N,)
    if shuffle:
        rng.shuffle(order)
    # A stable sort keeps the shuffled order of equal keys
    order = order[np.argsort(keys[order], kind="stable")]
    # Rows up to the end of each width of the longer side, (widths,)
    limits = 2 * len(widths) * np.arange(1, len(widths) + 1, dtype=keys.dtype)
    ends = np.searchsorted(keys[order], limits).tolist()
    # In training, cleaning has dropped such rows, which would exceed the memory at some later step
    assert not shuffle or widths[-1] <= max_tokens
    # A batch is a range of the sorted rows
    rows = np.maximum(1, max_tokens // np.maximum(1, widths)).tolist()
    batches = [order[start:end] for start, end in pairwise(_boundaries(ends, rows))]
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
        # A row below 0 is padding, see `updates.IDLE`
        tokens += int(lengths.sum(dtype=np.int64, where=rows >= 0))
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


def _sort_keys(src_lengths: np.ndarray, tgt_lengths: np.ndarray, widths: np.ndarray) -> np.ndarray:
    """Number the pairs in the order of batching, (N,): by the longer side, then the shorter; longer targets come first.

    Args:
        widths: All padded widths, ascending.
    """
    number = np.searchsorted(widths, np.arange(widths[-1] + 1))  # (widths[-1] + 1,): of each length's padded width
    # 16 bits if possible, which numpy sorts by counting
    keys = np.empty(len(src_lengths), dtype=np.min_scalar_type(2 * len(widths) ** 2))
    # A million rows at a time, so that temporaries stay small
    for start in range(0, len(keys), 1 << 20):
        part = slice(start, start + (1 << 20))
        src, tgt = number[src_lengths[part]], number[tgt_lengths[part]]
        keys[part] = 2 * (len(widths) * np.maximum(src, tgt) + np.minimum(src, tgt)) + (src > tgt)
    return keys


def _boundaries(ends: list[int], rows: list[int]) -> list[int]:
    """Cut sorted rows greedily into batches, and return their bounds, (batches + 1,).

    Args:
        ends: Rows up to the end of each width, ascending.
        rows: Rows of this width that a batch may have, at least 1.
    """
    bounds = [0]
    width = 0
    while bounds[-1] < ends[-1]:
        start = stop = bounds[-1]
        while ends[width] <= start:
            width += 1
        for wider in range(width, len(ends)):
            # A wider row raises the cost of every row of the batch
            fits = min(ends[wider], start + rows[wider])
            stop = max(stop, fits)
            if fits < ends[wider]:
                break
        bounds.append(stop)
    return bounds


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
