"""Read standard input and write standard output so that every byte arrives or an error is raised. Imports no torch."""

from __future__ import annotations

import contextlib
import io
import os
import select
import sys
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer


class _Descriptor(io.RawIOBase):
    """An open file descriptor that waits where it would block, and whose errors name the stream.

    Args:
        descriptor: It stays open when this object is closed.
        name: The stream's name in messages.
    """

    def __init__(self, descriptor: int, name: str) -> None:
        self.descriptor = descriptor
        self.name = name
        # What is still buffered is dropped once writing has failed: it would fail again at the end of the program
        self.failed = False

    def fileno(self) -> int:
        """Return the descriptor."""
        return self.descriptor

    def readable(self) -> bool:
        """Return True: BufferedReader asks."""
        return True

    def writable(self) -> bool:
        """Return True: BufferedWriter asks."""
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Read what is there, at least a byte; 0 at the end."""
        while True:
            try:
                data = os.read(self.descriptor, memoryview(buffer).nbytes)
            # Whoever shares a pipe or terminal may have made it non-blocking
            except BlockingIOError:
                select.select([self.descriptor], [], [])
            except OSError as error:
                raise OSError(error.errno, error.strerror, self.name) from None
            else:
                memoryview(buffer).cast("B")[: len(data)] = data
                return len(data)

    def write(self, data: ReadableBuffer) -> int:
        """Write a part of the data, and return its size; a BufferedWriter goes on until all is written."""
        if self.failed:
            return memoryview(data).nbytes
        while True:
            try:
                return os.write(self.descriptor, data)
            except BlockingIOError:
                select.select([], [self.descriptor], [])
            except OSError as error:
                self.failed = True
                raise OSError(error.errno, error.strerror, self.name) from None


def standard_input() -> BinaryIO | IO[bytes] | None:
    """Return standard input as a stream of bytes that ends only where the input does; None if it is closed."""
    if sys.stdin is None:
        return None
    try:
        return io.BufferedReader(_Descriptor(sys.stdin.fileno(), "standard input"))
    # In memory
    except (OSError, ValueError):
        return sys.stdin.buffer


@contextlib.contextmanager
def whole_output() -> Iterator[None]:
    """Let every write to sys.stdout in this block deliver all its bytes or raise OSError, at the latest at its end.

    Python's own is not enough: with PYTHONUNBUFFERED it writes once and ignores how much of the text that took, and a
    non-blocking pipe that is full costs the rest.
    """
    python = sys.stdout
    try:
        raw = _Descriptor(python.fileno(), "standard output")
    # Closed, or in memory
    except (AttributeError, OSError, ValueError):
        yield
        return
    python.flush()
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=python.encoding,
        # A file's name may be any bytes
        errors="surrogateescape" if python.encoding.lower() in ("utf-8", "utf8") else "backslashreplace",
        # A pipe gets whole blocks, a terminal whole lines
        line_buffering=getattr(python, "line_buffering", True) or getattr(python, "write_through", True),
    )
    try:
        yield
        sys.stdout.flush()
        # A network file system reports a full disk only when a descriptor of the file is closed
        os.close(os.dup(raw.descriptor))
    finally:
        # An interrupted command still delivers what it has printed, if anybody reads it
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        raw.failed = True
        sys.stdout = python


def print_error(message: str) -> None:
    """Print a line on standard error, if there is one: what cannot be reported must not stop the work."""
    # print(file=None) would write to standard output
    if sys.stderr is None:
        return
    try:
        print(message, file=sys.stderr, flush=True)
    except (OSError, ValueError):
        # Python's own flush at its end would fail again and change the exit status
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def fill_closed_descriptors() -> None:
    """Open /dev/null for each of the descriptors 0, 1 and 2 that is closed.

    Otherwise the next file that is opened gets its number, and what a library prints is written into that file.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            # The lowest number that is free
            os.open(os.devnull, os.O_RDWR)
