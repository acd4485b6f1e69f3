"""Raw pairs of a split, block by block, from files, the hub, or a local folder in the hub's layout."""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from seq2seq.data.cleaning import Pairs
from seq2seq.data.delimited import csv_pairs, tsv_pairs
from seq2seq.data.hub import Repository, no_network
from seq2seq.data.json_text import json_pairs
from seq2seq.data.readers import ROWS, LanguageColumns, parquet_pairs, table_pairs, text_pairs
from seq2seq.data.split_files import SplitFiles, find_files, resolve_path
from seq2seq.data.text_checks import checked
from seq2seq.data.tmx import tmx_pairs
from seq2seq.settings.data import CorpusSettings
from seq2seq.settings.dicts import leaves
from seq2seq.settings.values import shown
from seq2seq.system.errors import first_line, full_disk
from seq2seq.system.files import scratch_folder, uncompressed

log = logging.getLogger(__name__)

# Readers of files with both sides, by type. Those of text end lines at \\n alone, and name the line of an error.
_READERS = {"csv": csv_pairs, "json": json_pairs, "parquet": parquet_pairs, "tmx": tmx_pairs, "tsv": tsv_pairs}


def open_split(split: str, settings: CorpusSettings, *, cache_dir: Path, streaming: bool = False) -> Iterator[Pairs]:
    """Read blocks of raw pairs of a split, in their order.

    Args:
        streaming: Do not download what is remote before reading it.

    Raises:
        ValueError: A file is missing or damaged, or a column or the network is missing.
    """
    columns = LanguageColumns(settings.src, settings.tgt, settings.columns)
    # What messages name: two files, or the data and a language
    sides = [f"data.{split}={settings.place(split)} ({language})" for language in (settings.src, settings.tgt)]
    unit = "row"
    if settings.path:  # the hub, or a folder in its layout
        blocks = _hub_pairs(split, settings, columns, cache_dir, streaming)
    elif "://" in (source := _copied(find_files(split, settings))).files[0]:
        blocks = table_pairs(_remote_tables(source, cache_dir, streaming), columns, source.files[0])
    elif source.type == "text":
        sides, unit = source.files, "line"
        blocks = text_pairs(Path(source.files[0]), Path(source.files[1]))
    else:
        blocks = itertools.chain.from_iterable(_READERS[source.type](Path(file), columns) for file in source.files)
    return checked(blocks, sides, unit=unit, training=split == "train")


def sample_pairs(settings: CorpusSettings, *, cache_dir: Path, split: str = "train", size: int = 1000) -> Pairs:
    """Read the first pairs of a split before any work: nothing is downloaded, converted or copied for it.

    Returns:
        At most `size` source lines and target lines; none of a remote split, which is not downloaded.

    Raises:
        ValueError: A file or a column is missing, or a file is damaged at its beginning.
    """
    if settings.path:
        if _repository(split, settings):
            return [], []
        # Of train[:1000], train: only whole splits are read without being converted
        settings = replace(settings, **{split: str(settings.place(split)).partition("[")[0]})
    elif "://" in find_files(split, settings).files[0]:
        return [], []
    # Readers are lazy: one block is read, the first that has a pair
    blocks = open_split(split, settings, cache_dir=cache_dir)
    src, tgt = next((block for block in blocks if block[0]), ([], []))
    return src[:size], tgt[:size]


def require_remote(settings: CorpusSettings) -> None:
    """Raise ValueError if a split is on the hub, and neither the hub nor a copy of it can be had; nothing is read."""
    asked = set()
    for split in settings.splits:
        repository = _repository(split, settings)
        if repository is None or repository[:2] in asked:
            continue
        place = str(settings.place(split)).partition("[")[0]
        if repository.copy_of(place) if settings.path else repository.copies():
            continue
        asked.add(repository[:2])
        # What `datasets` has converted (HF_DATASETS_CACHE) is only known when it is loaded
        if (reason := repository.unreachable()) and not (settings.path and repository.converted()):
            raise repository.advice(reason)


def is_remote(settings: CorpusSettings) -> bool:
    """Return True if a split is on the hub."""
    return any(_repository(split, settings) for split in settings.splits)


def _repository(split: str, settings: CorpusSettings) -> Repository | None:
    """Return the data set of the hub that a split is in; None for files of this machine and other addresses."""
    place = settings.place(split)
    if place is None:
        return None
    if settings.path:
        local = str(settings.path).startswith("package://") or resolve_path(settings.path).is_dir()
        files = settings.data_dir or settings.config
        return None if local else Repository(settings.path, settings.revision, files)
    return Repository.of_address(place) if isinstance(place, str) else None


def arrow_tables(dataset: Any) -> Iterator[pa.Table]:
    """Iterate over a data set of `datasets` as Arrow tables."""
    # Arrow tables: text becomes Python strings only block by block
    yield from dataset.with_format("arrow").iter(batch_size=ROWS)


def _copied(source: SplitFiles) -> SplitFiles:
    """Return the copies that the hub's cache has of files on the hub: an address with a revision means one text."""
    repository = Repository.of_address(source.files[0])
    return SplitFiles(source.type, copies) if repository and (copies := repository.copies()) else source


def _remote_tables(source: SplitFiles, cache_dir: Path, streaming: bool) -> Iterator[pa.Table]:
    """Read JSON or parquet files at an address."""
    if source.type not in ("json", "parquet"):
        raise ValueError(f"{source.files[0]}: {source.type} is read from this machine only; download the file")
    repository = Repository.of_address(source.files[0])
    if repository and (reason := repository.unreachable()):
        raise repository.advice(reason)
    # Downloads stay, for the next run
    options: dict[str, Any] = {"cache_dir": str(cache_dir / "hub")}
    if source.type == "json":
        # As our own readers do with invalid bytes; parquet stores text
        options["encoding_errors"] = "replace"
    if streaming:
        options["streaming"] = True
    # The split is called "train" in every case: that is the name of files without splits
    return _tables(source.type, {"data_files": {"train": source.files}, "split": "train", **options}, remote=True)


def _hub_pairs(
    split: str, settings: CorpusSettings, columns: LanguageColumns, cache_dir: Path, streaming: bool
) -> Iterator[Pairs]:
    """Read a split of `data.path`: a data set on the hub, or a folder in the hub's layout."""
    path = str(settings.path)
    place = str(settings.place(split))
    where = f"{path} ({place})"
    options = {"name": settings.config, "data_dir": settings.data_dir, "split": settings.place(split)}
    repository = _repository(split, settings)
    # A folder on this machine is read without its revision and without the hub's cache
    if repository is None:
        return _local_pairs(path, options, columns, cache_dir, where)
    if copy := repository.copy_of(place.partition("[")[0]):
        log.info("%s: reading the copy in %s", path, copy)
        if not (copy / "README.md").is_file():
            # Subsets are named in the README; without it, by their folders
            options |= {"name": None, "data_dir": repository.files}
        return _local_pairs(str(copy), options, columns, cache_dir, where)
    if streaming:
        options["streaming"] = True
    return table_pairs(_remote_hub_tables(repository, {**options, "revision": settings.revision}), columns, where)


def _remote_hub_tables(repository: Repository, options: dict[str, Any]) -> Iterator[pa.Table]:
    reason = repository.unreachable()
    if reason is None:
        yield from _tables(repository.name, options, remote=True)
        return
    try:
        # `datasets` may have its own converted copy (HF_DATASETS_CACHE)
        with no_network():
            yield from _tables(repository.name, options, remote=True)
    except ValueError as error:
        raise repository.advice(reason) from error


def _local_pairs(
    path: str, options: dict[str, Any], columns: LanguageColumns, cache_dir: Path, where: str
) -> Iterator[Pairs]:
    folder = str(resolve_path(path))
    with scratch_folder(cache_dir) as scratch:
        options = {**options, "cache_dir": str(scratch)}
        with _one_error(path, remote=False):
            _refuse_addresses(Path(folder))
            files = _delimited_files(folder, options)
        if files is None:
            # A part of a split, as in train[:1000], cannot be streamed
            options["streaming"] = "[" not in str(options["split"])
            yield from table_pairs(_tables(folder, options, remote=False, name=path), columns, where)
        else:
            # By the suffix of each, of whatever capitals and compression
            kinds = ("tsv" if uncompressed(Path(file)).suffix.lower() == ".tsv" else "csv" for file in files)
            readers = (_READERS[kind](Path(file), columns) for kind, file in zip(kinds, files, strict=True))
            yield from _part(itertools.chain.from_iterable(readers), str(options["split"]))


def _delimited_files(folder: str, options: dict[str, Any]) -> list[str] | None:
    """List the CSV or TSV files of a split, which our readers take as text; None if `datasets` finds other formats."""
    import datasets
    from datasets.packaged_modules.csv.csv import Csv

    place = {key: options[key] for key in ("name", "data_dir", "cache_dir")}
    builder = datasets.load_dataset_builder(folder, **place)
    if not isinstance(builder, Csv):
        return None
    named: Any = builder.config.data_files or {}
    split = str(options["split"]).partition("[")[0]
    if split not in named:
        raise ValueError(f"unknown split {split!r}; there are {', '.join(map(str, named))}")
    return [str(file) for file in named[split]]


def _part(blocks: Iterator[Pairs], split: str) -> Iterator[Pairs]:
    """Choose the pairs of a part of a split, as in train[:1000] or train[10%:]."""
    if "[" not in split:
        yield from blocks
        return
    import datasets

    whole = [list(itertools.chain.from_iterable(side)) for side in zip(*blocks, strict=True)]
    instruction: Any = datasets.ReadInstruction.from_spec(split)  # type: ignore[attr-defined]
    for part in instruction.to_absolute({split.partition("[")[0]: len(whole[0])}):
        yield whole[0][part.from_ : part.to], whole[1][part.from_ : part.to]


def _refuse_addresses(folder: Path) -> None:
    """Refuse a folder whose own settings name files at an address: who names the folder has not named that.

    Raises:
        ValueError: They do.
    """
    import datasets.config
    import yaml
    from huggingface_hub import DatasetCard

    # As `datasets` reads them
    card, settings = folder / datasets.config.REPOCARD_FILENAME, folder / datasets.config.REPOYAML_FILENAME
    read = [DatasetCard.load(card).data.to_dict()] if card.is_file() else []
    read += [yaml.safe_load(settings.read_text("utf-8"))] if settings.is_file() else []
    for value in (each.get("configs") for each in read if isinstance(each, dict)):
        if found := next((text for _, text in leaves(value) if "://" in str(text)), None):
            raise ValueError(f"its settings name the address {shown(found)}: download that file, and name the copy")


def _tables(path: str, options: dict[str, Any], *, remote: bool, name: str | None = None) -> Iterator[pa.Table]:
    """Load Arrow tables with `datasets`."""
    import datasets

    # Only a download takes long enough for a bar
    if remote:
        datasets.enable_progress_bars()
    else:
        datasets.disable_progress_bars()
    with _one_error(name or path, remote=remote):
        # Inside: a streamed data set raises while it is read
        yield from arrow_tables(datasets.load_dataset(path, **options))


@contextlib.contextmanager
def _one_error(name: str, *, remote: bool) -> Iterator[None]:
    """Let the many errors of `datasets` become one ValueError with the remedy."""
    import datasets
    from datasets.exceptions import DatasetsError
    from huggingface_hub.utils import httpx  # the client that the hub's library uses, under one name

    # One line of ours says more to a user than the library's warnings
    datasets.utils.logging.set_verbosity_error()
    for logger in ("huggingface_hub.repocard", "datasets.packaged_modules.json.json"):
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    try:
        yield
    except (OSError, RuntimeError, ValueError, LookupError, pa.ArrowException, DatasetsError, httpx.HTTPError) as error:
        # A full disk is no fault of the corpus
        if fault := full_disk(error):
            raise fault from error
        hint = (
            "; a copy on this machine works too: data.path=<folder>, or data=files (data/README.md)" if remote else ""
        )
        raise ValueError(f"{name} could not be loaded: {first_line(error)}{hint}") from error
