"""Fingerprints of raw text, which identify cache folders and runs."""

from __future__ import annotations

import functools
import hashlib
import os
import re
from pathlib import Path
from typing import Any

from seq2seq.data.split_files import HUB_FILE, find_files, is_address, resolve_path
from seq2seq.settings.data import SPLITS, CorpusSettings

# Part of every fingerprint: raise it when the same raw data and settings give different text.
TEXT_VERSION = 1
_HASHED_WHOLE = 1 << 28  # bytes
_READ = re.compile(r"^README\.md$|\.(zip|tar|tgz|tar\.\w+)$", re.IGNORECASE)


def corpus_fingerprint(settings: CorpusSettings) -> str:
    """Hash the raw data, every setting that decides the text, and the code's version, as 16 hexadecimal digits.

    Rules on lengths are left out: they apply to encoded pairs, and leave the text unchanged.

    Raises:
        ValueError: A file of the settings is missing.
    """
    clean = settings.clean
    # A change of these parts renames all cache folders
    parts: list[Any] = [TEXT_VERSION, settings.src, settings.tgt, settings.columns, settings.format, settings.holdout]
    parts += [bool(rule) for rule in (clean.invalid_utf8, clean.empty, clean.same, clean.duplicates)]
    # Settings that are off add nothing, so that folders keep their names
    # 2: each file begins a document
    parts += [("context", settings.context, 2)] if settings.context else []
    parts += [("language", clean.language)] if clean.language else []
    parts += [settings.splits] if settings.splits != SPLITS else []
    if settings.path:
        # Identify a corpus of the hub by its name and revision, and a local folder also by the content of its files
        parts += [settings.path, settings.config, settings.data_dir, settings.revision]
        parts.append([settings.place(split) for split in SPLITS])
        local = resolve_path(settings.path)
        every = local.rglob("*") if local.is_dir() else []
        # The README may name the files of each split, and archives may hold them
        files = sorted(path for path in every if _READ.search(path.name) or HUB_FILE.search(path.name))
        parts.append([(str(path.relative_to(local)), file_fingerprint(path)) for path in files])
    else:
        for split in SPLITS:
            kind, files = find_files(split, settings) if settings.place(split) is not None else ("", [])
            # The same bytes give different text when they are read as another of these types
            parts += [kind] if kind in ("csv", "tsv", "tmx") else []
            # Identify a remote file by its address: hashing its content would mean downloading it
            parts.append([name if is_address(name) else file_fingerprint(Path(name)) for name in files])
    # 64 bits suffice for names that are not under attack
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def file_fingerprint(path: Path) -> str:
    """Hash a file's content; above 256 MiB, hash its size, mtime, ctime, and its first and last MiB."""
    hash_of = functools.partial(hashlib.blake2b, digest_size=8)
    status = path.stat()
    with path.open("rb") as file:
        if status.st_size <= _HASHED_WHOLE:
            return hashlib.file_digest(file, hash_of).hexdigest()
        # cp -p and tar preserve mtime; no program preserves ctime
        times = f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"
        begin = file.read(1 << 20)
        file.seek(-(1 << 20), os.SEEK_END)
        return hash_of(times.encode() + begin + file.read()).hexdigest()
