"""Read standard input and write standard output so that every byte arrives or an error is raised. Imports no torch."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import BinaryIO


def standard_input() -> BinaryIO:
    """Return standard input as a stream of bytes that ends only where the input does."""
    # In memory there is no descriptor
    with contextlib.suppress(OSError, ValueError):
        # A pipe that another program has made non-blocking would seem to end where it pauses
        os.set_blocking(sys.stdin.fileno(), True)
    return sys.stdin.buffer


@contextlib.contextmanager
def whole_output() -> Iterator[None]:
    """Let every write to sys.stdout in this block deliver all its bytes or raise OSError, at the latest at its end.

    Python's own is not enough: with PYTHONUNBUFFERED it writes once and ignores how much of the text that took, and a
    non-blocking pipe that is full costs the rest.
    """
    python = sys.stdout
    try:
        descriptor = python.fileno()
    # In memory
    except (AttributeError, OSError, ValueError):
        yield
        return
    python.flush()
    os.set_blocking(descriptor, True)
    sys.stdout = open(  # noqa: SIM115 - not closed
        descriptor,
        "w",
        # Lines for who wants no buffer; by default a terminal gets lines, and a pipe blocks
        buffering=1 if getattr(python, "write_through", False) else -1,
        encoding=python.encoding,
        # A file's name may be any bytes
        errors="surrogateescape" if python.encoding.lower() in ("utf-8", "utf8") else "backslashreplace",
        closefd=False,
    )
    try:
        yield
    finally:
        # An interrupted command still delivers what it has printed
        try:
            sys.stdout.flush()
            # A network file system reports a full disk only when a descriptor of the file is closed
            os.close(os.dup(descriptor))
        except OSError:
            # Python would write the rest again at its end, and fail again
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
            raise
        finally:
            sys.stdout = python


def print_error(message: str) -> None:
    """Print a line on standard error; what cannot be reported must not stop the work."""
    try:
        print(message, file=sys.stderr, flush=True)
    except OSError:
        # Python's own flush at its end would fail again and change the exit status
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def fill_closed_descriptors() -> None:
    """Open /dev/null in place of each standard stream that is closed; what is written to standard output then fails.

    Otherwise the next file that is opened gets its number, and what a library prints is written into that file.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            # The lowest number that is free
            os.open(os.devnull, os.O_WRONLY if name == "stderr" else os.O_RDONLY)
            stream = open(descriptor, "r" if name == "stdin" else "w", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
