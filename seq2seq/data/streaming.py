"""Streaming of training text (`data.streaming=true`), for corpora that do not fit on the disk."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from torch.utils.data import IterableDataset

from seq2seq.data.augmentation import Augmentation
from seq2seq.data.batching import Batch, collate, longest_width, padding_share, token_batches
from seq2seq.data.cleaning import Cleaner, Pairs, length_rules
from seq2seq.data.context import sentence_lengths
from seq2seq.data.dataset import Packed, PackedLoader, no_wider
from seq2seq.data.fingerprints import corpus_fingerprint
from seq2seq.data.multi_corpus import NamedCorpus
from seq2seq.data.ragged import Ragged
from seq2seq.data.raw_pairs import open_split
from seq2seq.data.text_files import warn_once
from seq2seq.data.token_cache import PairEncoder
from seq2seq.data.updates import UpdateCut
from seq2seq.system.errors import CorpusFault, LineError

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class TrainingStream:
    """Training text that is read during training.

    Args:
        part: The corpus, with only its training split.
        shuffle_buffer: Pairs that are shuffled and cut into batches together.
    """

    part: NamedCorpus
    shuffle_buffer: int
    cache_dir: Path

    @functools.cached_property
    def whole_fingerprint(self) -> str:
        """Hash of the whole text and its rules."""
        return corpus_fingerprint(self.part.corpus)

    @property
    def fingerprint(self) -> str:
        """Hash of the text and its rules, with the size of the buffers and the limit."""
        # The buffer's size decides which pairs are batched together
        text = f"{self.whole_fingerprint}-{self.shuffle_buffer}"
        limit = self.part.corpus.limit
        return text if limit is None else f"{text}-{limit}"

    def blocks(self, most: float = math.inf) -> Iterator[Pairs]:
        """Read the raw text up to `most` and `data.limit` pairs: choosing a sample would mean reading all of it."""
        limit = self.part.corpus.limit
        most = min(most, math.inf if limit is None else limit)
        left = most
        for src, tgt in open_split("train", self.part.corpus, cache_dir=self.cache_dir, streaming=True):
            kept = int(min(left, len(src)))
            yield src[:kept], tgt[:kept]
            left -= kept
            if left <= 0:
                return
        if limit is not None:
            warn_once(f"data.limit={limit} is more than the {most - left:,} pairs of the stream: all are used")


class _Buffer(NamedTuple):
    """Encoded pairs, and the position of each in the text, from 0."""

    src: Ragged
    tgt: Ragged
    positions: np.ndarray


@dataclasses.dataclass(kw_only=True, eq=False)
class PairStream(IterableDataset):
    """Endless data set of batches: repeats the text, and keeps every `world_size`-th pair for this rank.

    One buffer of pairs after another is filled, shuffled and cut into batches. The order is a function of the text, the
    settings, (rank, world_size) and the seed, and does not depend on the number of workers (0 or 1). A rank may be some
    batches ahead of another rank in the text, since there is no end of an epoch on which ranks must agree.

    Args:
        text: The text; its rule `duplicates` is ignored.
        max_tokens: Highest cost of a batch, as in `token_batches`.
        cut: Cuts updates of such batches into micro-batches; None leaves them whole.

    Raises:
        ValueError: While iterating: no pair is left after cleaning.
    """

    text: TrainingStream
    encoder: PairEncoder
    max_tokens: int
    seed: int
    rank: int = 0
    world_size: int = 1
    src_multiple: int = 1
    cut: UpdateCut | None = None
    augment: Augmentation | None = None

    def __post_init__(self) -> None:
        # Remembering all pairs would take unbounded memory
        self.clean = dataclasses.replace(self.text.part.corpus.clean, duplicates=False)
        self.start = 0  # batches that the next iteration skips

    def __iter__(self) -> Iterator[Batch]:
        """Iterate over the batches after `start`."""
        # Read `start` now, not at the first batch, since `StreamLoader` resets it
        start = self.start
        self.start = 0
        return self._batches(start)

    def _batches(self, start: int) -> Iterator[Batch]:
        tokenizer = self.encoder.tokenizer
        cuts = ((buffer, rows) for i, buffer in enumerate(self._buffers()) for rows in self._cut(buffer, i))
        # Resuming reads the text again: skipped batches are cut but not collated
        for buffer, rows in itertools.islice(cuts, start, None):
            special = {"pad_id": tokenizer.pad_id, "bos_id": tokenizer.bos_id, "src_multiple": self.src_multiple}
            # A row below 0 is ignored, see `updates.IDLE`
            index = np.where(rows < 0, rows, buffer.positions[rows])
            yield collate(buffer.src.select(rows), buffer.tgt.select(rows), index, **special)

    def first_padding(self) -> float:
        """Compute the share of padding in the first shuffle buffer."""
        buffer = next(self._buffers())
        cut = self._cut(buffer, 0)
        return padding_share(buffer.src.lengths, buffer.tgt.lengths, cut, src_multiple=self.src_multiple)

    def _cut(self, buffer: _Buffer, number: int) -> list[np.ndarray]:
        lengths = buffer.src.lengths, buffer.tgt.lengths
        # Each buffer of each rank has its own order
        epoch = number * self.world_size + self.rank
        parts = self.cut.parts if self.cut else 1
        tokens = int(np.maximum(*lengths).sum())
        if self.cut and number == 0 and tokens < self.max_tokens * parts:
            log.warning(
                "a shuffle buffer of %s pairs has %s tokens, fewer than an update needs (%s): raise "
                "data.shuffle_buffer, or lower data.batch_tokens",
                f"{len(buffer.positions):,}",
                f"{tokens:,}",
                f"{self.max_tokens * parts:,}",
            )
        batches = token_batches(*lengths, max_tokens=self.max_tokens, seed=self.seed, epoch=epoch, multiple_of=parts)
        return self.cut.apply(batches, *lengths, seed=self.seed, epoch=epoch) if self.cut else batches

    def _buffers(self) -> Iterator[_Buffer]:
        """Collect this rank's pairs, `shuffle_buffer` at a time, and repeat the text.

        The last pairs of a round form a smaller buffer; if updates are cut, these pairs begin the next buffer instead.
        """
        blocks: list[_Buffer] = []
        for number in itertools.count():
            empty = True
            for block in self._encoded(number):
                blocks.append(block)
                # A round without a single pair would repeat forever
                empty = empty and not len(block.positions)
                if sum(len(each.positions) for each in blocks) >= self.text.shuffle_buffer:
                    yield _joined(blocks)
                    blocks = []
            if not self.cut and any(len(each.positions) for each in blocks):
                yield _joined(blocks)
                blocks = []
            if empty:
                raise ValueError(
                    "no training pair of the stream is left: check data.train, data.clean and data.max_tokens"
                )

    def _encoded(self, round_number: int) -> Iterator[_Buffer]:
        """Clean and encode this rank's pairs, block by block."""
        corpus = self.text.part.corpus
        cleaner = Cleaner(self.clean, languages=(corpus.src, corpus.tgt))
        first = 0  # position of the block's first pair in the text
        for number, (src, tgt) in enumerate(self._read(round_number)):
            # Positions p with p % world_size == rank, counted from the block's start
            mine = range((self.rank - first) % self.world_size, len(src), self.world_size)
            ours = [src[i] for i in mine], [tgt[i] for i in mine]
            kept = cleaner.keep(ours)
            positions = first + np.asarray(mine, dtype=np.int64)[kept]
            # Samples differ by round and block
            sample = int(np.random.SeedSequence([self.seed, round_number, number]).generate_state(1)[0])
            # All ranks read all blocks, so that they agree on positions
            first += len(src)
            text = [ours[0][i] for i in kept], [ours[1][i] for i in kept]
            yield self._encode(text, positions, round_number=round_number, sample_seed=sample)

    def _read(self, round_number: int) -> Iterator[Pairs]:
        """Read the text block by block.

        Raises:
            ValueError: The text cannot be read from its beginning on.
            CorpusFault: It cannot be read further, so that a part of it may have been trained on.
        """
        begun = round_number > 0
        try:
            for block in self.text.blocks():
                yield block
                begun = True
        except ValueError as error:
            if not begun:
                raise
            raise CorpusFault(str(error)) from error

    def _encode(self, text: Pairs, positions: np.ndarray, *, round_number: int, sample_seed: int) -> _Buffer:
        """Encode the pairs that rules on lengths and the budget of a batch allow."""
        try:
            src, tgt = self.encoder(text)
        except LineError as error:
            raise ValueError(f"data.train: {LineError(positions[error.position], *error.args[1:])}") from None
        widest = longest_width(self.max_tokens)
        # Filter by the best segmentations, as for prepared text: filtering must not depend on samples
        own = sentence_lengths(src, self.encoder.tokenizer.separator)
        masks = length_rules(src.lengths, tgt.lengths, settings=self.clean, max_tokens=widest, own_lengths=own)
        rows = np.flatnonzero(~np.logical_or.reduce(list(masks.values())))
        src, tgt = src.select(rows), tgt.select(rows)
        sampling = self.encoder.tokenizer.sampling_alpha > 0
        if sampling or self.augment:
            block = [text[0][i] for i in rows], [text[1][i] for i in rows]
            kinds = np.zeros(len(rows), dtype=np.int8)
            if self.augment:
                kinds = self.augment.kinds(positions[rows], round_number)
                block = self.augment(block, kinds, positions[rows], round_number)
            drawn = self.encoder(block, sample_seed=sample_seed if sampling else None)
            # The model may have positions only for the longest best segmentation
            widest = min(widest, self.clean.max_length or widest)
            src, tgt = no_wider(drawn, (src, tgt), widest, together=kinds > 0)
        return _Buffer(src, tgt, positions[rows])


def _joined(parts: list[_Buffer]) -> _Buffer:
    src = Ragged.joined([part.src for part in parts])
    tgt = Ragged.joined([part.tgt for part in parts])
    return _Buffer(src, tgt, np.concatenate([part.positions for part in parts]))


class StreamLoader(PackedLoader):
    """Loader of a PairStream, whose batches are made in this process or in one worker."""

    def __init__(self, stream: PairStream, *, num_workers: int) -> None:
        # batch_size None: the data set yields whole batches
        super().__init__(stream, batch_size=None, num_workers=num_workers)
        self.stream = stream

    def _start(self) -> Iterator[Batch | Packed]:
        batches = super()._start()
        # The worker has just copied the stream, with its `start`
        self.stream.start = 0
        return batches
