"""Read standard input and write standard output without losing bytes silently. Imports no torch."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from typing import BinaryIO

from seq2seq.system.errors import one_line


class LogHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Handler that prints log lines on standard output, above a bar of rich's global console if it has one."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record."""
        # While a console shows a bar, this proxy is in the place of standard output
        if not hasattr(sys.stdout, "rich_proxied_file"):
            return super().emit(record)
        from rich import get_console
        from rich.text import Text

        # The proxy would wrap a long line
        return get_console().print(Text(self.format(record)), soft_wrap=True)


def standard_input() -> BinaryIO:
    """Return standard input as a stream of bytes."""
    # A stream in memory has no descriptor
    with contextlib.suppress(OSError, ValueError):
        # A pipe that another program has made non-blocking would seem to end at a pause
        os.set_blocking(sys.stdin.fileno(), True)
    return sys.stdin.buffer


@contextlib.contextmanager
def whole_output() -> Iterator[None]:
    """Make every write to sys.stdout deliver all bytes or raise OSError, at the latest at the end of this block.

    Python's own stream may lose bytes: with PYTHONUNBUFFERED it ignores short writes, and when a non-blocking pipe is
    full, it drops the rest of the text.
    """
    python = sys.stdout
    try:
        descriptor = python.fileno()
    # A stream in memory
    except (AttributeError, OSError, ValueError):
        yield
        return
    python.flush()
    os.set_blocking(descriptor, True)
    sys.stdout = open(  # noqa: SIM115 - not closed
        descriptor,
        "w",
        # Line by line with PYTHONUNBUFFERED
        buffering=1 if getattr(python, "write_through", False) else -1,
        encoding=python.encoding,
        # Names of files may have any bytes
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
            # Python would write the rest again when it exits, and fail again
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
            raise
        finally:
            sys.stdout = python


def fill_closed_descriptors() -> None:
    """Open /dev/null for each standard stream that is closed; writing to such a standard output fails.

    Otherwise the next file that is opened gets the stream's number, and what a library prints goes into that file.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            # The lowest free number
            os.open(os.devnull, os.O_WRONLY if name == "stderr" else os.O_RDONLY)
            stream = open(descriptor, "r" if name == "stdin" else "w", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)


def print_error(message: str) -> None:
    """Print a line on standard error, with control characters visible; a failure to print does not stop the work."""
    try:
        print(one_line(message), file=sys.stderr, flush=True)
    except OSError:
        # Python's flush at exit would fail again and change the exit status
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
