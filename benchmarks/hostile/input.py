"""Odd input of translate, and outputs that fail: as many lines out as in, or a refusal."""

from __future__ import annotations

import dataclasses
import os
import random
import resource
from collections.abc import Callable
from pathlib import Path

from benchmarks.hostile.attempts import Attempt
from benchmarks.hostile.processes import Command, Done
from benchmarks.hostile.world import World, check_lines
from benchmarks.nasty_lines import nasty_lines, text

# Faults of input and output, and their weights.
FAULTS = {
    "none": 6, "files": 3, "full disk": 1, "little room": 3, "little room, --output": 2, "closed input": 1,
    "closed output": 1, "reader gone": 2,
}  # fmt: skip
# Maximum bytes of a file, as if the disk were full; a line on standard error must fit.
ROOM = 600


def _little_room() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, ROOM))


def _broken_pipe() -> None:
    reader, writer = os.pipe()
    os.dup2(writer, 1)
    os.close(reader)
    os.close(writer)


# Standard output (None keeps it, "" closes it) and a function that runs before the command.
STREAMS: dict[str, tuple[str | None, Callable[[], None] | None]] = {
    "full disk": ("/dev/full", None),
    "closed output": ("", None),
    "reader gone": (None, _broken_pipe),
    "little room": (None, _little_room),
    "little room, --output": (None, _little_room),
}
# Words by fault; a refusal must contain one of them.
REFUSED: dict[str, tuple[str, ...]] = {
    "full disk": ("space",), "closed output": ("output",), "reader gone": (), "little room": ("large", "space"),
    "little room, --output": ("large", "space"),
}  # fmt: skip


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
    for option, values in (("--max-tokens", (1, 50, 3000)), ("--max-len", (2, 5, 200)), ("--dtype", ("bfloat16",))):
        if rng.random() < 0.3:
            words += [option, str(rng.choice(values))]
    expected = n_best * count
    fault = rng.choices(list(FAULTS), list(FAULTS.values()))[0]
    what = f"translate: {expected} lines, {fault}"
    stdin: bytes | None = data
    stdout, before = STREAMS.get(fault, (None, None))
    # A faulty output is only noticed if there is something to write
    must = "refuse" if fault in REFUSED and expected else "work"
    sink = work / "output" if fault in ("files", "little room, --output") else None
    words += ["--output", "output"] if sink else []
    if fault == "files":
        (work / "input").write_bytes(data)
        words += ["--input", "input"]
        stdin = b""
    elif fault == "closed input":
        stdin = None
        expected = 0
    elif fault.startswith("little room"):
        must = "either"
        stdin = data * 3
        # Without a final line end, repeated copies join lines
        expected = 3 * expected if data.endswith(b"\n") or not data else -1

    def check(done: Done) -> str:
        return check_lines(expected, dataclasses.replace(done, out=sink.read_bytes()) if sink else done)

    environment = {"PYTHONUNBUFFERED": "1"} if rng.random() < 0.5 else {}
    command = Command(
        "seq2seq.translate", tuple(words), stdin=stdin, stdout=stdout, environment=environment, before=before
    )
    return Attempt(
        what=what,
        command=command,
        named=REFUSED.get(fault, ()),
        must=must,
        check=None if expected < 0 or stdout is not None else check,
        # 128 + SIGPIPE, without a message, as in a shell
        statuses=(141,) if fault == "reader gone" else (2,),
        outputs=(sink,) if sink and before else (),
        silent=fault == "reader gone",
    )
