"""Cleaned corpora on disk: text of one schema (src, tgt) in Arrow files, written once and memory-mapped."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from seq2seq.data.cache_folder import cached
from seq2seq.data.cleaning import Cleaner, Dropped, Pairs, single_spaced, text_hashes
from seq2seq.data.fingerprints import corpus_fingerprint
from seq2seq.data.loading import arrow_tables, open_split
from seq2seq.data.pace import Pace
from seq2seq.data.readers import strings
from seq2seq.settings.data import SPLITS, CorpusSettings

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

log = logging.getLogger(__name__)

_SCHEMA = pa.schema([("src", pa.string()), ("tgt", pa.string())])


class Corpus(NamedTuple):
    """Text of the splits, and the pairs that cleaning dropped.

    Args:
        splits: Memory-mapped text by split, with the columns src and tgt.
        dropped: The cleaning table, one line for each rule on text.
        read: Training pairs before cleaning.
        fingerprint: Hash of the raw data and of all settings that decide the text.
        folder: Cache folder of the text.
        train_rows: Sorted rows of train.arrow, if the training split is a subset of the text.
        whole_fingerprint: Fingerprint before the subset was chosen; "" if it is not a subset.
        trained: By split, the pairs of validation and test that are pairs of the training text, too.
    """

    splits: DatasetDict
    dropped: list[Dropped]
    read: int
    fingerprint: str
    folder: Path
    train_rows: np.ndarray | None = None
    whole_fingerprint: str = ""
    trained: Mapping[str, int] = MappingProxyType({})

    def with_training_rows(self, rows: np.ndarray, fingerprint: str, dropped: Dropped) -> Corpus:
        """Return the corpus with a subset of its training pairs.

        Args:
            rows: Sorted rows of the training split.
            fingerprint: Hash of the raw data and of the subset.
            dropped: Line of the cleaning table for the pairs that are left out.
        """
        splits = type(self.splits)({**self.splits, "train": self.splits["train"].select(rows)})
        _, held = _split_files(self.folder, "train")
        # With pairs held out, the training split has rows of train.arrow itself
        inside = np.load(held, mmap_mode="r")[rows] if held.is_file() else rows
        table = [*self.dropped, dropped]
        whole = self.fingerprint
        return self._replace(
            splits=splits, fingerprint=fingerprint, dropped=table, train_rows=inside, whole_fingerprint=whole
        )

    def blocks(self, split: str) -> Iterator[Pairs]:
        """Read the pairs of a split in their order, without keeping any in memory.

        Yields:
            Source lines and target lines of a block, never empty.
        """
        own, rows = _split_files(self.folder, split)
        # sorted rows of train.arrow, for a split that was held out of it
        chosen = np.load(rows, mmap_mode="r") if rows.is_file() else None
        if split == "train" and self.train_rows is not None:
            chosen = self.train_rows
        start = 0
        with pa.OSFile(str(own), "rb") as file, pa.ipc.open_stream(file) as batches:
            for batch in batches:
                end = start + batch.num_rows
                if chosen is not None:
                    # The chosen rows that lie in this record batch
                    inside = chosen[slice(*np.searchsorted(chosen, [start, end]))]
                    batch = batch.take(pa.array(inside - start))
                if batch.num_rows:
                    yield batch.column(0).to_pylist(), batch.column(1).to_pylist()
                start = end


def load_corpus(settings: CorpusSettings, *, cache_dir: Path) -> Corpus:
    """Load, clean and split a corpus, or memory-map the result of an earlier call with the same data and settings.

    Args:
        cache_dir: Folder in which the corpus gets a folder of its own, named by its fingerprint.

    Raises:
        ValueError: A file cannot be read, no pair is left of a split, or too few are left to hold out others.
    """
    fingerprint = corpus_fingerprint(settings)
    # Named by its content: other data or settings get another folder
    folder = cache_dir / f"text-{fingerprint}"
    return cached(
        folder,
        "the corpus",
        build=lambda building: _write_corpus(building, settings, cache_dir),
        read=lambda whole: _read_corpus(whole, settings, fingerprint),
    )


# Writing


def _write_corpus(folder: Path, settings: CorpusSettings, cache_dir: Path) -> None:
    """Write every split that has files of its own, the rows of those held out of training, and the cleaning table."""
    cleaner = Cleaner(settings.clean)
    rows = {}
    trained: dict[str, int] = {}
    for split in settings.splits:
        if settings.place(split) is None:
            continue
        blocks = open_split(split, settings, cache_dir=cache_dir)
        # Training text alone is cleaned: scores are on all of validation and test
        if split == "train":
            blocks = _cleaned(blocks, cleaner)
        else:
            blocks = _compared(blocks, cleaner, trained, split)
        rows[split] = _write_arrow(folder / f"{split}.arrow", blocks)
        # Refused here, by the setting's name, rather than by an empty batch later
        if rows[split] == 0:
            raise ValueError(f"data.{split}={settings.place(split)}: {_why_empty(split, cleaner)}")
    # Splits without a file of their own come out of training, after its cleaning
    held_out = [split for split in settings.splits if split not in rows]
    if held_out:
        _hold_out(folder, held_out, settings.holdout, rows["train"])
    dropped = [list(row) for row in cleaner.dropped.values()]
    report = {"dropped": dropped, "read": cleaner.read, "trained": trained}
    (folder / "report.json").write_text(json.dumps(report, ensure_ascii=False), encoding="utf-8")


def _why_empty(split: str, cleaner: Cleaner) -> str:
    """Explain that a split has no pairs, with the rules of cleaning that dropped them."""
    rules = [row for row in cleaner.dropped.values() if row.pairs]
    if split != "train" or not rules:
        return "there are no pairs"
    counts = ", ".join(f"{row.rule} {row.pairs:,}" for row in rules)
    most = max(rules, key=lambda row: row.pairs)
    return (
        f"cleaning dropped all {cleaner.read:,} pairs ({counts}), as in {most.example!r}; correct the text, or turn a "
        f"rule off with data.clean.{most.rule}=false"
    )


def _cleaned(blocks: Iterable[Pairs], cleaner: Cleaner) -> Iterator[Pairs]:
    pace = Pace("reading and cleaning")
    for block in blocks:
        # Progress counts pairs read, kept or not
        yield cleaner(block)
        pace.add(len(block[0]))


def _compared(blocks: Iterable[Pairs], cleaner: Cleaner, trained: dict[str, int], split: str) -> Iterator[Pairs]:
    """Pass the blocks of a split on; count in `trained[split]` the pairs that training has, too."""
    for block in blocks:
        yield block
        trained[split] = trained.get(split, 0) + cleaner.count_kept(block)


def _write_arrow(path: Path, blocks: Iterable[Pairs]) -> int:
    """Write blocks of pairs to a stream of Arrow record batches; return the number of pairs."""
    rows = 0
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, _SCHEMA) as writer:
        for src, tgt in blocks:
            # One record batch a block: `Corpus.blocks` reads it back in the same pieces
            if src:
                columns = [pa.array(src, pa.string()), pa.array(tgt, pa.string())]
                writer.write_batch(pa.record_batch(columns, schema=_SCHEMA))
                rows += len(src)
    return rows


def _hold_out(folder: Path, splits: list[str], size: int, rows: int) -> None:
    """Take `size` pairs of training for each split, all translations of a source together, by the sources' hashes."""
    # At least half of the text stays for training
    if size * len(splits) * 2 > rows:
        raise ValueError(
            f"data.{splits[0]} is not set, and {rows} training pairs are too few to hold out data.holdout={size} "
            f"for each of {', '.join(splits)}: name the files, or lower data.holdout"
        )
    dataset = _open_arrow(folder / "train.arrow")
    # To the model sources are equal that differ in spaces alone
    tables = (map(single_spaced, strings(table, ("src",))) for table in arrow_tables(dataset))
    hashes = np.concatenate([text_hashes(list(lines)) for lines in tables])
    # By hash (rows,), not by position: the choice is random, but a function of the text alone
    order = np.argsort(hashes, kind="stable")
    # The first row of each group of equal sources, in the order of the hashes.
    groups = np.flatnonzero(np.diff(hashes[order], prepend=hashes[order[0]] ^ np.uint64(1)))
    ends = [0]
    for split in splits:
        # The first group at or after `size` pairs: all translations of a source stay together
        ends.append(int(groups[min(np.searchsorted(groups, ends[-1] + size), len(groups) - 1)]))
        if ends[-1] < ends[-2] + size or 2 * ends[-1] > rows:
            raise ValueError(
                f"data.{split} is not set, and data.holdout={size} pairs cannot be held out for it: the {rows} "
                f"training pairs have {len(groups)} different sources, and those of one source stay together; name the "
                "files, or lower data.holdout"
            )
        # sorted, as `Corpus.blocks` needs them
        np.save(folder / f"{split}.npy", np.sort(order[ends[-2] : ends[-1]]))
    np.save(folder / "train.npy", np.sort(order[ends[-1] :]))
    counts = ", ".join(f"{split} {count}" for split, count in zip(splits, np.diff(ends), strict=True))
    log.info("pairs of training held out: %s", counts)


# Reading


def _read_corpus(folder: Path, settings: CorpusSettings, fingerprint: str) -> Corpus:
    from datasets import DatasetDict

    named = [split for split in settings.splits if settings.place(split) is not None]
    splits = DatasetDict()
    for split in (split for split in SPLITS if split in settings.splits):
        dataset = _open_arrow(folder / f"{split if split in named else 'train'}.arrow")
        # Rows of training text: those held out, and those left where any are
        if split not in named or (split == "train" and len(named) < len(settings.splits)):
            # No text is copied: `select` keeps the file mapped and the rows as indices
            dataset = dataset.select(np.load(folder / f"{split}.npy"))
        splits[split] = dataset
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    dropped = [Dropped(*row) for row in report["dropped"]]
    # A row of the table as well: pairs that are read and not trained on
    if held := sum(len(splits[split]) for split in splits if split not in named):
        dropped.append(Dropped("holdout", held, ""))
    return Corpus(splits, dropped, report["read"], fingerprint, folder, trained=report["trained"])


def _open_arrow(path: Path) -> Dataset:
    from datasets import Dataset

    return Dataset.from_file(str(path))


def _split_files(folder: Path, split: str) -> tuple[Path, Path]:
    """Return the file that holds a split, and the one that would list its rows there."""
    # train.npy exists where pairs were held out of train.arrow
    own = folder / f"{split}.arrow"
    return own if own.is_file() else folder / "train.arrow", folder / f"{split}.npy"
