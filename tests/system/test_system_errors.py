"""Errors of memory and of disks are recognized, and errors are quoted in one line."""

from __future__ import annotations

import errno

import pytest

from seq2seq.system.errors import first_line, is_out_of_memory, machine_fault, os_message


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
def test_the_first_line_of_an_error_without_text_is_its_class(error, line):
    assert first_line(error) == line


def test_errors_of_memory_are_recognized():
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
        (OSError(errno.EDQUOT, "Disk quota exceeded"), errno.EDQUOT),
        # Arrow
        (OSError("Error writing bytes to file. Detail: [errno 28] No space left on device"), errno.ENOSPC),
        # safetensors
        (Exception("Error while serializing: I/O error: No space left on device (os error 28)"), errno.ENOSPC),
        # datasets and torch
        (chain(Exception("An error occurred"), OSError(28, "No space left on device", "/x")), errno.ENOSPC),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), None),
        (RuntimeError("shapes do not match"), None),
        (chain(ValueError("a message to the user"), OSError(28, "No space")), None),
    ],
)
def test_a_full_disk_is_found_behind_the_error_of_any_library(error, number):
    assert getattr(machine_fault(error), "errno", None) == number


def test_full_memory_is_found_behind_the_error_of_any_library():
    memory = MemoryError()
    assert machine_fault(chain(Exception("An error occurred"), memory)) is memory


def test_an_error_of_the_system_is_one_line():
    assert os_message(PermissionError(errno.EACCES, "Permission denied", "/x")) == "/x: Permission denied"
    assert os_message(OSError(errno.ENOSPC, "No space")).startswith("input or output: No space; make room")
    assert os_message(OSError("9 requested, 1 written")) == "input or output: 9 requested, 1 written"
