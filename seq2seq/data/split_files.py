"""Sources of a corpus: the files that the settings of a split name."""

from __future__ import annotations

import glob
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from seq2seq.settings.data import CorpusSettings
from seq2seq.system.files import COMPRESSIONS, compression, uncompressed
from seq2seq.system.resources import data_dir

TABULAR = {
    ".jsonl": "json",
    ".json": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
    ".csv": "csv",
    ".tsv": "tsv",
    ".tmx": "tmx",
}
FORMATS = ("text", *dict.fromkeys(TABULAR.values()))
# Names of files that hold text in a folder of the hub's layout.
HUB_FILE = re.compile(
    rf"\.(jsonl?|ndjson|parquet|arrow|csv|tsv|txt)({'|'.join(map(re.escape, COMPRESSIONS))})?$", re.IGNORECASE
)


class SplitFiles(NamedTuple):
    """Files of a split: of type "text" a source and a target file, of every other type of `FORMATS` files of pairs."""

    type: str
    files: list[str]


def is_address(name: str) -> bool:
    """Return True for what is not on this machine, as hf://... and http://... are."""
    return "://" in name and not name.startswith("package://")


def resolve_path(name: str) -> Path:
    """Resolve a path of the settings; `package://x` is x in the corpora that come with this package."""
    name = str(name)
    # The embedded corpora lie elsewhere in a checkout than in a wheel
    if name.startswith("package://"):
        return data_dir() / name.removeprefix("package://")
    return Path(name).expanduser()


def find_files(split: str, settings: CorpusSettings) -> SplitFiles:
    """Find the files of a split.

    `data.train` may be a prefix (`corpus/train` finds corpus/train.de and corpus/train.en.xz; so does corpus/train.de),
    a list [source, target], a mapping {de: path, en: path}, or files that hold both sides (a path, a pattern with *, or
    a hf:// address).

    Raises:
        ValueError: A file is missing, or the two files of a list look swapped.
    """
    location = settings.place(split)
    name = f"data.{split}"
    if isinstance(location, Mapping | Sequence) and not isinstance(location, str):
        _refuse_tables(location, name, settings)
    # {de: path, en: path}: named by language, so the direction cannot be wrong
    if isinstance(location, Mapping):
        languages = (settings.src, settings.tgt)
        missing = [language for language in languages if language not in location]
        if missing:
            raise ValueError(f"{name} has no language column {missing[0]!r}; it has {', '.join(map(repr, location))}")
        return SplitFiles("text", [_existing(location[language], name, settings) for language in languages])
    # [source, target]: by position, so check that the suffixes agree with it
    if isinstance(location, Sequence) and not isinstance(location, str):
        if len(location) != 2:
            raise ValueError(f"{name} lists {len(location)} files; a list is [source file, target file]")
        files = [_existing(entry, name, settings) for entry in location]
        _refuse_swapped_files(files, name, settings)
        return SplitFiles("text", files)
    file_type = _file_type(str(location), settings)
    # A prefix of two files, one for each language
    if file_type == "text":
        path = resolve_path(location)
        prefix = _prefix(path, name, settings)
        languages = (settings.src, settings.tgt)
        return SplitFiles("text", [_by_language(prefix, language, name, named=path) for language in languages])
    # An address on the hub cannot be listed here; `datasets` resolves it
    if is_address(str(location)):
        return SplitFiles(file_type, [str(location)])
    path = resolve_path(location)
    if "*" not in path.name:
        return SplitFiles(file_type, [_existing(location, name, settings)])
    # sorted: the order of a folder's entries differs between machines, and would change the data
    files = sorted(map(str, path.parent.glob(path.name)))
    if not files:
        raise ValueError(f"{name}: no file matches {path}")
    return SplitFiles(file_type, files)


def _file_type(name: str, settings: CorpusSettings) -> str:
    """Return the type of a file by `data.format`, else by its suffix (compression aside)."""
    if settings.format:
        if settings.format not in FORMATS:
            raise ValueError(f"data.format={settings.format!r}: choose {', '.join(FORMATS)}, or null (by suffix)")
        return settings.format
    # x.jsonl.gz -> .jsonl; any other suffix is part of a prefix, as in corpus/train.clean
    return TABULAR.get(uncompressed(Path(name)).suffix.lower(), "text")


def _existing(location: Any, name: str, settings: CorpusSettings) -> str:
    """Resolve the path of a file; ValueError if it does not exist."""
    path = resolve_path(location)
    if path.is_dir():
        raise ValueError(f"{name}: {path} is a folder, not a file")
    if not path.is_file():
        hint = ""
        if settings.format:
            hint = f"; data.format={settings.format} holds for every split: leave it out where suffixes say the types"
        elif any(path.parent.glob(f"{glob.escape(path.name)}.{settings.src}*")):
            hint = f"; it is a prefix: give one, as in {name}={path}, and further text by data.corpora"
        raise ValueError(f"{name}: the file {path} does not exist{hint}")
    return str(path)


def _prefix(path: Path, name: str, settings: CorpusSettings) -> Path:
    """Return the prefix of two files; for one of the two (corpus/train.de), the prefix that it has with the other.

    Raises:
        ValueError: `path` is a file whose name does not end with a language.
    """
    if not path.is_file() or any(path.parent.glob(f"{glob.escape(path.name)}.{settings.src}*")):
        return path
    stem = uncompressed(path)
    for language in (settings.src, settings.tgt):
        if stem.name.endswith(f".{language}") and stem.name != f".{language}":
            return stem.with_name(stem.name.removesuffix(f".{language}"))
    # One file alone: what it is cannot be known, but how to say so can
    raise ValueError(
        f"{name}={path}: its name ends neither with .{settings.src} nor with .{settings.tgt}, nor as a table's "
        f"({', '.join(TABULAR)}): give two files of lines, as in '{name}=[{path},<target file>]', or for a table "
        f"its data.format ({', '.join(FORMATS[1:])})"
    )


def _by_language(prefix: Path, language: str, name: str, *, named: Path) -> str:
    """Return <prefix>.<language>, plain or compressed; ValueError with the files that are there if it is missing.

    Args:
        named: What the user named; of a file, its compression comes first.
    """
    stem = f"{prefix.name}.{language}"
    found = [path for path in sorted(prefix.parent.glob(f"{glob.escape(stem)}*")) if path.is_file()]
    found = [path for path in found if path.name == stem or (compression(path) and path.stem == stem)]
    if found:
        # Plain first, then compressed; where a compressed file was named, its compression first
        order = [compression(named)] * (named != prefix) + ["", *COMPRESSIONS]
        return str(min(found, key=lambda path: order.index(compression(path))))
    # What is there helps with a mistyped language more than what is not
    near = sorted(path.name for path in prefix.parent.glob(f"{glob.escape(prefix.name)}.*"))[:8]
    hint = f"there are {', '.join(near)}" if near else f"no file there begins with {prefix.name}."
    raise ValueError(
        f"{name}={prefix}: the file {prefix}.{language} (or {', '.join(COMPRESSIONS)}) does not exist; {hint}"
    )


def _refuse_tables(location: Any, name: str, settings: CorpusSettings) -> None:
    """Refuse tables where two files of lines are named, which would be read as lines of text."""
    files = list(location.values()) if isinstance(location, Mapping) else list(location)
    tables = [file for file in files if _file_type(str(file), settings) != "text"]
    if tables:
        raise ValueError(
            f"{name} names two files, whose lines belong together, and {tables[0]} is a table "
            f"({_file_type(str(tables[0]), settings)}): name one file or a pattern that has both sides, as in "
            f"'{name}=folder/*.jsonl', or set data.format=text"
        )


def _refuse_swapped_files(paths: list[str], name: str, settings: CorpusSettings) -> None:
    """Refuse two files whose suffixes name the languages in the other order."""
    names = [Path(path).name for path in paths]
    # Every part after the first dot: corpus.de.xz and train.clean.de
    src_suffixes, tgt_suffixes = (set(file.split(".")[1:]) for file in names)
    # Only if both names say so, and the first does not name the source language as well
    if settings.tgt in src_suffixes and settings.src in tgt_suffixes and settings.src not in src_suffixes:
        raise ValueError(
            f"{name} looks swapped: {names[0]} is given as the source ({settings.src}) and {names[1]} as the "
            f"target ({settings.tgt}); exchange the files, or data.src and data.tgt"
        )
