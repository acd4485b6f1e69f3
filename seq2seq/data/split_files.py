"""Files of a split, as the settings of a corpus name them."""

from __future__ import annotations

import glob
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from seq2seq.settings.data import CorpusSettings
from seq2seq.system.files import ARCHIVES, COMPRESSIONS, compression, uncompressed
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


def is_address(name: str) -> bool:
    """Return True for a remote file, such as hf://... and http://..."""
    return "://" in name and not name.startswith("package://")


def resolve_path(name: str) -> Path:
    """Resolve a path of the settings; `package://x` is x in the corpora that come with this package."""
    name = str(name)
    # A checkout and a wheel have the embedded corpora in different places
    if name.startswith("package://"):
        return data_dir() / name.removeprefix("package://")
    return Path(name).expanduser()


def find_files(split: str, settings: CorpusSettings) -> tuple[str, list[str]]:
    """Find the files of a split: a source and a target file of type "text", or files of another type of `FORMATS`.

    `data.train` may be a prefix (`corpus/train` finds corpus/train.de and corpus/train.en.xz; so does corpus/train.de),
    a list [source, target], a mapping {de: path, en: path}, or files that hold both sides (a path, a pattern with *, or
    a hf:// address).

    Raises:
        ValueError: A file is missing, or the two files of a list look swapped.
    """
    location = settings.place(split)
    name = f"data.{split}"
    if isinstance(location, Mapping | Sequence) and not isinstance(location, str):
        return "text", _two_files(location, name, settings)
    file_type = _file_type(str(location), settings)
    path = resolve_path(location)
    if file_type == "text":
        if "*" in path.name:
            raise ValueError(
                f"{name}={location}: a pattern is for files that hold both sides ({', '.join(TABULAR)}); join the "
                "files of each side, or name each pair of files in data.corpora"
            )
        prefix = _prefix(path, name, settings)
        languages = (settings.src, settings.tgt)
        return "text", [_by_language(prefix, language, name, named=path) for language in languages]
    # `datasets` resolves addresses
    if is_address(str(location)):
        return file_type, [str(location)]
    if "*" not in path.name:
        return file_type, [_existing(location, name, settings)]
    # Sorted: the order of a folder's entries differs between machines, and would change the data
    files = sorted(map(str, path.parent.glob(path.name)))
    if not files:
        raise ValueError(f"{name}: no file matches {path}")
    return file_type, files


def _two_files(location: Mapping[str, Any] | Sequence[Any], name: str, settings: CorpusSettings) -> list[str]:
    """Find the source and target files that a list or a mapping by language names."""
    named = location
    if isinstance(location, Mapping):
        languages = (settings.src, settings.tgt)
        if missing := [language for language in languages if language not in location]:
            raise ValueError(f"{name} has no language column {missing[0]!r}; it has {', '.join(map(repr, location))}")
        named = [location[language] for language in languages]
    # Lines of a table would be read as lines of text
    if tables := [file for file in named if _file_type(str(file), settings) != "text"]:
        raise ValueError(
            f"{name} names two files with aligned lines, but {tables[0]} is a table "
            f"({_file_type(str(tables[0]), settings)}): name one file or a pattern that has both sides, as in "
            f"'{name}=folder/*.jsonl', or set data.format=text"
        )
    if len(named) != 2:
        raise ValueError(f"{name} lists {len(named)} files; a list is [source file, target file]")
    files = [_existing(file, name, settings) for file in named]
    names = [Path(file).name for file in files]
    # All parts after the first dot, as in corpus.de.xz and train.clean.de
    src_suffixes, tgt_suffixes = (set(file.split(".")[1:]) for file in names)
    swapped = settings.tgt in src_suffixes and settings.src in tgt_suffixes and settings.src not in src_suffixes
    if swapped and not isinstance(location, Mapping):
        raise ValueError(
            f"{name} looks swapped: {names[0]} is given as the source ({settings.src}) and {names[1]} as the "
            f"target ({settings.tgt}); exchange the files, or data.src and data.tgt"
        )
    return files


def _file_type(name: str, settings: CorpusSettings) -> str:
    """Return the type of a file by `data.format`, else by its suffix (compression aside)."""
    if settings.format:
        if settings.format not in FORMATS:
            raise ValueError(f"data.format={settings.format!r}: choose {', '.join(FORMATS)}, or null (by suffix)")
        return settings.format
    # Any other suffix is part of a prefix, as in corpus/train.clean
    return TABULAR.get(uncompressed(Path(name)).suffix.lower(), "text")


def _existing(location: Any, name: str, settings: CorpusSettings) -> str:
    """Resolve the path of a file; raise ValueError if it does not exist."""
    path = resolve_path(location)
    if path.is_dir():
        raise ValueError(f"{name}: {path} is a folder, not a file")
    if not path.is_file():
        hint = ""
        if settings.format:
            hint = f"; data.format={settings.format} applies to every split: leave it out if suffixes name the formats"
        elif any(path.parent.glob(f"{glob.escape(path.name)}.{settings.src}*")):
            hint = f"; it is a prefix: give it alone, as in {name}={path}, and add further text by data.corpora"
        raise ValueError(f"{name}: the file {path} does not exist{hint}")
    return str(path)


def _prefix(path: Path, name: str, settings: CorpusSettings) -> Path:
    """Return the prefix of two files; for one of the two (corpus/train.de), the prefix that both share."""
    if not path.is_file() or any(path.parent.glob(f"{glob.escape(path.name)}.{settings.src}*")):
        return path
    stem = uncompressed(path)
    if stem.suffix.lower() in ARCHIVES:
        raise ValueError(
            f"{name}={path} is an archive: unpack it, and name its files "
            f"({', '.join(COMPRESSIONS)} are read as they are)"
        )
    for language in (settings.src, settings.tgt):
        if stem.name.endswith(f".{language}") and stem.name != f".{language}":
            return stem.with_name(stem.name.removesuffix(f".{language}"))
    raise ValueError(
        f"{name}={path}: its suffix is neither .{settings.src} nor .{settings.tgt}, nor a table's "
        f"({', '.join(TABULAR)}): give two files of lines, as in '{name}=[{path},<target file>]', or set data.format "
        f"for a table ({', '.join(FORMATS[1:])})"
    )


def _by_language(prefix: Path, language: str, name: str, *, named: Path) -> str:
    """Return <prefix>.<language>, plain or compressed; if it is missing, raise ValueError with the files that exist.

    Args:
        named: The path in the settings; if it is a file, files with its compression come first.
    """
    stem = f"{prefix.name}.{language}"
    found = [path for path in sorted(prefix.parent.glob(f"{glob.escape(stem)}*")) if path.is_file()]
    found = [path for path in found if path.name == stem or (compression(path) and path.stem == stem)]
    if found:
        order = [compression(named)] * (named != prefix) + ["", *COMPRESSIONS]
        return str(min(found, key=lambda path: order.index(compression(path))))
    near = sorted(path.name for path in prefix.parent.glob(f"{glob.escape(prefix.name)}.*"))[:8]
    if prefix.is_dir() and not near:
        inside = ", ".join(sorted(path.name for path in prefix.iterdir())[:8])
        raise ValueError(
            f"{name}={prefix} is a folder ({inside or 'empty'}): name the common prefix of its two files, as in "
            f"{name}={prefix}/train, or a file with both sides"
        )
    hint = f"there are {', '.join(near)}" if near else f"no file there begins with {prefix.name}."
    raise ValueError(
        f"{name}={prefix}: the file {prefix}.{language} (or {', '.join(COMPRESSIONS)}) does not exist; {hint}"
    )
