"""Fingerprints of raw text: cache folders and runs are recognized by them."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from seq2seq.data.split_files import HUB_FILE, find_files, resolve_path
from seq2seq.data.text_files import is_markup
from seq2seq.settings.data import SPLITS, CorpusSettings

# NamedCorpus of every fingerprint: raise it when the same raw data and settings give other text.
TEXT_VERSION = 1
_HASHED_WHOLE = 1 << 28  # bytes


def corpus_fingerprint(settings: CorpusSettings) -> str:
    """Hash the raw data, every setting that decides the text, and this code's version, as 16 hexadecimal digits.

    Rules on lengths are not among them: they apply to encoded pairs, and leave the text as it is.

    Raises:
        ValueError: A file of the settings is missing.
    """
    # The form of `parts` names the folders of existing caches: a change of it orphans them all.
    clean = settings.clean
    parts: list[Any] = [TEXT_VERSION, settings.src, settings.tgt, settings.columns, settings.format, settings.holdout]
    parts += [bool(rule) for rule in (clean.invalid_utf8, clean.empty, clean.same, clean.duplicates)]
    # The default adds nothing, so that its caches keep their names
    parts += [settings.splits] if settings.splits != SPLITS else []
    if settings.path:
        # A hub corpus by its name and revision, a local one also by the content of its files
        parts += [settings.path, settings.config, settings.data_dir, settings.revision]
        parts.append([settings.place(split) for split in SPLITS])
        local = resolve_path(settings.path)
        every = local.rglob("*") if local.is_dir() else []
        # A README may say whose split a file is
        files = sorted(path for path in every if path.name == "README.md" or HUB_FILE.search(path.name))
        parts.append([(str(path.relative_to(local)), file_fingerprint(path)) for path in files])
        # Read by our own readers, where `datasets` once made numbers, missing values, and rows of other lengths
        tables = any({"csv", "tsv"} & set(path.name.lower().split(".")) for path in files)
        parts += ["rows of text"] if tables else []
    else:
        for split in SPLITS:
            source = find_files(split, settings) if settings.place(split) is not None else None
            files = source.files if source else []
            # The same bytes may be read by the rules of CSV (quotes) or of TSV; the other types cannot be mistaken
            parts += ["csv"] if source and source.type == "csv" and not settings.format else []
            # What earlier versions read otherwise: quotes and rows of other lengths, breaks among codes, markup
            parts += ["2"] if source and source.type in ("tsv", "tmx") else []
            parts += ["segments"] if source and source.type == "text" and any(map(is_markup, files)) else []
            # A remote file by its address alone: hashing it would mean downloading it
            parts.append([name if "://" in name else file_fingerprint(Path(name)) for name in files])
    # 64 bits suffice for names that nobody attacks
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def file_fingerprint(path: Path) -> str:
    """Hash a file's content; beyond 256 MiB, its size, times (of any change too), first and last MiB."""
    digest = hashlib.blake2b(digest_size=8)
    status = path.stat()
    with path.open("rb") as file:
        if status.st_size <= _HASHED_WHOLE:
            while block := file.read(1 << 20):  # 1 MiB at a time
                digest.update(block)
        else:
            # Cp -p and tar keep the time of the content; nobody can keep that of the inode
            times = f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"
            digest.update(times.encode() + file.read(1 << 20))
            file.seek(-(1 << 20), os.SEEK_END)
            digest.update(file.read())
    return digest.hexdigest()
