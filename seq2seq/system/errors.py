"""Recognize full memory and full disks, quote errors and foreign text in one line. Imports no torch."""

from __future__ import annotations

import errno
import os
import re
from typing import Any

_OUT_OF_MEMORY = ("out of memory", "not enough memory", "can't allocate memory")
# No space, an exceeded quota, and the limit on the size of a file.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Control characters, ends of lines and paragraphs, bidirectional overrides and isolates, lone surrogates.
_CONTROLS = re.compile("[\0-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
# Characters of a line for people; a path has up to 4,096.
_LONGEST = 10_000


class LineError(ValueError):
    """Error of a source line that cannot be encoded.

    Args:
        position: Number of the line, from 0.
        line: The line, which the message shortens.
        reason: The fault and its remedy.
    """

    def __init__(self, position: int, line: str, reason: str) -> None:
        super().__init__(position, line, reason)  # all arguments, for pickle
        self.position = position
        self.line = line
        self.reason = reason

    def __str__(self) -> str:
        shown = self.line if len(self.line) <= 40 else f"{self.line[:39]}…"
        return f"line {self.position + 1} is {shown!r}: {self.reason}"


class CorpusFault(RuntimeError):  # noqa: N818 - shown as a fault, not as a mistake of the program
    """The text of a corpus cannot be read further, after a part of it was trained on; the message says why."""


def visible(value: Any) -> Any:
    """Return a foreign text in one line that is safe to print: control characters as escapes such as \\x1b.

    In a mapping or a list, all texts are replaced; other values are unchanged.
    """
    if isinstance(value, str):
        return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), value)
    if isinstance(value, dict):
        return {visible(key): visible(each) for key, each in value.items()}
    return [visible(each) for each in value] if isinstance(value, list) else value


def one_line(message: str) -> str:
    """Return a message in one visible line of bounded length."""
    return visible(message if len(message) <= _LONGEST else f"{message[:_LONGEST]}...")


def first_line(error: BaseException) -> str:
    """Return the first nonblank line of an error's message, or the name of its class if the message is empty."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    # Long lines are cut
    return text[:300] or type(error).__name__


def is_out_of_memory(error: BaseException) -> bool:
    """Return True for an error of a GPU or a machine that is out of memory."""
    if isinstance(error, MemoryError):
        return True
    # Torch's allocators raise RuntimeError, which only the message identifies
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _OUT_OF_MEMORY)


def machine_fault(error: BaseException) -> OSError | MemoryError | None:
    """Find the error of a full disk or memory behind an exception of any library; None for another cause."""
    # A ValueError is a message to the user, so its cause is not searched
    link = None if isinstance(error, ValueError) else error
    while link is not None:
        if isinstance(link, MemoryError) or (isinstance(link, OSError) and link.errno in _FULL):
            return link
        # Errors of Arrow and of libraries in Rust have the reason only in their text
        if number := next((number for number in _FULL if os.strerror(number) in str(link)), None):
            return OSError(number, os.strerror(number))
        link = link.__cause__ or link.__context__
    return None


def os_message(error: OSError) -> str:
    """Describe an error of the operating system in one line, with a remedy if a disk is full."""
    remedy = "; make room there, or choose another folder" if error.errno in _FULL else ""
    return f"{error.filename or 'input or output'}: {error.strerror or first_line(error)}{remedy}"
