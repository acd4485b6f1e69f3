"""Cache folders whose files carry checksums: written once, checked once per use, and made again if damaged."""

from __future__ import annotations

import json
import logging
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import xxhash

from seq2seq.faults import first_line
from seq2seq.files import build_once, write_text

log = logging.getLogger(__name__)

CHECKSUMS = "checksums.json"
# Seconds for which other processes rely on a check: the ranks of a run, the jobs of a sweep.
CHECK_HOLDS = 600.0
_BLOCK = 1 << 22

Content = TypeVar("Content")


def cached(target: Path, what: str, *, build: Callable[[Path], Any], read: Callable[[Path], Content]) -> Content:
    """Read the cache folder `target`, built if it is missing and built anew if a file in it is damaged.

    One process checks and builds while others wait.

    Args:
        what: The name of the content in messages.
        build: Writes the files of the empty folder.
        read: Opens them.

    Raises:
        ValueError: The folder cannot be written or replaced; the message names the remedy. Or `build` raises it.
    """

    def build_with_checksums(folder: Path) -> None:
        build(folder)
        _write_checksums(folder)

    try:
        if not _is_recently_checked(target):
            if os.path.lexists(target) and not os.access(target.parent, os.W_OK):
                # No lock can be taken here, and nothing replaced
                _require_whole(target, what)
            else:
                build_once(target, what, build_with_checksums, damage=_find_damage)
                _note_check(target)
        return read(target)
    except OSError as error:
        raise _explained(error, target, what) from error


def _require_whole(target: Path, what: str) -> None:
    if damage := _find_damage(target):
        raise ValueError(
            f"{damage}, and {target.parent} cannot be written: make it writable, have {what} made again by somebody "
            "who may, or set cache=<another folder>"
        )


def _explained(error: OSError, target: Path, what: str) -> ValueError:
    """Describe an error of the disk, and what to do about it."""
    named = f"{error.filename}: " if error.filename else ""
    reason = error.strerror or str(error)
    return ValueError(
        f"cache={target.parent}: {what} could not be made or read ({named}{reason}): make room or mend it and run the "
        "same command again, or set cache=<another folder>"
    )


# Checks


def _is_recently_checked(target: Path) -> bool:
    """Return True if a check of at most CHECK_HOLDS seconds ago is still worth something, by size and time of files.

    A check sets the time of the file of checksums.
    """
    try:
        files = _read_checksums(target)
        checked = (target / CHECKSUMS).stat().st_mtime_ns
        states = {name: _file_state(target / name) for name in files}
    except (OSError, ValueError):
        return False
    # A time in the future is that of another machine's clock
    if not 0 <= time.time() - checked / 1e9 <= CHECK_HOLDS:
        return False
    return all(
        # The inode's time: `cp -p` and the like keep that of the content
        state.st_size == files[name][0] and state.st_ctime_ns < checked
        for name, state in states.items()
    )


def _note_check(target: Path) -> None:
    try:
        # Now, by the clock of the disk, which the times of files are compared with
        os.utime(target / CHECKSUMS)
    except OSError:
        # Somebody else's folder: every process then checks for itself
        log.debug("%s: the check cannot be noted", target)


def _find_damage(folder: Path) -> str | None:
    """Return the first file that is not as it was written, and what is wrong with it; None for a whole folder."""
    if not folder.is_dir():
        return f"{folder} is not a folder"
    try:
        files = _read_checksums(folder)
    except (OSError, ValueError) as error:
        return f"{folder / CHECKSUMS} is damaged ({_reason(error)})"
    for name, (size, checksum) in files.items():
        path = folder / name
        try:
            found = _file_state(path).st_size
            if found != size:
                return f"{path} is damaged ({found:,} bytes where {size:,} were written)"
            if _checksum(path) != checksum:
                return f"{path} is damaged (its content has changed)"
        except (OSError, ValueError) as error:
            return f"{path} is damaged ({_reason(error)})"
    return None


def _file_state(path: Path) -> os.stat_result:
    """Return size and times of a file; ValueError for a folder, or for a pipe, which would wait for its writer."""
    state = path.stat()
    if not stat.S_ISREG(state.st_mode):
        raise ValueError("it is not a file")
    return state


def _reason(error: BaseException) -> str:
    return getattr(error, "strerror", None) or first_line(error)


# Checksums


def _write_checksums(folder: Path) -> None:
    """Write size and checksum of every file of a folder, and a checksum of this list."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != CHECKSUMS)
    files = {str(path.relative_to(folder)): (path.stat().st_size, _checksum(path)) for path in paths}
    write_text(folder / CHECKSUMS, _listing(files))


def _read_checksums(folder: Path) -> dict[str, tuple[int, str]]:
    """Read the result of `_write_checksums`; ValueError if it is damaged."""
    _file_state(folder / CHECKSUMS)
    found = (folder / CHECKSUMS).read_bytes()
    try:
        files = {str(name): (int(size), str(checksum)) for name, (size, checksum) in json.loads(found)["files"].items()}
        whole = found == _listing(files).encode()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        whole, files = False, {}
    if not whole:
        raise ValueError("its content has changed")
    return files


def _listing(files: dict[str, tuple[int, str]]) -> str:
    own = xxhash.xxh3_64_hexdigest(json.dumps(files).encode())
    return json.dumps({"files": files, "checksum": own}, indent=1) + "\n"


def _checksum(path: Path) -> str:
    """Compute the checksum of a file, 64 bits against accidents, not against forgery: 10 GB/s where SHA-256 has 1."""
    digest = xxhash.xxh3_64()
    buffer = bytearray(_BLOCK)
    view = memoryview(buffer)
    # Unbuffered, into one buffer: no copy is made
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(view[:count])
    return digest.hexdigest()
