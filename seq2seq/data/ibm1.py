"""Lexical translation probabilities t(e | f), by expectation maximization of IBM Model 1 on pairs of ids.

Reference:
    Brown et al. 1993, 'The Mathematics of Statistical Machine Translation: Parameter Estimation', section 4.2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from seq2seq.data.ragged import Ragged

# Cells of the matrices source x target that are computed at a time.
_CELLS = 1 << 21
# Most entries of a table, of 16 bytes each; entries with the least counts are dropped.
MOST_ENTRIES = 1 << 26

# Sources and targets, row by row.
Block = tuple[Sequence[Sequence[int]], Sequence[Sequence[int]]]


class LexicalTable(NamedTuple):
    """Table t(e | f) of the ids that occur together in a sentence pair; t is 0 for all others.

    Attributes:
        keys: f * tgt_size + e, sorted, (n,); f = src_size is the empty word.
        probs: t(e | f), (n,).
    """

    keys: np.ndarray
    probs: np.ndarray
    tgt_size: int

    def best(self, count: int, src_size: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the `count` most probable e of each f, best first.

        Returns:
            starts (src_size + 1,) and tokens: f has tokens[starts[f] : starts[f + 1]].
        """
        source, target = np.divmod(self.keys, self.tgt_size)
        order = np.lexsort((-self.probs, source))
        first = np.searchsorted(source, np.arange(src_size + 1))
        rank = np.arange(len(order)) - np.append(first, len(order))[source]
        kept = order[(rank < count) & (source < src_size)]
        starts = np.searchsorted(source[kept], np.arange(src_size + 1))
        return starts.astype(np.int64), target[kept].astype(np.int32)


def lexical_table(
    blocks: Callable[[], Iterable[Block]],
    *,
    src_size: int,
    tgt_size: int,
    iterations: int,
    most: int = MOST_ENTRIES,
    progress: Callable[[int, int], None] = lambda done, entries: None,
) -> LexicalTable:
    """Estimate t(e | f) by `iterations` iterations of EM, from equal probabilities.

    c(e, f) = sum over sentence pairs, e_j and f_i of t(e_j | f_i) / sum_k t(e_j | f_k), where each source also has an
    empty word, and t(e | f) = c(e, f) / sum_e' c(e', f).

    Args:
        blocks: Opens the corpus at its beginning, once for each iteration.
        progress: Called after each iteration with its number and the entries of the table.
    """
    keys, counts = _collect(blocks(), src_size, tgt_size, most)
    table = _normalized(keys, counts, tgt_size)
    progress(1, len(keys))
    for iteration in range(2, iterations + 1):
        counts = np.zeros(len(keys))
        for cells in _cells(blocks(), src_size):
            at, weights = _expected(table, *cells)
            counts += np.bincount(at, weights, minlength=len(keys))
        table = _normalized(keys, counts, tgt_size)
        progress(iteration, len(keys))
    return table


def _cells(blocks: Iterable[Block], null: int) -> Iterator[tuple[Ragged, np.ndarray]]:
    """Yield the cells of a corpus, a bounded number at a time; pairs with an empty side have none.

    Returns:
        A row of source ids for each of T target positions, the empty word `null` included; the target ids, (T,).
    """
    for sources, targets in blocks:
        pairs = [pair for pair in zip(sources, targets, strict=True) if all(pair)]
        sizes = [(len(source) + 1) * len(target) for source, target in pairs]
        parts = np.cumsum(sizes, dtype=np.int64) // _CELLS
        for part in np.unique(parts):
            inside = np.flatnonzero(parts == part)
            source = Ragged.from_rows([[*pairs[i][0], null] for i in inside])
            target = Ragged.from_rows([pairs[i][1] for i in inside])
            yield Ragged.joined([source.select(np.repeat(np.arange(len(inside)), target.lengths))]), target.ids


def _keys(source: Ragged, target: np.ndarray, tgt_size: int) -> np.ndarray:
    return source.ids * tgt_size + np.repeat(target, source.lengths)


def _expected(table: LexicalTable, source: Ragged, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the entry of each cell and its expected count; a cell without an entry counts 0."""
    keys = _keys(source, target, table.tgt_size)
    at = np.minimum(np.searchsorted(table.keys, keys), len(table.keys) - 1)
    probs = np.where(table.keys[at] == keys, table.probs[at], 0.0)
    sums = np.add.reduceat(probs, source.starts)
    # All entries of a target may have been dropped
    sums[sums == 0] = 1.0
    return at, probs / np.repeat(sums, source.lengths)


def _collect(blocks: Iterable[Block], src_size: int, tgt_size: int, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the keys of all cells, and their expected counts if all t are equal."""
    keys, counts = np.zeros(0, np.int64), np.zeros(0)
    waiting: list[tuple[np.ndarray, np.ndarray]] = []
    size = 0
    for source, target in _cells(blocks, src_size):
        found, inverse = np.unique(_keys(source, target, tgt_size), return_inverse=True)
        waiting.append((found, np.bincount(inverse, np.repeat(1.0 / source.lengths, source.lengths))))
        size += len(found)
        # Merge when more entries wait than have been merged, so that an entry is merged only a few times
        if size > max(len(keys), _CELLS):
            keys, counts = _merged([(keys, counts), *waiting], most)
            waiting, size = [], 0
    keys, counts = _merged([(keys, counts), *waiting], most)
    if not len(keys):
        raise ValueError("the corpus has no sentence pair with text on both sides")
    return keys, counts


def _merged(parts: Sequence[tuple[np.ndarray, np.ndarray]], most: int) -> tuple[np.ndarray, np.ndarray]:
    """Add counts by key; if there are more than `most` entries, keep the most / 2 with the largest counts."""
    keys, inverse = np.unique(np.concatenate([keys for keys, _ in parts]), return_inverse=True)
    counts = np.bincount(inverse, np.concatenate([counts for _, counts in parts]), minlength=len(keys))
    if len(keys) > most:
        kept = np.sort(np.argpartition(-counts, most // 2)[: most // 2])
        keys, counts = keys[kept], counts[kept]
    return keys, counts


def _normalized(keys: np.ndarray, counts: np.ndarray, tgt_size: int) -> LexicalTable:
    source = keys // tgt_size
    totals = np.bincount(source, counts)
    # The counts of a word may underflow if other words explain all its targets
    totals[totals == 0] = 1.0
    return LexicalTable(keys, counts / totals[source], tgt_size)
