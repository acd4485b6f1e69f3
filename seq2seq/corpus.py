"""Parallel text from files or the hub: load, map to the one schema (src, tgt), clean, split."""

from __future__ import annotations

import gzip
import hashlib
import itertools
import json
import logging
import lzma
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa

from seq2seq.resources import data_dir

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

log = logging.getLogger(__name__)

SPLITS = ("train", "valid", "test")
# Counts as part of every fingerprint: raise it when the same raw data and settings give other text.
CODE_VERSION = 1
COMPRESSIONS = ("", ".gz", ".xz", ".zst")
TABULAR = {".jsonl": "json", ".json": "json", ".ndjson": "json", ".parquet": "parquet", ".tsv": "tsv"}
_ROWS = 16_384  # pairs that are in memory as Python strings at a time
_DATA_FILE = re.compile(r"\.(jsonl?|ndjson|parquet|arrow|csv|tsv|txt)(\.(gz|xz|zst|bz2))?$")
_SCHEMA = pa.schema([("src", pa.string()), ("tgt", pa.string())])

Pairs = tuple[list[str], list[str]]


@dataclass(frozen=True)
class CleanSettings:
    """Which training pairs are dropped; `max_length` and `length_ratio` count pieces (eos included); null = off."""

    invalid_utf8: bool = True
    empty: bool = True
    same: bool = True
    duplicates: bool = True
    max_length: int | None = 250
    length_ratio: float | None = 3.0

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any] | None) -> CleanSettings:
        """Read `data.clean`; an unknown name is a ValueError that lists the known ones."""
        return _settings(cls, "data.clean", values or {})


@dataclass(frozen=True)
class CorpusSettings:
    """The part of the `data` section that decides the text: languages, places, cleaning.

    `path` set: a data set of the hub, or a local folder in the hub's layout, whose splits `train`, `valid` and `test`
    name. `path` null: they name files. A split that is null is held out of training (`holdout` pairs).
    """

    src: str
    tgt: str
    train: Any = None
    valid: Any = None
    test: Any = None
    path: str | None = None
    config: str | None = None
    data_dir: str | None = None
    revision: str | None = None
    languages: tuple[str, ...] | None = None
    columns: Mapping[str, str | int] | None = None
    format: str | None = None
    holdout: int = 1000
    clean: CleanSettings = field(default_factory=CleanSettings)

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any]) -> CorpusSettings:
        """Read the `data` section, ignoring what batching and scoring own."""
        known = {f.name for f in fields(cls)}
        values = {name: value for name, value in data.items() if name in known and name != "clean"}
        if values.get("languages") is not None:
            values["languages"] = tuple(str(language) for language in values["languages"])
        for side in ("src", "tgt"):
            if not isinstance(values.get(side), str) or not values[side]:
                raise ValueError(f"data.{side}={values.get(side)!r}: give a language code, as in data.{side}=de")
        return cls(**values, clean=CleanSettings.from_mapping(data.get("clean")))

    def place(self, split: str) -> Any:
        """The setting that says where `split` is."""
        return getattr(self, split)


def _settings(cls: type, section: str, values: Mapping[str, Any]) -> Any:
    known = [f.name for f in fields(cls)]
    unknown = sorted(set(values) - set(known))
    if unknown:
        raise ValueError(f"unknown setting {section}.{unknown[0]}; known are {', '.join(known)}")
    return cls(**values)


# ---- reading


def open_bytes(path: Path) -> BinaryIO:
    """A file's bytes, decompressed by its suffix (.gz, .xz, .zst)."""
    if path.suffix == ".gz":
        return gzip.open(path, "rb")  # type: ignore[return-value]
    if path.suffix == ".xz":
        return lzma.open(path, "rb")  # type: ignore[return-value]
    if path.suffix == ".zst":
        return pa.CompressedInputStream(pa.OSFile(str(path), "rb"), "zstd")  # type: ignore[return-value]
    return path.open("rb")


def read_lines(path: Path) -> Iterator[bytes]:
    """Lines of a file, which end at the byte \\n and nowhere else; a CR before it (CRLF) belongs to the line end."""
    rest = b""
    try:
        with open_bytes(path) as file:
            while block := file.read(1 << 22):
                *lines, rest = (rest + block).split(b"\n")
                for line in lines:
                    yield line.removesuffix(b"\r")
    except (EOFError, lzma.LZMAError, gzip.BadGzipFile, pa.ArrowException) as error:
        raise ValueError(f"{path} cannot be decompressed ({error}): it is damaged or incomplete") from error
    if rest:
        yield rest.removesuffix(b"\r")


def _decode(line: bytes) -> str:
    return line.decode("utf-8", errors="replace")


def _text_pairs(src: Path, tgt: Path) -> Iterator[Pairs]:
    src_lines, tgt_lines = read_lines(src), read_lines(tgt)
    count = 0
    while True:
        left, right = list(itertools.islice(src_lines, _ROWS)), list(itertools.islice(tgt_lines, _ROWS))
        if len(left) != len(right):
            left_count, right_count = count + len(left) + _count(src_lines), count + len(right) + _count(tgt_lines)
            raise ValueError(
                f"{src} has {left_count} lines and {tgt} has {right_count}: "
                "line i of one must be the translation of line i of the other"
            )
        if not left:
            return
        count += len(left)
        yield list(map(_decode, left)), list(map(_decode, right))


def _count(lines: Iterator[bytes]) -> int:
    return sum(1 for _ in lines)


def _tsv_pairs(path: Path, settings: CorpusSettings) -> Iterator[Pairs]:
    lines = read_lines(path)
    first = next(lines, b"")
    columns = _tsv_columns(path, _decode(first).split("\t"), settings)
    if isinstance((settings.columns or {}).get(settings.src), int):
        lines = itertools.chain([first], lines)  # columns by number: there is no header
    need, number = max(columns) + 1, 0
    while block := list(itertools.islice(lines, _ROWS)):
        rows = [_decode(line).split("\t") for line in block]
        short = next((i for i, row in enumerate(rows) if len(row) < need), None)
        if short is not None:
            raise ValueError(
                f"{path}: data row {number + short + 1} has {len(rows[short])} columns where {need} are needed; "
                "a tab must separate them"
            )
        number += len(rows)
        yield [row[columns[0]] for row in rows], [row[columns[1]] for row in rows]


def _tsv_columns(path: Path, header: list[str], settings: CorpusSettings) -> tuple[int, int]:
    chosen = []
    for language in (settings.src, settings.tgt):
        column = (settings.columns or {}).get(language, language)
        if isinstance(column, int):
            chosen.append(column)
        elif column in header:
            chosen.append(header.index(column))
        else:
            raise ValueError(
                f"{path} has no column {column!r}: its first line names {', '.join(map(repr, header[:8]))}; "
                f"without a header give numbers, as in '+data.columns={{{settings.src}: 0, {settings.tgt}: 1}}'"
            )
    return chosen[0], chosen[1]


def table_pairs(tables: Iterable[pa.Table], settings: CorpusSettings, where: str) -> Iterator[Pairs]:
    """Pairs of Arrow tables in the WMT schema (translation: {de, en}) or with flat columns (de, en)."""
    for table in tables:
        src = _column(table.schema, settings.src, settings, where)
        tgt = _column(table.schema, settings.tgt, settings, where)
        yield _strings(table, src), _strings(table, tgt)


def _column(schema: pa.Schema, language: str, settings: CorpusSettings, where: str) -> tuple[str, ...]:
    name = (settings.columns or {}).get(language, language)
    if name in schema.names:
        return (str(name),)
    present = list(schema.names)
    if "translation" in present:
        struct = schema.field("translation").type
        inside = [struct.field(i).name for i in range(struct.num_fields)] if pa.types.is_struct(struct) else []
        if name in inside:
            return ("translation", str(name))
        present = inside or present
    raise ValueError(
        f"{where} has no language column {name!r}; it has {', '.join(map(repr, present))}: "
        "set data.src and data.tgt to two of these, or map languages to columns with data.columns"
    )


def _strings(table: pa.Table, path: tuple[str, ...]) -> list[str]:
    column = table.column(path[0])
    if len(path) == 2:
        import pyarrow.compute as pc

        column = pc.struct_field(column, path[1])  # type: ignore[attr-defined]
    # A null (no translation) is an empty line: cleaning drops it from training, scoring keeps its place.
    values = ("" if value is None else str(value) for value in column.to_pylist())
    return [value.encode("utf-8", "replace").decode("utf-8") for value in values]


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


def open_split(split: str, settings: CorpusSettings, *, cache_dir: Path) -> Iterator[Pairs]:
    """Blocks of raw pairs of a split, in their order, from files, the hub, or a local folder in the hub's layout."""
    if settings.path:
        where = f"{settings.path} ({settings.place(split)})"
        return table_pairs(_tables(_hub_split(split, settings, cache_dir)), settings, where)
    source = find_source(split, settings)
    if source.kind == "text":
        return _text_pairs(Path(source.files[0]), Path(source.files[1]))
    if source.kind == "tsv":
        return itertools.chain.from_iterable(_tsv_pairs(Path(file), settings) for file in source.files)
    return table_pairs(_tables(_load_files(source, cache_dir)), settings, source.files[0])


def _load_files(source: Source, cache_dir: Path) -> Dataset:
    from datasets import load_dataset

    options: dict[str, Any] = {"encoding_errors": "replace"} if source.kind == "json" else {}
    return _guarded(
        lambda: load_dataset(
            source.kind,
            data_files={"train": source.files},
            split="train",
            cache_dir=str(cache_dir / "hub"),
            **options,
        ),
        source.files[0],
        remote="://" in source.files[0],
    )


def _tables(dataset: Dataset) -> Iterator[pa.Table]:
    yield from dataset.with_format("arrow").iter(batch_size=_ROWS)  # type: ignore[misc]


def _hub_split(split: str, settings: CorpusSettings, cache_dir: Path) -> Dataset:
    from datasets import load_dataset

    path = str(settings.path)
    local = resolve(path)
    is_local = path.startswith("package://") or local.is_dir()
    return _guarded(
        lambda: load_dataset(
            str(local) if is_local else path,
            settings.config,
            data_dir=settings.data_dir,
            split=settings.place(split),
            revision=None if is_local else settings.revision,
            cache_dir=str(cache_dir / "hub") if is_local else None,
        ),
        path,
        remote=not is_local,
    )


def _guarded(load: Callable[[], Any], what: str, *, remote: bool) -> Any:
    """Run a loader of `datasets`; what it raises becomes one ValueError with the remedy."""
    import datasets
    from datasets.exceptions import DatasetsError

    datasets.utils.logging.set_verbosity_error()
    logging.getLogger("huggingface_hub.repocard").setLevel(logging.ERROR)
    (datasets.enable_progress_bars if remote else datasets.disable_progress_bars)()
    try:
        return load()
    except (OSError, RuntimeError, ValueError, ConnectionError, DatasetsError) as error:
        reason = str(error).strip().split("\n")[0]
        raise ValueError(
            f"{what} could not be loaded: {reason}. A hub corpus needs the network once (or HF_HOME with a copy); "
            "a local copy works too: data.path=<folder>, or data=files (see data/README.md)"
        ) from error


# ---- cleaning


class Dropped(NamedTuple):
    """A line of the cleaning table."""

    rule: str
    pairs: int
    example: str


class Cleaner:
    """Text rules, applied block by block; remembers how many pairs each rule dropped, and one example."""

    def __init__(self, settings: CleanSettings) -> None:
        tests: dict[str, Callable[[str, str], bool]] = {
            "invalid_utf8": lambda src, tgt: "\ufffd" in src or "\ufffd" in tgt,
            "empty": lambda src, tgt: not src.strip() or not tgt.strip(),
            "same": lambda src, tgt: src.strip() == tgt.strip(),
        }
        self.tests = {name: test for name, test in tests.items() if getattr(settings, name)}
        self.duplicates = settings.duplicates
        self.seen = np.empty(0, dtype=np.uint64)
        self.dropped = {name: Dropped(name, 0, "") for name in [*self.tests, *(["duplicates"] * self.duplicates)]}
        self.read = 0

    def __call__(self, block: Pairs) -> Pairs:
        """The pairs of a block that no rule drops."""
        self.read += len(block[0])
        kept = []
        for src, tgt in zip(*block, strict=True):
            rule = next((name for name, test in self.tests.items() if test(src, tgt)), None)
            if rule is None:
                kept.append((src, tgt))
            else:
                self._drop(rule, src, tgt)
        if self.duplicates and kept:
            fresh = self._first_time(kept)
            for (src, tgt), new in zip(kept, fresh, strict=True):
                if not new:
                    self._drop("duplicates", src, tgt)
            kept = list(itertools.compress(kept, fresh))
        return [src for src, _ in kept], [tgt for _, tgt in kept]

    def _drop(self, rule: str, src: str, tgt: str) -> None:
        old = self.dropped[rule]
        self.dropped[rule] = Dropped(rule, old.pairs + 1, old.example or f"{_short(src)} | {_short(tgt)}")

    def _first_time(self, pairs: list[tuple[str, str]]) -> np.ndarray:
        """True at pairs never met before; what was met is one sorted array of 64-bit hashes, 8 bytes a pair."""
        hashes = text_hashes([f"{src}\n{tgt}" for src, tgt in pairs])
        fresh = np.zeros(len(hashes), dtype=bool)
        fresh[np.unique(hashes, return_index=True)[1]] = True
        if self.seen.size:
            slots = np.minimum(np.searchsorted(self.seen, hashes), self.seen.size - 1)
            fresh &= self.seen[slots] != hashes
        self.seen = np.sort(np.concatenate([self.seen, hashes[fresh]]), kind="stable")
        return fresh


def text_hashes(lines: Iterable[str]) -> np.ndarray:
    """A 64-bit hash of every line, the same on every machine."""
    digests = b"".join(hashlib.blake2b(line.encode("utf-8"), digest_size=8).digest() for line in lines)
    return np.frombuffer(digests, dtype="<u8")


def length_rules(
    src_lengths: np.ndarray, tgt_lengths: np.ndarray, *, settings: CleanSettings, max_tokens: int
) -> dict[str, np.ndarray]:
    """Masks of pairs to drop by their number of pieces: `max_length` (a pair that alone exceeds the batch budget
    included) and `length_ratio`; a pair counts for the first rule that drops it.
    """
    longest, shortest = np.maximum(src_lengths, tgt_lengths), np.minimum(src_lengths, tgt_lengths)
    limit = min(max_tokens, settings.max_length or max_tokens)
    masks = {"max_length": longest > limit}
    if settings.length_ratio:
        masks["length_ratio"] = (longest > settings.length_ratio * shortest) & ~masks["max_length"]
    return masks


def cleaning_table(dropped: Sequence[Dropped], *, read: int) -> str:
    """The table that says what cleaning did: rule, pairs dropped, one example."""
    kept = read - sum(row.pairs for row in dropped)
    lines = [f"cleaning of the training data: {read} pairs read, {kept} kept"]
    lines += [f"  {'rule':<14}{'dropped':>10}  example"]
    lines += [f"  {row.rule:<14}{row.pairs:>10}  {row.example}".rstrip() for row in dropped]
    return "\n".join(lines)


def _short(text: str, width: int = 40) -> str:
    text = " ".join(text.split())
    return text if len(text) <= width else text[: width - 1] + "…"


# ---- the cleaned corpus on disk


class Corpus(NamedTuple):
    """Text of the three splits and what cleaning dropped."""

    splits: DatasetDict
    dropped: list[Dropped]
    read: int
    fingerprint: str


def load_corpus(settings: CorpusSettings, *, cache_dir: Path) -> Corpus:
    """Load, clean and split, or memory-map what an earlier call with the same data and settings left in `cache_dir`."""
    fingerprint = corpus_fingerprint(settings)
    folder = cache_dir / f"text-{fingerprint}"
    if not (folder / "report.json").is_file():
        with atomic_folder(folder) as building:
            _write_corpus(building, settings, cache_dir)
    return _read_corpus(folder, fingerprint)


def _write_corpus(folder: Path, settings: CorpusSettings, cache_dir: Path) -> None:
    cleaner = Cleaner(settings.clean)
    rows = {}
    for split in SPLITS:
        if settings.place(split) is None:
            continue
        blocks = open_split(split, settings, cache_dir=cache_dir)
        rows[split] = _write_arrow(folder / f"{split}.arrow", map(cleaner, blocks) if split == "train" else blocks)
        if rows[split] == 0:
            raise ValueError(f"data.{split}={settings.place(split)}: no pairs are left; check the file and data.clean")
    held_out = [split for split in SPLITS[1:] if split not in rows]
    if held_out:
        _hold_out(folder, held_out, settings.holdout, rows["train"])
    report = {"dropped": [list(row) for row in cleaner.dropped.values()], "read": cleaner.read}
    (folder / "report.json").write_text(json.dumps(report, ensure_ascii=False), encoding="utf-8")


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
    hashes = np.concatenate([text_hashes(_strings(table, ("src",))) for table in _tables(dataset)])
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
        own, rows = folder / f"{split}.arrow", folder / f"{split}.npy"
        dataset = _open_arrow(own if own.is_file() else folder / "train.arrow")
        splits[split] = dataset.select(np.load(rows)) if rows.is_file() else dataset
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    return Corpus(splits, [Dropped(*row) for row in report["dropped"]], report["read"], fingerprint)


def corpus_fingerprint(settings: CorpusSettings) -> str:
    """Hexadecimal hash of the raw data, of every setting that decides the text, and of this code's version."""
    clean = settings.clean
    parts: list[Any] = [CODE_VERSION, settings.src, settings.tgt, settings.columns, settings.format, settings.holdout]
    parts += [clean.invalid_utf8, clean.empty, clean.same, clean.duplicates]
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
    """Hash of a file's content; beyond 256 MiB, of its size, time, first and last MiB."""
    digest, size = hashlib.blake2b(digest_size=8), path.stat().st_size
    with path.open("rb") as file:
        if size <= 1 << 28:
            while block := file.read(1 << 20):
                digest.update(block)
        else:
            digest.update(f"{size} {path.stat().st_mtime_ns}".encode() + file.read(1 << 20))
            file.seek(-(1 << 20), os.SEEK_END)
            digest.update(file.read())
    return digest.hexdigest()


@contextmanager
def atomic_folder(target: Path) -> Iterator[Path]:
    """A temporary folder beside `target` that takes its name when the block succeeds and vanishes when it does not."""
    target.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        yield building
        building.chmod(0o755)
        try:
            os.rename(building, target)
        except OSError:
            if not target.is_dir():
                raise
    finally:
        shutil.rmtree(building, ignore_errors=True)


# ---- checks before any work

_SCRIPTS = {
    "Han": ("zh ja yue", "[\u4e00-\u9fff\u3400-\u4dbf]"),
    "kana": ("ja", "[\u3040-\u30ff]"),
    "Hangul": ("ko", "[\uac00-\ud7af]"),
    "Cyrillic": ("ru uk bg sr mk be kk", "[\u0400-\u04ff]"),
    "Arabic": ("ar fa ur ps", "[\u0600-\u06ff]"),
    "Greek": ("el", "[\u0370-\u03ff]"),
    "Hebrew": ("he yi", "[\u0590-\u05ff]"),
    "Devanagari": ("hi ne mr", "[\u0900-\u097f]"),
    "Thai": ("th", "[\u0e00-\u0e7f]"),
}
_FUNCTION_WORDS = {
    "de": "der die das und ist nicht ich du er wir ein eine zu mit auf den dem",
    "en": "the and is not i you he we a an to with on of was that it",
    "fr": "le la les et est pas je tu il nous un une des du que dans",
    "es": "el los las y es no yo que un una de en se por con su",
    "it": "il lo gli e è non io che un una di in si per con sono",
    "nl": "de het en is niet ik jij hij wij een te met op van dat er",
    "pt": "o os as e é não eu que um uma de em se por com ele",
    "ro": "și este nu eu un o în la cu pe care de să din al a",
    "cs": "a je ne já ty on my na se že v s z to by jsem",
    "pl": "i jest nie ja ty on my na się że w z do to był jak",
}


def looks_swapped(src_lines: Sequence[str], tgt_lines: Sequence[str], *, src: str, tgt: str) -> bool:
    """Whether the text of each side looks like the other side's language, by script, else by function words."""

    def fit(lines: Sequence[str], language: str) -> float:
        text = "\n".join(lines).lower()
        patterns = [pattern for languages, pattern in _SCRIPTS.values() if language in languages.split()]
        if patterns:
            return len(re.findall("|".join(patterns), text)) / max(1, len(text))
        words = re.findall(r"[^\W\d_]+", text)
        known = set(_FUNCTION_WORDS.get(language, "").split())
        return sum(word in known for word in words) / max(1, len(words))

    gaps = [fit(tgt_lines, src) - fit(src_lines, src), fit(src_lines, tgt) - fit(tgt_lines, tgt)]
    return min(gaps) >= -0.01 and sum(gaps) > 0.08


def sample_pairs(settings: CorpusSettings, *, cache_dir: Path, split: str = "train", size: int = 1000) -> Pairs:
    """The first pairs of a split, to look at before any work: nothing is converted or copied for it."""
    source = Source("hub", []) if settings.path else find_source(split, settings)
    if source.files and "://" in source.files[0]:
        return [], []
    if source.kind in ("json", "parquet"):
        path = Path(source.files[0])
        head = _json_head(path, size) if source.kind == "json" else _parquet_head(path, size)
        blocks = table_pairs([head], settings, str(path))
    else:
        blocks = open_split(split, settings, cache_dir=cache_dir)
    src, tgt = next(iter(blocks), ([], []))
    return src[:size], tgt[:size]


def _json_head(path: Path, size: int) -> pa.Table:
    lines = itertools.islice(read_lines(path), size)
    try:
        return pa.Table.from_pylist([json.loads(_decode(line)) for line in lines if line.strip()])
    except (ValueError, AttributeError, pa.ArrowException) as error:
        raise ValueError(f"{path} is not JSON lines, one object a line ({error})") from error


def _parquet_head(path: Path, size: int) -> pa.Table:
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            batches = list(itertools.islice(file.iter_batches(batch_size=size), 1))
            return pa.Table.from_batches(batches, file.schema_arrow)
    except pa.ArrowException as error:
        raise ValueError(f"{path} is not a parquet file ({error})") from error


def validate_corpus(settings: CorpusSettings, *, cache_dir: Path) -> None:
    """Cheap checks: languages, files, columns, direction; a remote corpus only by the languages it is said to have."""
    if settings.src == settings.tgt:
        raise ValueError(f"data.src and data.tgt are both {settings.src!r}; a direction has two languages")
    for language in (settings.src, settings.tgt):
        if settings.languages and language not in settings.languages:
            raise ValueError(f"this corpus has no language column {language!r}; it has {', '.join(settings.languages)}")
    if settings.train is None:
        raise ValueError("data.train is not set; give a file, a prefix or a list (see conf/data/files.yaml)")
    if settings.path and not resolve(settings.path).is_dir():
        if settings.path.startswith(("package://", "/", ".", "~")):
            raise ValueError(f"data.path: the folder {resolve(settings.path)} does not exist")
        return
    sample = sample_pairs(settings, cache_dir=cache_dir)
    for split in SPLITS[1:]:
        if settings.place(split) is not None:
            sample_pairs(settings, cache_dir=cache_dir, split=split, size=1)
    refuse_swapped(sample, settings)


def refuse_swapped(sample: Pairs, settings: CorpusSettings) -> None:
    """Raise ValueError when a sample of training text has its sides exchanged."""
    if looks_swapped(*sample, src=settings.src, tgt=settings.tgt):
        raise ValueError(
            f"source and target look swapped: the source side ({settings.src}) reads like {settings.tgt} "
            f"({_short(sample[0][0])!r}); exchange data.src and data.tgt, or the files"
        )
