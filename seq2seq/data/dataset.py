"""Data sets of encoded pairs, and the loader of their batches."""

from __future__ import annotations

import atexit
import copy
import math
import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from seq2seq.data.batching import Batch, TokenBatchSampler, aligned, collate
from seq2seq.data.ragged import Ragged
from seq2seq.data.token_cache import PairEncoder
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.system.ranks import SIGNALS

# Pairs whose drawn segmentations show how much longer than the best ones they are, and the share that is to have room.
_TRIED_ROWS = 1000
_ROOM = 0.95
# Bytes at a multiple of which each part of a packed batch begins; kernels are compiled anew for pointers that do not.
_ALIGNMENT = 16


class DrawnLengths(NamedTuple):
    """Length to reserve for a sampled segmentation, (1 + growth) n + spread sqrt(n), where the best one has n tokens.

    Args:
        growth: Mean growth of a token.
        spread: Room for most of the draws that are longer than the mean, which vary as a sum of n draws does.
        widest: No room is made beyond this many tokens.
    """

    growth: float
    spread: float
    widest: int

    @classmethod
    def of(cls, best: np.ndarray, drawn: np.ndarray, *, widest: int) -> DrawnLengths:
        """Fit the lengths of draws (N,) to those of the best segmentations (N,)."""
        growth = float(drawn.sum() / best.sum()) - 1
        spread = float(np.quantile((drawn - (1 + growth) * best) / np.sqrt(best), _ROOM))
        return cls(growth, max(spread, 0.0), widest)

    def __call__(self, best: np.ndarray) -> np.ndarray:
        """Return the room for best segmentations of these lengths, never less than they need."""
        room = np.ceil((1 + self.growth) * best + self.spread * np.sqrt(best)).astype(best.dtype)
        return np.maximum(best, np.minimum(room, self.widest))


class PairDataset(Dataset):
    """Data set of encoded pairs; indexed by a whole batch of positions, it returns the padded Batch.

    Args:
        text: The raw pairs, in the order of the ids.
        rows: The rows of ids and text that the split consists of (None: all).
        tags: Ids before every source; those in `src` are there already.
        sample_seed: Seed of subword regularization; None turns it off.
        widest: Most tokens that a drawn segmentation may have (None: as many as the longest best one).
    """

    def __init__(
        self,
        *,
        src: Ragged,
        tgt: Ragged,
        text: Any,
        tokenizer: Tokenizer,
        rows: np.ndarray | None = None,
        tags: list[int] | None = None,
        sample_seed: int | None = None,
        widest: int | None = None,
    ) -> None:
        self.src = src
        self.tgt = tgt
        self.text = text
        self.tokenizer = tokenizer
        self.rows = rows
        self.tags = tags or []
        self.sample_seed = sample_seed
        self.widest = widest
        self.sampler: TokenBatchSampler | None = None
        self.src_multiple = 1

    def __len__(self) -> int:
        """Count the pairs."""
        return len(self.src.lengths) if self.rows is None else len(self.rows)

    def sampled_by(self, sampler: TokenBatchSampler, src_multiple: int) -> PairDataset:
        """Return a shallow copy whose drawn segmentations vary with the epoch of `sampler`.

        Args:
            sampler: Chooses the pairs of each batch.
            src_multiple: As in `collate`.
        """
        data = copy.copy(self)
        data.sampler = sampler
        data.src_multiple = src_multiple
        return data

    @property
    def src_lengths(self) -> np.ndarray:
        """Tokens of every source, (N,)."""
        return self.src.lengths if self.rows is None else self.src.lengths[self.rows]

    @property
    def tgt_lengths(self) -> np.ndarray:
        """Tokens of every target, (N,)."""
        return self.tgt.lengths if self.rows is None else self.tgt.lengths[self.rows]

    @property
    def room(self) -> tuple[np.ndarray, np.ndarray]:
        """Tokens that a batch plans for every source and target, (N,) each; more than they have if draws grow them."""
        if self.sample_seed is None:
            return self.src_lengths, self.tgt_lengths
        src, tgt = self._drawn_lengths
        return src(self.src_lengths), tgt(self.tgt_lengths)

    @cached_property
    def _drawn_lengths(self) -> tuple[DrawnLengths, DrawnLengths]:
        """Of sources and targets, from draws for pairs at equal distances: the same on any rank, after any resume."""
        rows = np.unique(np.linspace(0, len(self) - 1, _TRIED_ROWS).astype(np.int64))
        inside = rows if self.rows is None else self.rows[rows]
        assert self.sample_seed is not None
        drawn = self._draw(inside, self.sample_seed)
        widest = self.widest or int(max(self.src_lengths.max(), self.tgt_lengths.max()))
        best = self.src_lengths[rows], self.tgt_lengths[rows]
        src, tgt = (DrawnLengths.of(old, new.lengths, widest=widest) for old, new in zip(best, drawn, strict=True))
        return src, tgt

    def lines(self, side: str) -> list[str]:
        """Load all text of a side into memory: meant for a split that is scored."""
        return list(self.text[:][side] if self.rows is None else self.text[self.rows.tolist()][side])

    def pairs(self, rows: Sequence[int]) -> list[tuple[str, str]]:
        """Return the text of the pairs at `rows`."""
        inside = rows if self.rows is None else self.rows[rows].tolist()
        text = self.text[inside]
        return list(zip(text["src"], text["tgt"], strict=True))

    def __getitems__(self, rows: np.ndarray) -> Batch:
        """Build the Batch of the pairs at `rows`."""
        rows = np.asarray(rows)
        src, tgt = self.ids(rows)
        special = {"pad_id": self.tokenizer.pad_id, "bos_id": self.tokenizer.bos_id}
        return collate(src, tgt, rows, **special, src_multiple=self.src_multiple)

    def ids(self, rows: np.ndarray) -> tuple[Ragged, Ragged]:
        """Return both sides of the pairs at `rows`."""
        # `rows` count within the split, `inside` within ids and text
        inside = rows if self.rows is None else self.rows[rows]
        src = self.src.select(inside)
        tgt = self.tgt.select(inside)
        # An idle micro-batch has row -1 (see `updates.IDLE`), whose segmentation is no matter
        sampled = self.sample_seed is not None and int(rows[0]) >= 0
        return self._resegment(rows, inside, src, tgt) if sampled else (src, tgt)

    def _resegment(self, rows: np.ndarray, inside: np.ndarray, src: Ragged, tgt: Ragged) -> tuple[Ragged, Ragged]:
        """Sample segmentations; a row that would outgrow the batch keeps its best one, so that the budget holds."""
        # The width that the sampler's budget counted for this batch
        room = (drawn(side.lengths) for drawn, side in zip(self._drawn_lengths, (src, tgt), strict=True))
        width = int(max(lengths.max() for lengths in room))
        epoch = self.sampler.epoch if self.sampler else 0
        # The batch by its first row: the same draw in any worker, on any rank, after any resume
        seed = int(np.random.SeedSequence([self.sample_seed or 0, epoch, int(rows[0])]).generate_state(1)[0])
        sampled = self._draw(inside, seed)
        return no_wider(sampled[0], src, width), no_wider(sampled[1], tgt, width)

    def _draw(self, inside: np.ndarray, seed: int) -> tuple[Ragged, Ragged]:
        """Draw segmentations of both sides of rows of the text."""
        text = self.text[inside.tolist()]
        return PairEncoder(tokenizer=self.tokenizer, tags=self.tags)((text["src"], text["tgt"]), sample_seed=seed)


def no_wider(sampled: Ragged, best: Ragged, width: int) -> Ragged:
    """Return sampled segmentations, but the best one of each row whose sample has more than `width` ids."""
    fits = sampled.lengths <= width
    if fits.all():
        return sampled
    return Ragged.from_rows([(sampled if fits[i] else best).row(i).tolist() for i in range(len(fits))])


class MixedPairs(Dataset):
    """Concatenation of several data sets."""

    def __init__(self, parts: list[PairDataset]) -> None:
        self.parts = parts
        # Part i has the rows from ends[i] - len(part) to ends[i]
        self.ends = np.cumsum([len(part) for part in parts])
        self.src_lengths = np.concatenate([part.src_lengths for part in parts])
        self.tgt_lengths = np.concatenate([part.tgt_lengths for part in parts])

    @property
    def room(self) -> tuple[np.ndarray, np.ndarray]:
        """Tokens that a batch plans for every source and target, (N,) each, as `PairDataset.room`."""
        src, tgt = zip(*(part.room for part in self.parts), strict=True)
        return np.concatenate(src), np.concatenate(tgt)

    def __len__(self) -> int:
        """Count the pairs."""
        return int(self.ends[-1])

    def sampled_by(self, sampler: TokenBatchSampler, src_multiple: int) -> MixedPairs:
        """Return a shallow copy, as `PairDataset.sampled_by` does."""
        data = copy.copy(self)
        data.parts = [part.sampled_by(sampler, src_multiple) for part in self.parts]
        return data

    def lines(self, side: str) -> list[str]:
        """Load all text of a side into memory: meant for a split that is scored."""
        return [line for part in self.parts for line in part.lines(side)]

    def pairs(self, rows: Sequence[int]) -> list[tuple[str, str]]:
        """Return the text of the pairs at `rows`."""
        return [pair for row in rows for part, own in [self._place(row)] for pair in part.pairs([own])]

    def _place(self, row: int) -> tuple[PairDataset, int]:
        """Return the part that has a row, and the row within it."""
        number = int(np.searchsorted(self.ends, row, side="right"))
        part = self.parts[number]
        return part, row - (int(self.ends[number]) - len(part))

    def __getitems__(self, rows: np.ndarray) -> Batch:
        """Build the Batch of the pairs at `rows`."""
        rows = np.asarray(rows)
        which = np.searchsorted(self.ends, rows, side="right")  # (B,): part of each row
        pairs = []
        for number in np.unique(which):
            # One gather for each part, of all its rows in the batch
            part = self.parts[number]
            pairs.append(part.ids(rows[which == number] - (self.ends[number] - len(part))))
        # The pairs come sorted by part: bring them into the order of `rows`.
        order = np.argsort(np.argsort(which, kind="stable"), kind="stable")
        src, tgt = (Ragged.joined(side).select(order) for side in zip(*pairs, strict=True))  # each (B,) rows
        # The same in all parts
        tokenizer, src_multiple = self.parts[0].tokenizer, self.parts[0].src_multiple
        special = {"pad_id": tokenizer.pad_id, "bos_id": tokenizer.bos_id}
        return collate(src, tgt, rows, **special, src_multiple=src_multiple)


class Packed(NamedTuple):
    """Batch as one array of bytes: a worker takes 0.5 ms for the file handle of each tensor that it sends."""

    data: np.ndarray  # (bytes,) uint8
    shape: tuple[int, int, int]  # B, S, T

    @classmethod
    def of(cls, batch: Batch) -> Packed:
        """Pack a batch."""
        shape = batch.src.shape[0], batch.src.shape[1], batch.tgt_in.shape[1]
        sizes = [aligned(dtype.itemsize * math.prod(own), _ALIGNMENT) for own, dtype in _fields(shape)]
        packed = cls(np.empty(sum(sizes), np.uint8), shape)
        for view, part in zip(packed.unpack(), batch, strict=True):
            view.copy_(part)
        return packed

    def unpack(self) -> Batch:
        """Unpack the Batch, as views of the bytes."""
        return views_of(torch.from_numpy(self.data), self.shape)


def views_of(data: Tensor, shape: tuple[int, int, int]) -> Batch:
    """View the bytes (bytes,) of a `Packed`, on any device, as its Batch."""
    views, start = [], 0
    for own, dtype in _fields(shape):
        end = start + dtype.itemsize * math.prod(own)
        views.append(data[start:end].view(dtype).view(own))
        start = aligned(end, _ALIGNMENT)
    return Batch(*views)


def _fields(shape: tuple[int, int, int]) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Return the shapes and types of the fields of a Batch of B, S, T."""
    rows, src, tgt = shape
    ids = [((rows, src), torch.int64), ((rows, tgt), torch.int64)]
    masks = [((rows, src), torch.bool), ((rows, tgt), torch.bool)]
    return [ids[0], masks[0], ids[1], ids[1], masks[1], ((rows,), torch.int64)]


def _unpacked(batches: Iterator[Batch | Packed]) -> Iterator[Batch]:
    for batch in batches:
        yield batch.unpack() if isinstance(batch, Packed) else batch


class PackedLoader(DataLoader):
    """DataLoader of Batches, which its workers send packed.

    Attributes:
        ahead: What turns what workers send into batches, such as their copy to a GPU.
    """

    ahead: Callable[[Iterator[Batch | Packed]], Iterator[Batch]] = staticmethod(_unpacked)

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        """Iterate over the batches."""
        # Workers start with the first batch, not before
        yield from self.ahead(self._start())

    def _start(self) -> Iterator[Batch | Packed]:
        """Start the workers, if there are any."""
        if self.num_workers:
            _end_with_the_process()
        return super().__iter__()


class BatchLoader(PackedLoader):
    """Loader of the batches of a sampler."""

    def __init__(self, dataset: Dataset, *, batch_sampler: Any, num_workers: int) -> None:
        super().__init__(
            dataset,
            batch_sampler=batch_sampler,
            num_workers=num_workers,
            worker_init_fn=ignore_signals,
            # Called in the worker; without workers the batch stays as it is
            collate_fn=Packed.of if num_workers else unchanged,  # type: ignore[arg-type]
        )


def ignore_signals(worker: int) -> None:
    """Ignore, in a worker, a signal to the whole process group: the run saves, and the worker ends with it.

    A worker that the signal ended would take the run with it, before there is a checkpoint.
    """
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@cache
def _end_with_the_process() -> None:
    """Have workers killed when this process exits.

    By default it would send them SIGTERM, which they ignore, and wait: for as long as a stream skips text, or forever.
    """
    atexit.register(_kill_workers)


def _kill_workers() -> None:
    # Torch's handler would report the killed workers as a failure
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for child in multiprocessing.active_children():
        if child.daemon:
            child.kill()


def unchanged(batch: Any) -> Any:
    """Return the batch as the data set made it; DataLoader's own way is to make tensors of arrays."""
    return batch
