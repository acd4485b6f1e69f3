"""Continue an interrupted translation of a file. Imports no torch."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Set
from itertools import islice
from pathlib import Path
from typing import IO, Any

from seq2seq.system.files import put_in_place, write_json, written_directly


class PartialOutput:
    """Output that is written window by window, and a JSON file next to it with the options that produced it.

    Attributes:
        file: The output, open for appending.
        done: Number of input lines whose output is complete.
        failed: Numbers, from 1, of the lines that were not translated.
    """

    def __init__(self, file: IO[bytes], note: Path, made_by: Mapping[str, Any], lines_each: int) -> None:
        self.file = file
        self._note = note
        self._made_by = json.loads(json.dumps(made_by))
        self.failed: set[int] = set()
        self.done = 0
        partial = Path(file.name)
        if partial.stat().st_size:
            failed = self._read_note(partial)
            self.done = _keep_whole(partial, lines_each)
            self.failed = {number for number in failed if number <= self.done}
        self._write_note()

    def remember(self, failed: Set[int]) -> None:
        """Record all lines that have failed, before the empty output of a window's failed lines is written."""
        if failed != self.failed:
            self.failed = set(failed)
            self._write_note()

    def _read_note(self, partial: Path) -> list[int]:
        """Return the lines that have failed; raise ValueError if the output was made with other options."""
        try:
            before = json.loads(self._note.read_text("utf-8"))
            made_by, failed = before["made_by"], before["failed"]
        except (OSError, ValueError, KeyError, TypeError):
            raise ValueError(
                f"{partial} does not say what made it ({self._note.name}); remove it to begin anew"
            ) from None
        for key in made_by | self._made_by:
            if made_by.get(key) != self._made_by.get(key):
                raise ValueError(
                    f"{partial} was made with {key} {json.dumps(made_by.get(key))}, not "
                    f"{json.dumps(self._made_by.get(key))}; use the same, or remove it to begin anew"
                )
        return failed

    def _write_note(self) -> None:
        write_json(self._note, {"made_by": self._made_by, "failed": sorted(self.failed)})


@contextlib.contextmanager
def resumable_file(path: Path, *, made_by: Mapping[str, Any], lines_each: int) -> Iterator[PartialOutput]:
    """Open an output that becomes `path` once the block succeeds; if it fails, the next call continues the output.

    Until then, the output is `path`.partial, and `path`.partial.json contains `made_by`.

    Args:
        made_by: Options and files on which the output depends, as JSON values.
        lines_each: Lines of output for each line of input.

    Raises:
        ValueError: The output is not a regular file, was made with other options, or another process writes it.
    """
    # Not every system has fcntl; imported here, so that the rest of the program runs without it
    import fcntl

    # A link keeps pointing at its target
    final = Path(os.path.realpath(path))
    if written_directly(path) or final.is_dir():
        raise ValueError(f"{path} is not a regular file and cannot be continued; leave out --resume")
    partial, note = (final.with_name(final.name + ending) for ending in (".partial", ".partial.json"))
    with open(partial, "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{partial} is being written by another process; wait for its end") from None
        yield PartialOutput(file, note, made_by, lines_each)
        file.flush()
        # Sync the content before the rename: after a power failure, the name must not lead to an empty file
        os.fsync(file.fileno())
        put_in_place(partial, final)
    note.unlink()


def identity(path: str | os.PathLike[str]) -> Any:
    """Return the identity of a file, its size and hash; of a folder, the identities of its files.

    Anything else, such as a name on a hub, is its own identity.
    """
    path = Path(path)
    if path.is_dir():
        return {str(each.relative_to(path)): identity(each) for each in sorted(path.rglob("*")) if each.is_file()}
    if not path.is_file():
        return str(path)
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "blake2b")
    return {"bytes": path.stat().st_size, "blake2b": digest.hexdigest()[:32]}


def _keep_whole(partial: Path, lines_each: int) -> int:
    """Cut a file after the last input line with complete output; return the number of such lines."""
    done = 0
    end = 0
    with open(partial, "r+b") as file:
        while len(lines := list(islice(file, lines_each))) == lines_each and lines[-1].endswith(b"\n"):
            done += 1
            end += sum(map(len, lines))
        file.truncate(end)
    return done
