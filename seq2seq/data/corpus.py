"""Parallel text from files or the hub: load, map to the one schema (src, tgt), clean, split."""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from seq2seq.config.data import SPLITS, CorpusSettings
from seq2seq.data.cleaning import Cleaner, Dropped, Pairs, text_hashes
from seq2seq.data.readers import (
    COMPRESSIONS,
    ROWS,
    Columns,
    json_head,
    parquet_head,
    read_blocks,
    strings,
    table_pairs,
    text_pairs,
    tsv_pairs,
)
from seq2seq.data.swapped_sides import refuse_swapped
from seq2seq.files import Pace, build_once, scratch_folder
from seq2seq.resources import data_dir

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

log = logging.getLogger(__name__)

# Counts as part of every fingerprint: raise it when the same raw data and settings give other text.
CODE_VERSION = 1
TABULAR = {".jsonl": "json", ".json": "json", ".ndjson": "json", ".parquet": "parquet", ".tsv": "tsv"}
_DATA_FILE = re.compile(r"^README\.md$|\.(jsonl?|ndjson|parquet|arrow|csv|tsv|txt)(\.(gz|xz|zst|bz2))?$")
_SCHEMA = pa.schema([("src", pa.string()), ("tgt", pa.string())])


# ---- finding


def resolve(name: str) -> Path:
    """A path as written in the settings; `package://x` is x in the corpora that come with this package."""
    name = str(name)
    if name.startswith("package://"):
        return data_dir() / name.removeprefix("package://")
    return Path(name).expanduser()


class Source(NamedTuple):
    """Where a split comes from: "text" with a source and a target file, or "json", "tsv", "parquet" with both sides."""

    kind: str
    files: list[str]


def kind_of(name: str, settings: CorpusSettings) -> str:
    """The kind of a file by `data.format`, else by its suffix (compression aside)."""
    if settings.format:
        if settings.format not in ("text", "json", "parquet", "tsv"):
            raise ValueError(f"data.format={settings.format!r}: choose text, json, tsv, parquet, or null (by suffix)")
        return settings.format
    path = Path(name)
    suffix = path.with_suffix("").suffix if path.suffix in COMPRESSIONS[1:] else path.suffix
    return TABULAR.get(suffix, "text")


def find_source(split: str, settings: CorpusSettings) -> Source:
    """The files of a split; a missing one is a ValueError.

    `data.train` may be a prefix (`corpus/train` finds corpus/train.de and corpus/train.en.xz), a list [source, target],
    a mapping {de: path, en: path}, or files that hold both sides (a path, a pattern with *, or a hf:// address).
    """
    place, name = settings.place(split), f"data.{split}"
    if isinstance(place, Mapping):
        missing = [language for language in (settings.src, settings.tgt) if language not in place]
        if missing:
            raise ValueError(f"{name} has no language column {missing[0]!r}; it has {', '.join(map(repr, place))}")
        return Source("text", [_existing(place[side], name) for side in (settings.src, settings.tgt)])
    if isinstance(place, Sequence) and not isinstance(place, str):
        if len(place) != 2:
            raise ValueError(f"{name} lists {len(place)} files; a list is [source file, target file]")
        return Source("text", _not_swapped([_existing(entry, name) for entry in place], name, settings))
    kind = kind_of(str(place), settings)
    if kind == "text":
        prefix = resolve(place)
        return Source(kind, [_by_language(prefix, language, name) for language in (settings.src, settings.tgt)])
    if "://" in str(place) and not str(place).startswith("package://"):
        return Source(kind, [str(place)])
    return Source(kind, _matching(place, name))


def _matching(place: str, name: str) -> list[str]:
    path = resolve(place)
    if "*" not in path.name:
        return [_existing(place, name)]
    files = sorted(map(str, path.parent.glob(path.name)))
    if not files:
        raise ValueError(f"{name}: no file matches {path}")
    return files


def _existing(place: Any, name: str) -> str:
    path = resolve(place)
    if not path.is_file():
        raise ValueError(f"{name}: the file {path} does not exist")
    return str(path)


def _by_language(prefix: Path, language: str, name: str) -> str:
    tried = [prefix.with_name(f"{prefix.name}.{language}{suffix}") for suffix in COMPRESSIONS]
    for path in tried:
        if path.is_file():
            return str(path)
    near = sorted(path.name for path in prefix.parent.glob(f"{prefix.name}.*"))[:8]
    hint = f"there are {', '.join(near)}" if near else f"no file there begins with {prefix.name}."
    raise ValueError(f"{name}={prefix}: the file {tried[0]} (or .gz, .xz, .zst) does not exist; {hint}")


def _not_swapped(paths: list[str], name: str, settings: CorpusSettings) -> list[str]:
    names = [Path(path).name for path in paths]
    parts = [set(file.split(".")[1:]) for file in names]
    if settings.tgt in parts[0] and settings.src in parts[1] and settings.src not in parts[0]:
        raise ValueError(
            f"{name} looks swapped: {names[0]} is given as the source ({settings.src}) and {names[1]} as the "
            f"target ({settings.tgt}); exchange the files, or data.src and data.tgt"
        )
    return paths


# ---- loading


def open_split(split: str, settings: CorpusSettings, *, cache_dir: Path, streaming: bool = False) -> Iterator[Pairs]:
    """Blocks of raw pairs of a split, in their order, from files, the hub, or a local folder in the hub's layout.

    `streaming`: what is remote is not downloaded first.
    """
    if settings.path:
        where = f"{settings.path} ({settings.place(split)})"
        return table_pairs(_hub_tables(split, settings, cache_dir, streaming), _columns(settings), where)
    source = find_source(split, settings)
    if source.kind == "text":
        return text_pairs(Path(source.files[0]), Path(source.files[1]))
    if source.kind == "tsv":
        return itertools.chain.from_iterable(tsv_pairs(Path(file), _columns(settings)) for file in source.files)
    return table_pairs(_file_tables(source, cache_dir, streaming), _columns(settings), source.files[0])


def _columns(settings: CorpusSettings) -> Columns:
    return Columns(settings.src, settings.tgt, settings.columns)


def _file_tables(source: Source, cache_dir: Path, streaming: bool) -> Iterator[pa.Table]:
    options: dict[str, Any] = {"encoding_errors": "replace"} if source.kind == "json" else {}
    if "://" in source.files[0]:
        options |= {"cache_dir": str(cache_dir / "hub")} | ({"streaming": True} if streaming else {})
        return _tables(source.kind, {"data_files": {"train": source.files}, "split": "train", **options}, remote=True)
    return _local_file_tables(source, options, cache_dir)


def _local_file_tables(source: Source, options: dict[str, Any], cache_dir: Path) -> Iterator[pa.Table]:
    # The cache of `datasets` knows files by path and time, so that it would give the old text of a file that changed
    # within the same time: what it writes about local files goes when they have been read.
    with scratch_folder(cache_dir) as scratch:
        files = [_unpacked(Path(file), scratch / str(i)) for i, file in enumerate(source.files)]
        options = {"data_files": {"train": files}, "split": "train", **options, "cache_dir": str(scratch)}
        yield from _tables(source.kind, {**options, "streaming": True}, remote=False, what=source.files[0])


def _unpacked(path: Path, folder: Path) -> str:
    """The path of a file, or of its decompressed copy in `folder`: `datasets` itself cannot open every kind."""
    if path.suffix not in COMPRESSIONS[1:]:
        return str(path)
    folder.mkdir()
    with (folder / path.stem).open("wb") as file:
        file.writelines(read_blocks(path))
    return file.name


def _hub_tables(split: str, settings: CorpusSettings, cache_dir: Path, streaming: bool) -> Iterator[pa.Table]:
    path = str(settings.path)
    options = {"name": settings.config, "data_dir": settings.data_dir, "split": settings.place(split)}
    if _is_local(settings):
        return _local_hub_tables(path, options, cache_dir)
    options |= {"streaming": True} if streaming else {}
    return _tables(path, {**options, "revision": settings.revision}, remote=True)


def _local_hub_tables(path: str, options: dict[str, Any], cache_dir: Path) -> Iterator[pa.Table]:
    # A part of a split, as in train[:1000], cannot be streamed.
    streaming = "[" not in str(options["split"])
    with scratch_folder(cache_dir) as scratch:
        options = {**options, "cache_dir": str(scratch), "streaming": streaming}
        yield from _tables(str(resolve(path)), options, remote=False, what=path)


def _is_local(settings: CorpusSettings) -> bool:
    return str(settings.path).startswith("package://") or resolve(str(settings.path)).is_dir()


def _tables(path: str, options: dict[str, Any], *, remote: bool, what: str | None = None) -> Iterator[pa.Table]:
    """Arrow tables of what `datasets` loads; what it raises becomes one ValueError with the remedy."""
    import datasets
    from datasets.exceptions import DatasetsError

    datasets.utils.logging.set_verbosity_error()
    for name in ("huggingface_hub.repocard", "datasets.packaged_modules.json.json"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    (datasets.enable_progress_bars if remote else datasets.disable_progress_bars)()
    try:
        yield from _arrow(datasets.load_dataset(path, **options))
    except (OSError, RuntimeError, ValueError, ConnectionError, DatasetsError) as error:
        reason = str(error).strip().split("\n")[0]
        raise ValueError(
            f"{what or path} could not be loaded: {reason}. A hub corpus needs the network once (or HF_HOME with a "
            "copy); a local copy works too: data.path=<folder>, or data=files (see data/README.md)"
        ) from error


def _arrow(dataset: Any) -> Iterator[pa.Table]:
    yield from dataset.with_format("arrow").iter(batch_size=ROWS)


# ---- the cleaned corpus on disk


class Corpus(NamedTuple):
    """Text of the three splits and what cleaning dropped."""

    splits: DatasetDict
    dropped: list[Dropped]
    read: int
    fingerprint: str
    folder: Path

    def blocks(self, split: str) -> Iterator[Pairs]:
        """The pairs of a split in their order, for what reads all of them: nothing read stays in memory."""
        own, rows = _split_files(self.folder, split)
        start, chosen = 0, np.load(rows, mmap_mode="r") if rows.is_file() else None
        with pa.OSFile(str(own), "rb") as file, pa.ipc.open_stream(file) as batches:
            for batch in batches:
                end = start + batch.num_rows
                if chosen is not None:
                    inside = chosen[slice(*np.searchsorted(chosen, [start, end]))]
                    batch = batch.take(pa.array(inside - start))
                if batch.num_rows:
                    yield batch.column(0).to_pylist(), batch.column(1).to_pylist()
                start = end


def load_corpus(settings: CorpusSettings, *, cache_dir: Path) -> Corpus:
    """Load, clean and split, or memory-map what an earlier call with the same data and settings left in `cache_dir`."""
    fingerprint = corpus_fingerprint(settings)
    folder = cache_dir / f"text-{fingerprint}"
    build_once(folder, "the corpus", lambda building: _write_corpus(building, settings, cache_dir))
    return _read_corpus(folder, fingerprint)


def _write_corpus(folder: Path, settings: CorpusSettings, cache_dir: Path) -> None:
    cleaner = Cleaner(settings.clean)
    rows = {}
    for split in settings.splits:
        if settings.place(split) is None:
            continue
        blocks = open_split(split, settings, cache_dir=cache_dir)
        if split == "train":
            blocks = _cleaned(blocks, cleaner)
        rows[split] = _write_arrow(folder / f"{split}.arrow", blocks)
        if rows[split] == 0:
            raise ValueError(f"data.{split}={settings.place(split)}: no pairs are left; check the file and data.clean")
    held_out = [split for split in settings.splits if split not in rows]
    if held_out:
        _hold_out(folder, held_out, settings.holdout, rows["train"])
    report = {"dropped": [list(row) for row in cleaner.dropped.values()], "read": cleaner.read}
    (folder / "report.json").write_text(json.dumps(report, ensure_ascii=False), encoding="utf-8")


def _cleaned(blocks: Iterable[Pairs], cleaner: Cleaner) -> Iterator[Pairs]:
    pace = Pace("reading and cleaning")
    for block in blocks:
        yield cleaner(block)
        pace.add(len(block[0]))


def _write_arrow(path: Path, blocks: Iterable[Pairs]) -> int:
    rows = 0
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, _SCHEMA) as writer:
        for src, tgt in blocks:
            if src:
                columns = [pa.array(src, pa.string()), pa.array(tgt, pa.string())]
                writer.write_batch(pa.record_batch(columns, schema=_SCHEMA))
                rows += len(src)
    return rows


def _hold_out(folder: Path, splits: list[str], size: int, rows: int) -> None:
    """Take `size` pairs of training for each split, all translations of a source together, by the sources' hashes."""
    if size * len(splits) * 2 > rows:
        raise ValueError(
            f"data.{splits[0]} is not set, and {rows} training pairs are too few to hold out data.holdout={size} "
            f"for each of {', '.join(splits)}: name the files, or lower data.holdout"
        )
    dataset = _open_arrow(folder / "train.arrow")
    hashes = np.concatenate([text_hashes(strings(table, ("src",))) for table in _arrow(dataset)])
    order = np.argsort(hashes, kind="stable")
    groups = np.flatnonzero(np.diff(hashes[order], prepend=hashes[order[0]] ^ np.uint64(1)))
    start = 0
    for split in splits:
        end = int(groups[min(np.searchsorted(groups, start + size), len(groups) - 1)])
        np.save(folder / f"{split}.npy", np.sort(order[start:end]))
        start = end
    np.save(folder / "train.npy", np.sort(order[start:]))
    log.info("held out %d pairs of training for each of: %s", size, ", ".join(splits))


def _open_arrow(path: Path) -> Dataset:
    from datasets import Dataset

    return Dataset.from_file(str(path))


def _read_corpus(folder: Path, fingerprint: str) -> Corpus:
    from datasets import DatasetDict

    splits = DatasetDict()
    for split in SPLITS:
        own, rows = _split_files(folder, split)
        if not rows.is_file() and not (folder / f"{split}.arrow").is_file():
            continue
        dataset = _open_arrow(own)
        splits[split] = dataset.select(np.load(rows)) if rows.is_file() else dataset
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    return Corpus(splits, [Dropped(*row) for row in report["dropped"]], report["read"], fingerprint, folder)


def _split_files(folder: Path, split: str) -> tuple[Path, Path]:
    """The file that holds a split, and the one that would name its rows there."""
    own = folder / f"{split}.arrow"
    return own if own.is_file() else folder / "train.arrow", folder / f"{split}.npy"


def corpus_fingerprint(settings: CorpusSettings) -> str:
    """Hexadecimal hash of the raw data, of every setting that decides the text, and of this code's version."""
    clean = settings.clean
    parts: list[Any] = [CODE_VERSION, settings.src, settings.tgt, settings.columns, settings.format, settings.holdout]
    parts += [bool(rule) for rule in (clean.invalid_utf8, clean.empty, clean.same, clean.duplicates)]
    parts += [settings.splits] if settings.splits != SPLITS else []
    if settings.path:
        parts += [settings.path, settings.config, settings.data_dir, settings.revision]
        parts.append([settings.place(split) for split in SPLITS])
        local = resolve(settings.path)
        files = sorted(path for path in local.rglob("*") if _DATA_FILE.search(path.name)) if local.is_dir() else []
        parts.append([(str(path.relative_to(local)), file_fingerprint(path)) for path in files])
    else:
        for split in SPLITS:
            files = find_source(split, settings).files if settings.place(split) is not None else []
            parts.append([name if "://" in name else file_fingerprint(Path(name)) for name in files])
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def file_fingerprint(path: Path) -> str:
    """Hash of a file's content; beyond 256 MiB, of its size, times (that of any change too), first and last MiB."""
    digest, status = hashlib.blake2b(digest_size=8), path.stat()
    with path.open("rb") as file:
        if status.st_size <= 1 << 28:
            while block := file.read(1 << 20):
                digest.update(block)
        else:
            # cp -p and tar keep the one time; nobody can keep the other
            times = f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"
            digest.update(times.encode() + file.read(1 << 20))
            file.seek(-(1 << 20), os.SEEK_END)
            digest.update(file.read())
    return digest.hexdigest()


# ---- checks before any work


def sample_pairs(settings: CorpusSettings, *, cache_dir: Path, split: str = "train", size: int = 1000) -> Pairs:
    """The first pairs of a split, to look at before any work: nothing is converted or copied for it."""
    if settings.path:
        # of train[:1000], train: only whole splits are read without being converted
        settings = replace(settings, **{split: str(settings.place(split)).partition("[")[0]})
        blocks = open_split(split, settings, cache_dir=cache_dir)
    else:
        source = find_source(split, settings)
        if "://" in source.files[0]:
            return [], []
        if source.kind in ("json", "parquet"):
            path = Path(source.files[0])
            head = json_head(path, size) if source.kind == "json" else parquet_head(path, size)
            blocks = table_pairs([head], _columns(settings), str(path))
        else:
            blocks = open_split(split, settings, cache_dir=cache_dir)
    src, tgt = next(iter(blocks), ([], []))
    return src[:size], tgt[:size]


def validate_corpus(settings: CorpusSettings, *, cache_dir: Path) -> None:
    """Cheap checks: languages, files, columns, direction; a remote corpus only by the languages it is said to have."""
    if settings.src == settings.tgt:
        raise ValueError(f"data.src and data.tgt are both {settings.src!r}; a direction has two languages")
    for language in (settings.src, settings.tgt):
        if settings.languages and language not in settings.languages:
            raise ValueError(f"this corpus has no language column {language!r}; it has {', '.join(settings.languages)}")
    if settings.train is None and "train" in settings.splits:
        raise ValueError("data.train is not set; give a file, a prefix or a list (see conf/data/files.yaml)")
    if settings.path and not resolve(settings.path).is_dir():
        if settings.path.startswith(("package://", "/", ".", "~")):
            raise ValueError(f"data.path: the folder {resolve(settings.path)} does not exist")
        return
    first, *others = (split for split in settings.splits if settings.place(split) is not None)
    sample = sample_pairs(settings, cache_dir=cache_dir, split=first)
    for split in others:
        sample_pairs(settings, cache_dir=cache_dir, split=split, size=1)
    refuse_swapped(sample, src=settings.src, tgt=settings.tgt)
