"""Data sets of encoded pairs, and the loader of their batches."""

from __future__ import annotations

import atexit
import copy
import math
import multiprocessing
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_convert

from seq2seq.data.augmentation import NAMES, Augmentation
from seq2seq.data.batching import Batch, aligned, collate
from seq2seq.data.context import sentence_lengths, sentence_of
from seq2seq.data.languages import NO_TAGS, Tags
from seq2seq.data.ragged import Ragged
from seq2seq.data.token_cache import Encoded, PairEncoder
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.data.updates import TokenBatchSampler
from seq2seq.system.errors import CorpusFault
from seq2seq.system.ranks import SIGNALS

# Number of pairs whose sampled segmentations are compared with the best ones, and the share of them that must fit.
_TRIED_ROWS = 1000
_ROOM = 0.95
# Each part of a packed batch begins at a multiple of this many bytes, for which kernels are compiled.
_ALIGNMENT = 16


class DrawnLengths(NamedTuple):
    """Length to reserve for a sampled segmentation, (1 + growth) n + spread sqrt(n), where the best one has n tokens.

    Args:
        growth: Mean relative growth of the number of tokens.
        spread: Room for lengths above the mean, in units of sqrt(n), like the standard deviation of a sum of n draws.
        widest: Most tokens to reserve, unless the best segmentation has more.
    """

    growth: float
    spread: float
    widest: int

    @classmethod
    def of(cls, best: np.ndarray, drawn: np.ndarray, *, widest: int) -> DrawnLengths:
        """Fit the lengths of sampled segmentations (N,), given the lengths of the best ones (N,)."""
        growth = float(drawn.sum() / best.sum()) - 1
        spread = float(np.quantile((drawn - (1 + growth) * best) / np.sqrt(best), _ROOM))
        return cls(growth, max(spread, 0.0), widest)

    def __call__(self, best: np.ndarray) -> np.ndarray:
        """Return the lengths to reserve, given the lengths of the best segmentations; never fewer tokens than these."""
        room = np.ceil((1 + self.growth) * best + self.spread * np.sqrt(best)).astype(best.dtype)
        return np.maximum(best, np.minimum(room, self.widest))


@dataclass(kw_only=True, eq=False)
class EncodedCorpus:
    """Encoded pairs of a corpus in one split.

    Args:
        text: The raw pairs, in the order of the ids.
        rows: The rows of ids and text in the split (None: all).
        tags: Ids before every source and target, which `src` and `tgt` already contain.
        sample_seed: Seed of subword regularization; None turns it off.
        widest: Most tokens of a sampled segmentation or changed line (None: the length of the longest best
            segmentation).
        augment: Changes of pairs that vary with the epoch.
    """

    src: Ragged
    tgt: Ragged
    text: Any
    tokenizer: Tokenizer
    rows: np.ndarray | None = None
    tags: Tags = NO_TAGS
    sample_seed: int | None = None
    widest: int | None = None
    augment: Augmentation | None = None

    def __len__(self) -> int:
        """Count the pairs."""
        return len(self.src.lengths) if self.rows is None else len(self.rows)

    @property
    def lengths(self) -> tuple[np.ndarray, np.ndarray]:
        """Tokens of every source and target, (N,) each."""
        src, tgt = self.src.lengths, self.tgt.lengths
        return (src, tgt) if self.rows is None else (src[self.rows], tgt[self.rows])

    @property
    def pieces(self) -> tuple[np.ndarray, np.ndarray]:
        """Pieces of every source and target, (N,) each, without tags, context and eos."""
        own = sentence_lengths(self.src, self.tokenizer.separator)
        # Tags are before the context
        own = own - np.where(own == self.src.lengths, len(self.tags.source), 0)
        return (own if self.rows is None else own[self.rows]) - 1, self.lengths[1] - 1 - len(self.tags.target)

    def room(self, epoch: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Tokens that a batch reserves for every source and target, (N,) each: more than `lengths` if they vary.

        Args:
            epoch: None for the most in any epoch.
        """
        if not self._varies:
            return self.lengths
        # A million rows at a time, so that temporaries stay small
        starts = range(0, len(self), 1 << 20)
        parts = [self._reserved(np.arange(i, min(i + (1 << 20), len(self))), epoch) for i in starts]
        return _concatenated(parts)

    @property
    def _varies(self) -> bool:
        return self.sample_seed is not None or self.augment is not None

    def _reserved(self, rows: np.ndarray, epoch: int | None) -> tuple[np.ndarray, np.ndarray]:
        inside = self._inside(rows)
        best = self.src.lengths[inside], self.tgt.lengths[inside]
        kinds = None if epoch is None else self._kinds(rows, epoch)
        reserved = best[0].copy(), best[1].copy()
        for kind, drawn in self._drawn_lengths.items():
            these = slice(None) if kinds is None else kinds == kind
            for own, old, room in zip(reserved, best, drawn, strict=True):
                own[these] = np.maximum(own[these], room(old[these]))
        return reserved

    def _inside(self, rows: np.ndarray) -> np.ndarray:
        """Convert positions in the split to positions in ids and text."""
        return rows if self.rows is None else self.rows[rows]

    def _kinds(self, rows: np.ndarray, epoch: int) -> np.ndarray:
        return self.augment.kinds(rows, epoch) if self.augment else np.zeros(len(rows), dtype=np.int8)

    @cached_property
    def _drawn_lengths(self) -> dict[int, tuple[DrawnLengths, DrawnLengths]]:
        """Lengths to reserve on both sides by the kind of change, fitted to the same sample on any rank."""
        rows = np.unique(np.linspace(0, len(self) - 1, _TRIED_ROWS).astype(np.int64))
        best = self.lengths
        widest = self.widest or int(max(side.max() for side in best))
        fitted = {}
        # Unchanged lines vary with sampling alone
        kinds = [0] if self.sample_seed is not None else []
        kinds += [i for i, name in enumerate(NAMES, 1) if self.augment and getattr(self.augment.shares, name)]
        for kind in kinds:
            drawn = self._draw(rows, np.full(len(rows), kind), epoch=0, seed=self.sample_seed)
            sides = zip(best, drawn, strict=True)
            src, tgt = (DrawnLengths.of(old[rows], new.lengths, widest=widest) for old, new in sides)
            fitted[kind] = src, tgt
        return fitted

    def lines(self, side: str) -> list[str]:
        """Load all text of a side, without context, into memory: meant for validation and test."""
        lines = self.text[:][side] if self.rows is None else self.text[self.rows.tolist()][side]
        return list(map(sentence_of, lines))

    def pairs(self, rows: np.ndarray) -> list[tuple[str, str]]:
        """Return the text of the pairs at `rows`, without context."""
        text = self.text[self._inside(rows).tolist()]
        return list(zip(map(sentence_of, text["src"]), text["tgt"], strict=True))

    def ids(self, rows: np.ndarray, epoch: int = 0) -> tuple[Ragged, Ragged]:
        """Return both sides of the pairs at `rows`; changes and sampled segmentations vary with the epoch."""
        inside = self._inside(rows)
        src = self.src.select(inside)
        tgt = self.tgt.select(inside)
        # An idle micro-batch (`updates.IDLE`) has row -1, and needs no sample
        if not self._varies or int(rows[0]) < 0:
            return src, tgt
        kinds = self._kinds(rows, epoch)
        seed = None
        again = np.flatnonzero(kinds)
        if self.sample_seed is not None:
            # Seeded by the first row: the same sample in any worker, on any rank, after any resume
            seed = int(np.random.SeedSequence([self.sample_seed, epoch, int(rows[0])]).generate_state(1)[0])
            again = np.arange(len(rows))
        if not again.size:
            return src, tgt
        # The width that the sampler's budget counted for this batch
        width = int(max(lengths.max() for lengths in self._reserved(rows, epoch)))
        drawn = self._draw(rows[again], kinds[again], epoch=epoch, seed=seed)
        best = src.select(again), tgt.select(again)
        new = no_wider(drawn, best, width, together=kinds[again] > 0)
        place = np.arange(len(rows))
        place[again] = len(rows) + np.arange(len(again))
        return Ragged.joined([src, new[0]]).select(place), Ragged.joined([tgt, new[1]]).select(place)

    def _draw(self, rows: np.ndarray, kinds: np.ndarray, *, epoch: int, seed: int | None) -> Encoded:
        """Encode rows of the text again, changed by `kinds`; with a seed, sample segmentations."""
        found = self.text[self._inside(rows).tolist()]
        text = found["src"], found["tgt"]
        if self.augment:
            text = self.augment(text, kinds, rows, epoch)
        return PairEncoder(tokenizer=self.tokenizer, tags=self.tags)(text, sample_seed=seed)


def no_wider(drawn: Encoded, best: Encoded, width: int, *, together: np.ndarray) -> Encoded:
    """Replace each row of more than `width` ids by the best segmentation of the unchanged text.

    Args:
        together: (N,) True at pairs that change as a whole: both sides are replaced if one is too wide.
    """
    fits = [side.lengths <= width for side in drawn]
    whole = ~together | (fits[0] & fits[1])
    sides = []
    for new, old, own in zip(drawn, best, fits, strict=True):
        kept = own & whole
        place = np.arange(len(kept)) + np.where(kept, 0, len(kept))
        sides.append(new if kept.all() else Ragged.joined([new, old]).select(place))
    return sides[0], sides[1]


class PairDataset(Dataset):
    """Data set of a split: the pairs of its corpora, one corpus after another, read as padded Batches."""

    def __init__(self, parts: list[EncodedCorpus]) -> None:
        self.parts = parts
        # Part i has the rows ends[i] - len(part) to ends[i]
        self.ends = np.cumsum([len(part) for part in parts])
        self.sampler: TokenBatchSampler | None = None
        self.src_multiple = 1

    def __len__(self) -> int:
        """Count the pairs."""
        return int(self.ends[-1])

    @property
    def lengths(self) -> tuple[np.ndarray, np.ndarray]:
        """Tokens of every source and target, (N,) each."""
        return _concatenated([part.lengths for part in self.parts])

    def room(self, epoch: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Tokens that a batch reserves for every source and target, as in `EncodedCorpus.room`."""
        return _concatenated([part.room(epoch) for part in self.parts])

    @property
    def augmented(self) -> bool:
        """True if pairs are changed, so that lengths differ between epochs."""
        return any(part.augment for part in self.parts)

    def sampled_by(self, sampler: TokenBatchSampler, src_multiple: int) -> PairDataset:
        """Return a shallow copy whose sampled segmentations vary with the epoch of `sampler`.

        Args:
            src_multiple: The width of a batch's source is a multiple of this.
        """
        data = copy.copy(self)
        data.sampler = sampler
        data.src_multiple = src_multiple
        return data

    def lines(self, side: str) -> list[str]:
        """Load all text of a side into memory: meant for validation and test."""
        return [line for part in self.parts for line in part.lines(side)]

    def pairs(self, rows: Sequence[int]) -> list[tuple[str, str]]:
        """Return the text of the pairs at `rows`."""
        found = []
        for row in rows:
            number = int(np.searchsorted(self.ends, row, side="right"))
            part = self.parts[number]
            found += part.pairs(np.array([row - (self.ends[number] - len(part))]))
        return found

    def ids(self, rows: np.ndarray) -> tuple[Ragged, Ragged]:
        """Return both sides of the pairs at `rows`."""
        epoch = self.sampler.epoch if self.sampler else 0
        if len(self.parts) == 1:
            return self.parts[0].ids(rows, epoch)
        which = np.searchsorted(self.ends, rows, side="right")  # (B,): the part of each row
        pairs = []
        for number in np.unique(which):
            part = self.parts[number]
            pairs.append(part.ids(rows[which == number] - (self.ends[number] - len(part)), epoch))
        # From the order of the parts to the order of `rows`
        order = np.argsort(np.argsort(which, kind="stable"), kind="stable")
        src, tgt = (Ragged.joined(side).select(order) for side in zip(*pairs, strict=True))  # each (B,) rows
        return src, tgt

    def __getitems__(self, rows: np.ndarray) -> Batch:
        """Build the Batch of the pairs at `rows`."""
        rows = np.asarray(rows)
        tokenizer = self.parts[0].tokenizer
        special = {"pad_id": tokenizer.pad_id, "bos_id": tokenizer.bos_id}
        return collate(*self.ids(rows), rows, **special, src_multiple=self.src_multiple)


def _concatenated(sides: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Concatenate the sides of several corpora; a single corpus keeps its memory maps, without a copy."""
    if len(sides) == 1:
        return sides[0]
    src, tgt = zip(*sides, strict=True)
    return np.concatenate(src), np.concatenate(tgt)


class Packed(NamedTuple):
    """Batch as one array of bytes: sending a tensor would cost a worker 0.5 ms for its file handle."""

    data: np.ndarray  # (bytes,) uint8
    shape: tuple[int, int, int]  # B, S, T

    @classmethod
    def of(cls, batch: Batch) -> Packed:
        shape = batch.src.shape[0], batch.src.shape[1], batch.tgt_in.shape[1]
        sizes = [aligned(dtype.itemsize * math.prod(own), _ALIGNMENT) for own, dtype in _fields(shape)]
        packed = cls(np.empty(sum(sizes), np.uint8), shape)
        for view, part in zip(packed.unpack(), batch, strict=True):
            view.copy_(part)
        return packed

    def unpack(self) -> Batch:
        """Return the Batch as views of the bytes."""
        return views_of(torch.from_numpy(self.data), self.shape)


def views_of(data: Tensor, shape: tuple[int, int, int]) -> Batch:
    """Return the Batch of a `Packed` as views of its bytes (bytes,), on any device."""
    views, start = [], 0
    for own, dtype in _fields(shape):
        end = start + dtype.itemsize * math.prod(own)
        views.append(data[start:end].view(dtype).view(own))
        start = aligned(end, _ALIGNMENT)
    return Batch(*views)


def _fields(shape: tuple[int, int, int]) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """List the shape and type of each field of a Batch with the sizes B, S, T."""
    rows, src, tgt = shape
    ids = [((rows, src), torch.int64), ((rows, tgt), torch.int64)]
    masks = [((rows, src), torch.bool), ((rows, tgt), torch.bool)]
    return [ids[0], masks[0], ids[1], ids[1], masks[1], ((rows,), torch.int64)]


def _unpacked(batches: Iterator[Batch | Packed]) -> Iterator[Batch]:
    for batch in batches:
        yield batch.unpack() if isinstance(batch, Packed) else batch


class PackedLoader(DataLoader):
    """DataLoader of Batches, which its workers send packed.

    Args:
        batching: `batch_sampler`, or `batch_size=None` for a data set that yields batches.

    Attributes:
        ahead: Unpacks the batches that the workers send; may copy them to a GPU ahead of time.
    """

    ahead: Callable[[Iterator[Batch | Packed]], Iterator[Batch]] = staticmethod(_unpacked)

    def __init__(self, dataset: Dataset, *, num_workers: int, **batching: Any) -> None:
        # Called in the worker; without workers, a batch stays as it is
        collate_fn: Any = Packed.of if num_workers else default_convert
        workers: dict[str, Any] = {"num_workers": num_workers, "worker_init_fn": _ignore_signals}
        super().__init__(dataset, collate_fn=collate_fn, **workers, **batching)

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        """Iterate over the batches."""
        try:
            # Workers start when the first batch is requested
            yield from self.ahead(self._start())
        except (ValueError, RuntimeError) as error:
            # Torch puts a worker's traceback into the message
            if found := _OF_WORKER.fullmatch(str(error)):
                raise (CorpusFault if found[1] == CorpusFault.__name__ else ValueError)(found[2].strip()) from None
            raise

    def _start(self) -> Iterator[Batch | Packed]:
        """Start the workers, if there are any."""
        if self.num_workers:
            # Once, however often workers start
            atexit.unregister(_kill_workers)
            atexit.register(_kill_workers)
        return super().__iter__()


_OF_WORKER = re.compile(
    r"Caught .* in DataLoader worker .*\n(?:\w+\.)*(ValueError|LineError|CorpusFault): (.*)", re.DOTALL
)


def _ignore_signals(worker: int) -> None:
    """Ignore signals to the process group in a worker: without the worker, the run would end before it has saved."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _kill_workers() -> None:
    """Kill workers when this process exits; by default, it would send a SIGTERM, which they ignore, and wait."""
    # Torch's handler would report the killed workers as a failure
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for child in multiprocessing.active_children():
        if child.daemon:
            child.kill()
