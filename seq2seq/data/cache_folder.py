"""Cache folders: built once under a lock, checked by the sizes of their files at each use, built anew if damaged."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from seq2seq.system.errors import first_line
from seq2seq.system.files import build_once, write_json

log = logging.getLogger(__name__)

# The file with the size of every other file.
SIZES = "sizes.json"

Content = TypeVar("Content")


def cached(target: Path, what: str, *, build: Callable[[Path], Any], read: Callable[[Path], Content]) -> Content:
    """Read the cache folder `target`, built if it is missing, and anew if a file is missing, cut or unreadable.

    Args:
        what: The name of the content in messages.
        build: Writes the files of the empty folder; one process builds while others wait.
        read: Opens them.

    Raises:
        ValueError: The folder cannot be written or replaced; the message names the remedy. Or `build` raises it.
    """

    def build_with_sizes(folder: Path) -> None:
        build(folder)
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        for path in paths:
            # Sizes tell nothing of content that a power cut has kept from the disk
            with path.open("rb") as file:
                os.fsync(file.fileno())
        write_json(folder / SIZES, {str(path.relative_to(folder)): path.stat().st_size for path in paths})

    try:
        folder = build_once(target, what, build_with_sizes, is_whole=_is_whole)
        try:
            return read(folder)
        # Other bytes of the same size, by what their readers make of them
        except (ValueError, RuntimeError, KeyError) as error:
            log.warning("%s cannot be read (%s)", folder, first_line(error))
            return read(build_once(target, what, build_with_sizes, is_whole=lambda _: False))
    except OSError as error:
        named = f"{error.filename}: " if error.filename else ""
        reason = error.strerror or first_line(error)
        raise ValueError(
            f"cache={target.parent}: {what} could not be made or read ({named}{reason}): make room or mend it and run "
            "the same command again, or set cache=<another folder>"
        ) from error


def _is_whole(folder: Path) -> bool:
    """Return True if every file has the size that was written."""
    try:
        sizes = json.loads((folder / SIZES).read_bytes())
        return all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, AttributeError, TypeError):
        return False
