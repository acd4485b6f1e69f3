"""Odd input of translate, and outputs that fail: as many lines out as in, or a refusal."""

from __future__ import annotations

import os
import random
import resource
from collections.abc import Callable
from pathlib import Path

from benchmarks.hostile.attempts import Attempt
from benchmarks.hostile.processes import Command, Done
from benchmarks.hostile.world import World, check_lines
from benchmarks.nasty_lines import nasty_lines, text

# Most bytes of a file, as if the disk were full; a line on standard error must fit.
ROOM = 600


def draw(rng: random.Random, world: World, folder: Path) -> Attempt:
    """Draw lines, options of batching, and a fault of input or output."""
    work = folder / "work"
    count = rng.choice((0, 1, 2, 7, 40))
    data = b""
    if count:
        lines = nasty_lines(count, rng.randrange(2**31), long_lines=rng.choice((0, 0, 1)), long_size=3000)
        data = text(lines, final_newline=rng.random() < 0.7)
    n_best = rng.choice((1, 1, 1, 2, 3))
    words = ["--ckpt", str(world.best), "--beam-size", str(n_best), "--n-best", str(n_best)]
    for option, values in (("--max-tokens", (1, 50, 3000)), ("--max-len", (1, 5, 200)), ("--dtype", ("bfloat16",))):
        if rng.random() < 0.3:
            words += [option, str(rng.choice(values))]
    unbuffered = {"PYTHONUNBUFFERED": "1"} if rng.random() < 0.5 else {}
    fault = rng.choices((_none, _output, _full, _room, _room_output, _closed, _broken), (6, 3, 1, 3, 2, 2, 2))[0]
    return fault(work, words, data, n_best * count, unbuffered)


def _none(work: Path, words: list[str], data: bytes, expected: int, environment: dict[str, str]) -> Attempt:
    """From standard input to standard output."""
    return _attempt(f"{expected} lines", words, data, environment, lambda done: check_lines(expected, done))


def _output(work: Path, words: list[str], data: bytes, expected: int, environment: dict[str, str]) -> Attempt:
    """From file to file."""
    (work / "input").write_bytes(data)

    def check(done: Done) -> str:
        found = (work / "output").read_bytes().count(b"\n")
        return "" if found == expected else f"{found} lines out for {expected} in"

    words = [*words, "--input", "input", "--output", "output"]
    return _attempt(f"{expected} lines, --output", words, b"", environment, check)


def _full(work: Path, words: list[str], data: bytes, expected: int, environment: dict[str, str]) -> Attempt:
    """Standard output is a full disk."""
    must = "refuse" if expected else "either"
    return _attempt("/dev/full", words, data, environment, None, stdout="/dev/full", must=must, named=("space",))


def _room(work: Path, words: list[str], data: bytes, expected: int, environment: dict[str, str]) -> Attempt:
    """Standard output is a file with too little room."""
    return _attempt(
        "a disk with little room", words, data * 3, environment, lambda done: check_lines(3 * expected, done)
        if data.endswith(b"\n") else "", before=_little_room, named=("large", "space"),
    )  # fmt: skip


def _room_output(work: Path, words: list[str], data: bytes, expected: int, environment: dict[str, str]) -> Attempt:
    """--output is a file with too little room."""
    words = [*words, "--output", "output"]
    attempt = _attempt("a disk with little room, --output", words, data * 3, environment, None, before=_little_room)

    def check(done: Done) -> str:
        found = (work / "output").read_bytes().count(b"\n")
        return "" if found == 3 * expected or not data.endswith(b"\n") else f"{found} lines"

    return Attempt(
        what=attempt.what, command=attempt.command, named=("large", "space"), check=check, outputs=(work / "output",)
    )


def _closed(work: Path, words: list[str], data: bytes, expected: int, environment: dict[str, str]) -> Attempt:
    """Standard input or output is closed."""
    if expected % 2:
        return _attempt("stdin is closed", words, None, environment, lambda done: check_lines(0, done), must="work")
    return _attempt("stdout is closed", words, data, environment, None, stdout="", must="refuse", named=("output",))


def _broken(work: Path, words: list[str], data: bytes, expected: int, environment: dict[str, str]) -> Attempt:
    """The reader of standard output has gone."""
    must = "refuse" if expected else "either"
    attempt = _attempt("the reader has gone", words, data, environment, None, before=_broken_pipe, must=must)
    # 128 + SIGPIPE, silently, as in a shell
    return Attempt(what=attempt.what, command=attempt.command, must=attempt.must, statuses=(141,), silent=True)


def _little_room() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, ROOM))


def _broken_pipe() -> None:
    reader, writer = os.pipe()
    os.dup2(writer, 1)
    os.close(reader)
    os.close(writer)


def _attempt(
    what: str,
    words: list[str],
    data: bytes | None,
    environment: dict[str, str],
    check: Callable[[Done], str] | None,
    *,
    stdout: str | None = None,
    before: Callable[[], None] | None = None,
    must: str = "either",
    named: tuple[str, ...] = (),
) -> Attempt:
    # Without a fault of the streams, all lines must be translated
    if not (named or before or stdout is not None or data is None):
        must = "work"
    command = Command(
        "seq2seq.translate", tuple(words), stdin=data, stdout=stdout, environment=environment, before=before
    )
    named_buffering = f"{what}, unbuffered" if environment else what
    return Attempt(what=f"translate: {named_buffering}", command=command, check=check, must=must, named=named)  # type: ignore[arg-type]
