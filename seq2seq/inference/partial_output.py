"""Continue an interrupted translation of a file. Imports no torch."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import IO, Any

from seq2seq.system.files import put_in_place, write_json, written_directly


class PartialOutput:
    """Output that is written window by window, and a JSON note next to it.

    The note has the options that produced the output, and how much of it is complete and on the disk. What follows in
    the file, such as half a line or zeros after a power cut, is cut off.

    Attributes:
        file: The output, open for appending.
        done: Number of input lines whose output is complete.
        failed: Numbers, from 1, of the lines that were not translated.
    """

    def __init__(self, file: IO[bytes], note: Path, made_by: Mapping[str, Any]) -> None:
        self.file = file
        self._note = note
        self._made_by = json.loads(json.dumps(made_by))
        self.failed: set[int] = set()
        self.done = 0
        if size := os.fstat(file.fileno()).st_size:
            self._read_note(Path(file.name), size)
        self.keep(self.done, self.failed)

    def keep(self, done: int, failed: Set[int]) -> None:
        """Flush the output of `done` lines to the disk, then record it and the lines that have failed."""
        self.done = done
        self.failed = set(failed)
        self.file.flush()
        os.fsync(self.file.fileno())
        size = os.fstat(self.file.fileno()).st_size
        write_json(self._note, {"made_by": self._made_by, "lines": done, "bytes": size, "failed": sorted(self.failed)})

    def _read_note(self, partial: Path, size: int) -> None:
        """Cut the output to its complete lines; raise ValueError if it was made with other options."""
        try:
            before = json.loads(self._note.read_text("utf-8"))
            made_by, failed, lines, end = (before[key] for key in ("made_by", "failed", "lines", "bytes"))
            if not (0 <= end <= size and lines >= 0):
                raise ValueError
        except (OSError, ValueError, KeyError, TypeError):
            raise ValueError(
                f"{partial} does not match {self._note.name}, which is damaged, missing or of an earlier version; "
                f"remove {partial.name} to start over"
            ) from None
        differ = [key for key in made_by | self._made_by if made_by.get(key) != self._made_by.get(key)]
        if differ:
            both = (f"{key} {json.dumps(made_by.get(key))}, not {json.dumps(self._made_by.get(key))}" for key in differ)
            raise ValueError(f"{partial} was made with {'; '.join(both)}: use the same, or remove it to start over")
        self.file.truncate(end)
        self.done, self.failed = lines, set(failed)


@contextlib.contextmanager
def resumable_file(path: Path, *, made_by: Mapping[str, Any]) -> Iterator[PartialOutput]:
    """Open an output that becomes `path` once the block succeeds; if it fails, the next call continues the output.

    Until then, the output is `path`.partial, and `path`.partial.json the note.

    Args:
        made_by: Options and files on which the output depends, as JSON values.

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
        yield PartialOutput(file, note, made_by)
        file.flush()
        # Sync the content before the rename: after a power failure, the name must not lead to an empty file
        os.fsync(file.fileno())
        put_in_place(partial, final)
    note.unlink()


def identity(*paths: str | os.PathLike[str]) -> str:
    """Return a hash of the content of files; what cannot be read twice, such as a pipe, counts by its name."""
    digest = hashlib.blake2b(digest_size=8)
    for path in paths:
        if os.path.isfile(path):
            with open(path, "rb") as file:
                hashlib.file_digest(file, lambda: digest)
        else:
            digest.update(os.fsencode(path))
    return digest.hexdigest()
