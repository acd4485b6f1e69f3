"""Cleaned corpora on disk: Arrow files with the columns src and tgt, written once and memory-mapped."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from seq2seq.data.cache_folder import cached
from seq2seq.data.cleaning import Cleaner, Dropped, Pairs, single_spaced, text_hashes
from seq2seq.data.fingerprints import corpus_fingerprint
from seq2seq.data.hub import repository_of
from seq2seq.data.pace import Pace
from seq2seq.data.raw_pairs import open_split
from seq2seq.data.readers import arrow_tables, strings
from seq2seq.data.text_files import warn_once
from seq2seq.settings.data import SPLITS, CorpusSettings

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

log = logging.getLogger(__name__)


class Corpus(NamedTuple):
    """Text of the splits, and a report of its cleaning.

    Args:
        splits: Memory-mapped text by split, with the columns src and tgt.
        dropped: The cleaning table, one line for each rule on text.
        read: Training pairs before cleaning.
        fingerprint: Hash of the raw data and of all settings that decide the text.
        folder: Cache folder of the text.
        rows: By split, the sorted rows of train.arrow that it consists of; other splits have a file of their own.
        whole_fingerprint: Fingerprint before the subset was chosen; "" without a subset.
    """

    splits: DatasetDict
    dropped: list[Dropped]
    read: int
    fingerprint: str
    folder: Path
    rows: Mapping[str, np.ndarray] = MappingProxyType({})
    whole_fingerprint: str = ""

    def blocks(self, split: str) -> Iterator[Pairs]:
        """Read the pairs of a split in order, one block in memory at a time."""
        import pyarrow as pa

        chosen = self.rows.get(split)
        own = self.folder / f"{split if chosen is None else 'train'}.arrow"
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
    """Read, clean and split a corpus, or memory-map the result of an earlier call with the same data and settings.

    Raises:
        ValueError: A file cannot be read, a split is empty, or training has too few pairs to hold some out, or has
            documents.
    """
    held_out = [f"data.{split}" for split in settings.splits if settings.place(split) is None]
    if settings.context and held_out:
        raise ValueError(
            f"data.context={settings.context}: holding out pairs would break documents apart; set "
            f"{' and '.join(held_out)}"
        )
    fingerprint = corpus_fingerprint(settings)
    # Named by its content: other data or settings get another folder
    folder = cache_dir / f"text-{fingerprint}"
    found = [repository_of(split, settings) for split in settings.splits]
    if folder.is_dir() and any(each and each.revision is None for each in found):
        log.info("the cached text of an earlier run is used: name a revision to read a later version from the hub")
    return cached(
        folder,
        "the corpus",
        build=lambda building: _write_corpus(building, settings, cache_dir),
        read=lambda whole: _read_corpus(whole, settings, fingerprint),
    )


def _write_corpus(folder: Path, settings: CorpusSettings, cache_dir: Path) -> None:
    """Write the text of each split that has files, the rows of each split held out of training, and a report."""
    cleaner = Cleaner(settings.clean, languages=(settings.src, settings.tgt))
    rows: dict[str, int] = {}
    warnings: list[str] = []

    def warn(message: str) -> None:
        warnings.append(message)
        warn_once(message)

    for split in settings.splits:
        if settings.place(split) is None:
            continue
        blocks = open_split(split, settings, cache_dir=cache_dir, warn=warn)
        rows[split] = _write_split(folder, split, blocks, cleaner)
        # Report the setting here; otherwise, an empty batch would fail later
        if rows[split] == 0:
            raise ValueError(f"data.{split}={settings.place(split)}: {_why_empty(split, cleaner)}")
    held_out = [split for split in settings.splits if split not in rows]
    if held_out:
        _hold_out(folder, held_out, settings.holdout, rows["train"])
    dropped = [list(row) for row in cleaner.dropped.values()]
    report = {"dropped": dropped, "read": cleaner.read, "warnings": warnings}
    (folder / "report.json").write_text(json.dumps(report, ensure_ascii=False), encoding="utf-8")


def _write_split(folder: Path, split: str, blocks: Iterable[Pairs], cleaner: Cleaner) -> int:
    """Write a split as a stream of Arrow record batches; only training text is cleaned; return the number of pairs."""
    import pyarrow as pa

    schema = pa.schema([("src", pa.string()), ("tgt", pa.string())])
    pace = Pace("reading and cleaning")
    rows = 0
    with pa.OSFile(str(folder / f"{split}.arrow"), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
        for block in blocks:
            src, tgt = block
            # Scores cover all pairs of validation and test
            if split == "train":
                src, tgt = cleaner(block)
                pace.add(len(block[0]))
            # One record batch for each block: `Corpus.blocks` reads the same pieces
            if src:
                columns = [pa.array(src, pa.string()), pa.array(tgt, pa.string())]
                writer.write_batch(pa.record_batch(columns, schema=schema))
                rows += len(src)
    return rows


def _why_empty(split: str, cleaner: Cleaner) -> str:
    """Explain that a split has no pairs; for training, name the rules of cleaning that dropped them."""
    rules = [row for row in cleaner.dropped.values() if row.pairs]
    if split != "train" or not rules:
        return "there are no pairs"
    counts = ", ".join(f"{row.rule} {row.pairs:,}" for row in rules)
    most = max(rules, key=lambda row: row.pairs)
    return (
        f"cleaning dropped all {cleaner.read:,} pairs ({counts}), as in {most.example!r}; correct the text, or turn a "
        f"rule off with data.clean.{most.rule}=false"
    )


def _hold_out(folder: Path, splits: list[str], size: int, rows: int) -> None:
    """Hold out `size` training pairs for each split, chosen by the hashes of their sources.

    All translations of a source are in the same split.
    """
    # At least half of the text stays for training, better nine tenths
    if size * len(splits) * 2 > rows:
        best = rows // 10 // len(splits)
        raise ValueError(
            f"data.{splits[0]} is not set, and {rows} training pairs are too few to hold out data.holdout={size} "
            f"for each of {', '.join(splits)}: name the files{f', or set data.holdout={best}' if best else ''}"
        )
    tables = arrow_tables(_open_arrow(folder / "train.arrow"))
    # Sources that differ only in spaces look the same to the model
    hashes = np.concatenate([text_hashes(map(single_spaced, strings(table, ("src",)))) for table in tables])
    # Rows sorted by hash, (rows,): the choice is random, but a function of the text
    order = np.argsort(hashes, kind="stable")
    # The first row of each group of equal sources, in the order of the hashes
    groups = np.flatnonzero(np.diff(hashes[order], prepend=hashes[order[0]] ^ np.uint64(1)))
    ends = [0]
    for split in splits:
        # The first group at or after `size` pairs
        ends.append(int(groups[min(np.searchsorted(groups, ends[-1] + size), len(groups) - 1)]))
        if ends[-1] < ends[-2] + size or 2 * ends[-1] > rows:
            raise ValueError(
                f"data.{split} is not set, and data.holdout={size} pairs cannot be held out for it: the {rows} "
                f"training pairs have {len(groups)} different sources, and all pairs of a source stay together; "
                "name the files, or lower data.holdout"
            )
        # Sorted, as `Corpus.blocks` needs them
        np.save(folder / f"{split}.npy", np.sort(order[ends[-2] : ends[-1]]))
    np.save(folder / "train.npy", np.sort(order[ends[-1] :]))
    counts = ", ".join(f"{split} {count}" for split, count in zip(splits, np.diff(ends), strict=True))
    log.info("pairs of training held out: %s", counts)


def _read_corpus(folder: Path, settings: CorpusSettings, fingerprint: str) -> Corpus:
    from datasets import DatasetDict

    splits = DatasetDict()
    rows = {}
    held_out = 0
    for split in (split for split in SPLITS if split in settings.splits):
        named = settings.place(split) is not None
        dataset = _open_arrow(folder / f"{split if named else 'train'}.arrow")
        # For splits held out of training, and for the rest of it
        if (folder / f"{split}.npy").is_file():
            rows[split] = np.asarray(np.load(folder / f"{split}.npy", mmap_mode="r"))
            dataset = _rows_of(dataset, rows[split], f"{fingerprint}-{split}")
        splits[split] = dataset
        held_out += 0 if named else len(splits[split])
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    # Whoever trains may not have seen the preparation; earlier versions kept no warnings
    for message in report.get("warnings", ()):
        warn_once(message)
    dropped = [Dropped(*row) for row in report["dropped"]]
    # Held-out pairs are also read but not trained on
    if held_out:
        dropped.append(Dropped("holdout", held_out, ""))
    return Corpus(splits, dropped, report["read"], fingerprint, folder, rows=rows)


def _open_arrow(path: Path) -> Dataset:
    from datasets import Dataset

    return Dataset.from_file(str(path))


def _rows_of(whole: Dataset, rows: np.ndarray, fingerprint: str) -> Dataset:
    """Select rows (int64) of a whole file, whose text stays mapped.

    `Dataset.select` makes a Python list of the rows, which takes some GB for a large corpus.
    """
    import pyarrow as pa
    from datasets import Dataset

    indices = pa.table({"indices": pa.array(rows.view(np.uint64))})
    return Dataset(whole.data, info=whole.info, indices_table=indices, fingerprint=fingerprint)


def limited(corpus: Corpus, limit: int | None, *, seed: int, cache_dir: Path, name: str) -> Corpus:
    """Return the corpus with a subset of `limit` training pairs (`data.limit`); validation and test stay the same.

    The pairs with the smallest hashes of text and seed are chosen. The choice is the same on every machine, and a
    smaller subset lies within every larger one.
    """
    if limit is None or "train" not in corpus.splits:
        return corpus
    size = len(corpus.splits["train"])
    if limit >= size:
        if limit > size:
            log.warning(
                "data.limit=%d is more than the %s training pairs of %s: all are used", limit, f"{size:,}", name
            )
        return corpus
    key = repr((corpus.fingerprint, "limit", limit, seed))
    fingerprint = hashlib.sha256(key.encode()).hexdigest()[:16]

    def build(folder: Path) -> None:
        hashes = [
            text_hashes(f"{seed}\n{src}\n{tgt}" for src, tgt in zip(*block, strict=True))
            for block in corpus.blocks("train")
        ]
        # A stable sort chooses the first of several equal pairs, for every limit
        np.save(folder / "train.npy", np.sort(np.argsort(np.concatenate(hashes), kind="stable")[:limit]))

    def read(folder: Path) -> np.ndarray:
        return np.asarray(np.load(folder / "train.npy", mmap_mode="r"))

    rows = cached(cache_dir / f"limit-{fingerprint}", f"the subset of {name}", build=build, read=read)
    # `rows` are positions in the training split; `inside` are positions in train.arrow
    inside = corpus.rows["train"][rows] if "train" in corpus.rows else rows
    train = _rows_of(corpus.splits["train"], inside, fingerprint)
    return corpus._replace(
        splits=type(corpus.splits)({**corpus.splits, "train": train}),
        fingerprint=fingerprint,
        dropped=[*corpus.dropped, Dropped("limit", size - limit, "")],
        rows={**corpus.rows, "train": inside},
        whole_fingerprint=corpus.fingerprint,
    )
