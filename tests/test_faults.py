"""Errors of memory and of disks are recognized, and any error is quoted in one line."""

from __future__ import annotations

import errno
import os

import pytest

from seq2seq.faults import disk_error, disk_message, first_line, is_out_of_memory


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("the first\nthe second"), "the first"),
        # The file is damaged, and the library does not say how
        (OSError(""), "OSError"),
        (RuntimeError("\n  \n  after blank lines \n"), "after blank lines"),
        (ValueError("x" * 10_000), "x" * 300),
    ],
)
def test_the_first_line_of_an_error_names_its_class_where_there_is_no_text(error, line):
    assert first_line(error) == line


def test_memory_is_told_from_other_errors():
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 12 bytes"))
    assert not is_out_of_memory(RuntimeError("shapes do not match"))
    # A message to the user
    assert not is_out_of_memory(ValueError("out of memory"))


def chain(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "number"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), errno.ENOSPC),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), errno.EDQUOT),
        (OSError(errno.EROFS, "Read-only file system", "/x"), errno.EROFS),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), errno.EACCES),
        # Arrow
        (OSError("Error writing bytes to file. Detail: [errno 28] No space left on device"), errno.ENOSPC),
        # numpy
        (OSError("100000 requested and 12484 written"), errno.ENOSPC),
        # torch
        (RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598"), errno.ENOSPC),
        # datasets
        (
            chain(Exception("An error occurred while generating the dataset"), OSError(28, "No space left on device")),
            errno.ENOSPC,
        ),
        (Exception("Error while serializing: I/O error: No space left on device (os error 28)"), errno.ENOSPC),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "/x"), None),
        (RuntimeError("shapes do not match"), None),
        (chain(ValueError("a message to the user"), OSError(28, "No space")), None),
        (OSError("disk full"), None),
    ],
)
def test_an_error_of_the_disk_is_found_behind_that_of_any_library(error, number):
    fault = disk_error(error)
    assert (fault.errno if fault else None) == number
    if fault:
        message = disk_message(fault)
        assert message
        assert os.strerror(fault.errno) in message
        assert "folder" in message
