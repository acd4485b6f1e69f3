"""Continue an interrupted translation of a file. Imports no torch."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from seq2seq.files import write_json

_CHUNK = 1 << 20


@contextlib.contextmanager
def resumable_file(path: Path, *, made_by: Mapping[str, Any], lines_each: int) -> Iterator[tuple[IO[bytes], int]]:
    """Open a binary file that becomes `path` once the block succeeds, and is continued the next time if it does not.

    Until then it is `path`.partial; `path`.partial.json says what makes it.

    Args:
        made_by: Options and files that its lines depend on, as JSON has them.
        lines_each: Lines of output for each line of input.

    Yields:
        The file, and the number of lines of input whose output it has.

    Raises:
        ValueError: The file was made by something else, or another process writes it.
    """
    partial, note = _beside(path, ".partial"), _beside(path, ".partial.json")
    _check_origin(partial, note, made_by)
    with open(partial, "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{partial} is being written by another process; wait for its end") from None
        write_json(note, made_by)
        done = _keep_whole(partial, lines_each)
        yield file, done
        file.flush()
        # content before the rename: after a power cut the name must not lead to an empty file
        os.fsync(file.fileno())
        os.replace(partial, path)
    note.unlink()


def file_identity(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return by what a file is recognized, wherever it lies: its size, and a hash of its bytes."""
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "blake2b")
    return {"bytes": os.path.getsize(path), "blake2b": digest.hexdigest()[:32]}


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


def _check_origin(partial: Path, note: Path, made_by: Mapping[str, Any]) -> None:
    """Refuse a partial file that something else has made."""
    if not partial.exists():
        return
    try:
        before = json.loads(note.read_text("utf-8"))
    except (OSError, ValueError):
        raise ValueError(f"{partial} does not say what made it ({note.name}); remove it to begin anew") from None
    now = json.loads(json.dumps(made_by))
    for key in before | now:
        if before.get(key) != now.get(key):
            raise ValueError(
                f"{partial} was made with {key} {json.dumps(before.get(key))}, not {json.dumps(now.get(key))}; "
                "use the same, or remove it to begin anew"
            )


def _keep_whole(partial: Path, lines_each: int) -> int:
    """Cut a file after the last input line whose output it has whole; return the number of these lines."""
    with open(partial, "r+b") as file:
        total = sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(_CHUNK), b""))
        done = total // lines_each
        file.seek(0)
        end = 0
        for _ in range(done * lines_each):
            end += len(file.readline())
        file.truncate(end)
    return done
