"""Recognize errors of memory and of disks, and quote any error in one line. Imports no torch."""

from __future__ import annotations

import errno
import os
import re

_OUT_OF_MEMORY = ("out of memory", "not enough memory", "can't allocate memory")
# Errors of a disk, and their remedies.
_OTHER_FOLDER = "or choose another folder"
_REMEDIES = {
    errno.ENOSPC: f"make room there, {_OTHER_FOLDER}",
    errno.EDQUOT: f"delete some files, have the quota raised, {_OTHER_FOLDER}",
    errno.EFBIG: f"raise the limit on the size of a file (ulimit -f), {_OTHER_FOLDER}",
    errno.EROFS: "choose a folder that is not read-only",
    errno.EACCES: f"see that you may read and write there, {_OTHER_FOLDER}",
    errno.EPERM: f"see that you may read and write there, {_OTHER_FOLDER}",
    errno.EIO: f"check the disk, {_OTHER_FOLDER}",
}


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message that is not blank; its class's name where there is no message."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    # 300 characters keep the message that quotes it one line
    return text[:300] or type(error).__name__


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if a GPU or the machine had no memory left."""
    if isinstance(error, MemoryError):
        return True
    # Torch's allocators raise RuntimeError, or a subclass, recognized by its message alone
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _OUT_OF_MEMORY)


def disk_error(error: BaseException) -> OSError | None:
    """Find the error of a disk (full, over quota, read-only and so on) behind an exception of whatever library.

    Returns:
        An OSError with number and message, and a name if one is known; None for any other error.
    """
    # A ValueError is a message to the user already
    if isinstance(error, ValueError):
        return None
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None:
        chain.append(link)
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    # A number first, wherever it is: torch's own error comes after the one that has it
    for link in chain:
        if isinstance(link, OSError) and link.errno in _REMEDIES and "errno" not in str(link.strerror):
            return OSError(link.errno, link.strerror, link.filename)
    for link in chain:
        if number := _guessed_errno(link):
            return OSError(number, os.strerror(number), getattr(link, "filename", None))
    return None


def disk_message(error: OSError) -> str | None:
    """Describe an error of a disk and its remedy in one line; None for any other error."""
    if error.errno not in _REMEDIES:
        return None
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or os.strerror(error.errno)}; {_REMEDIES[error.errno]}"


def _guessed_errno(error: BaseException) -> int | None:
    """Return the number of an error of a disk that only its message has."""
    text = str(error)
    # Arrow and libraries in Rust write it there, numpy counts what was written, torch notes a wrong position
    if match := re.search(r"(?:Detail: \[errno |\(os error )(\d+)[\])]", text):
        return int(match[1]) if int(match[1]) in _REMEDIES else None
    if not isinstance(error, OSError | RuntimeError):
        return None
    return errno.ENOSPC if re.search(r"requested and \d+ written|inline_container.* unexpected pos", text) else None
