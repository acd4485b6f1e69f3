"""Rows of different length, stored in one flat array."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike


class Ragged(NamedTuple):
    """Rows of ids in one flat array, often a memory map: row i is ids[starts[i] : starts[i] + lengths[i]].

    Shape:
        ids: (total,), starts: (N,) int64, lengths: (N,) int32.
    """

    ids: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray

    @classmethod
    def from_lengths(cls, ids: np.ndarray, lengths: np.ndarray) -> Ragged:
        """Cut `ids` into consecutive rows."""
        # int64: a corpus soon has more than 2^31 ids
        return cls(ids, np.cumsum(lengths, dtype=np.int64) - lengths, lengths)

    @classmethod
    def from_rows(
        cls, rows: Sequence[Sequence[int]], *, dtype: DTypeLike = np.int64, prefix: Sequence[int] = ()
    ) -> Ragged:
        """Pack lists of ids, each after `prefix`."""
        lengths = np.fromiter(map(len, rows), dtype=np.int32, count=len(rows)) + np.int32(len(prefix))
        parts = itertools.chain.from_iterable((prefix, row) for row in rows) if prefix else rows
        # `count` allocates once
        ids = np.fromiter(itertools.chain.from_iterable(parts), dtype=dtype, count=int(lengths.sum()))
        return cls.from_lengths(ids, lengths)

    @classmethod
    def joined(cls, parts: Sequence[Ragged]) -> Ragged:
        """Concatenate the rows of all parts."""
        # Rows may be selections of large memory maps: only their own ids are copied
        lengths = np.concatenate([part.lengths for part in parts])
        return cls.from_lengths(np.concatenate([part.ids[part._positions()] for part in parts]), lengths)

    def _positions(self) -> np.ndarray:
        """Return the position of each id of the rows, (total,)."""
        first = np.cumsum(self.lengths, dtype=np.int64) - self.lengths
        # Number the ids without gaps, then add each row's offset in `ids`
        return np.arange(int(self.lengths.sum())) + np.repeat(self.starts - first, self.lengths)

    def select(self, rows: np.ndarray) -> Ragged:
        """Select rows, in the order of `rows`; ids are shared, not copied."""
        return Ragged(self.ids, self.starts[rows], self.lengths[rows])

    def row(self, i: int) -> np.ndarray:
        """Return the ids of row i."""
        return self.ids[self.starts[i] : self.starts[i] + self.lengths[i]]
