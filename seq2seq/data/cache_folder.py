"""Cache folders: built once under a lock, checked at each use by the sizes of their files, rebuilt if damaged."""

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

# File that lists the size of every other file.
SIZES = "sizes.json"

Content = TypeVar("Content")


def cached(target: Path, what: str, *, build: Callable[[Path], Any], read: Callable[[Path], Content]) -> Content:
    """Read the cache folder `target`; build it if it or one of its files is missing, truncated or unreadable.

    Args:
        build: Writes the files of the empty folder; one process builds while others wait.
        read: Opens these files.

    Raises:
        ValueError: The folder cannot be written or replaced, or `build` raises it.
    """

    def build_with_sizes(folder: Path) -> None:
        build(folder)
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        for path in paths:
            # Without fsync, a file of the right size may lack its content after a power failure
            with path.open("rb") as file:
                os.fsync(file.fileno())
        write_json(folder / SIZES, {str(path.relative_to(folder)): path.stat().st_size for path in paths})

    try:
        folder = build_once(target, what, build_with_sizes, is_whole=_is_whole)
        try:
            return read(folder)
        # Readers find damage that leaves the size unchanged
        except (ValueError, RuntimeError, KeyError) as error:
            log.warning("%s cannot be read (%s)", folder, first_line(error))
            return read(build_once(target, what, build_with_sizes, is_whole=lambda _: False))
    except OSError as error:
        named = f"{error.filename}: " if error.filename else ""
        reason = error.strerror or first_line(error)
        raise ValueError(
            f"cache={target.parent}: {what} could not be made or read ({named}{reason}): make room or repair it, and "
            "run the same command again; or set cache=<another folder>"
        ) from error


def _is_whole(folder: Path) -> bool:
    """Return True if every file has its recorded size."""
    try:
        sizes = json.loads((folder / SIZES).read_bytes())
        return all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, AttributeError, TypeError):
        return False
