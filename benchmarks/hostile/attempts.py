"""Attempts, and the rule that classifies their outcomes.

worked   exit status 0; the outputs are complete and right (`check`); no traceback
refused  exit status 2, or 1 from a training that has begun; one line on standard error that names a part of the attempt
         (a hint in parentheses may follow); no traceback, temporary file or half-written output
else     a defect: any other outcome, a wrong value that was accepted (`must="refuse"`), or a right value that was
         refused (`must="work"`)
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from benchmarks.campaign import Row
from benchmarks.hostile.processes import Command, Done, run

# Maximum characters of a message.
LONGEST_MESSAGE = 2000
# Suffixes of files that are being written.
TEMPORARY = (".tmp", ".part", ".partial")


@dataclasses.dataclass(frozen=True)
class Attempt:
    """One attempt, determined by its kind and its random numbers.

    Args:
        what: The fault, in a few words.
        named: The message must contain one of these words, in any case; empty: any message.
        must: The only right outcome, or "either".
        check: Returns the fault in the outputs of a command that ended with status 0, or "".
        statuses: Exit statuses of a refusal.
        outputs: Files and folders that a refusal must not create.
        silent: Whether a refusal has no message, as when the reader of the output has gone.
    """

    what: str
    command: Command
    named: tuple[str, ...] = ()
    must: Literal["refuse", "work", "either"] = "either"
    check: Callable[[Done], str] | None = None
    statuses: tuple[int, ...] = (2,)
    outputs: tuple[Path, ...] = ()
    silent: bool = False


def carry_out(attempt: Attempt, folder: Path) -> Row:
    """Run an attempt in `folder`/work and classify its outcome."""
    done = run(attempt.command, folder / "work", folder / "kept")
    return row(attempt.what, attempt.command, done, *judge(attempt, done, folder / "work"))


def row(what: str, command: Command, done: Done, outcome: str, why: str) -> Row:
    """Return the record of an attempt."""
    lines = message_lines(done.err)
    return {
        "what": what,
        "outcome": outcome,
        "why": why,
        "status": done.status,
        "message": lines[-1][:400] if lines else "",
        "cpu": round(done.cpu, 2),
        "seconds": round(done.wall, 2),
        "megabytes": done.megabytes,
        "command": shlex.join(["python", "-m", command.module, *command.words]),
    }


def judge(attempt: Attempt, done: Done, work: Path) -> tuple[str, str]:
    """Classify an outcome by the rule at the top of this file."""
    fault = fault_of(done, work)
    if fault:
        return "else", fault
    if done.status == 0:
        if attempt.must == "refuse":
            return "else", "accepted"
        wrong = attempt.check(done) if attempt.check else ""
        return ("else", wrong) if wrong else ("worked", "")
    # A run's folder is created after the settings were checked, so later faults are faults of training
    begun = attempt.command.module == "seq2seq.train" and any((work / "runs").glob("*/config.yaml"))
    if done.status not in attempt.statuses and not (done.status == 1 and begun):
        return "else", f"exit status {done.status}"
    fault = _wrong_message(attempt, done)
    if fault:
        return "else", fault
    if attempt.must == "work":
        return "else", "refused, although it is right"
    made = [path.name for path in attempt.outputs if path.exists()]
    return ("else", f"refused, but left {', '.join(made)}") if made else ("refused", "")


def fault_of(done: Done, work: Path) -> str:
    """Return a fault that no outcome may have, or ""."""
    if done.exceeded:
        return f"did not end: {done.exceeded}"
    if done.status < 0:
        return f"ended by signal {-done.status}"
    if "Traceback (most recent call last)" in done.err or b"Traceback (most recent call last)" in done.out:
        text = done.err if "Traceback" in done.err else done.out.decode("utf-8", "replace")
        lines = [line for line in text.splitlines() if line.strip() and not line.startswith((" ", "("))]
        return f"traceback: {lines[-1][:200]}"
    left = leftovers(work)
    return f"left {', '.join(left)}" if left else ""


def leftovers(folder: Path) -> list[str]:
    """List temporary files below `folder`."""
    return sorted(path.name for path in folder.rglob("*") if path.suffix in TEMPORARY)


def message_lines(err: str) -> list[str]:
    """Return the lines of standard error that are neither warnings nor hints."""
    lines = [line for line in err.splitlines() if line.strip()]
    return [line for line in lines if not line.startswith(("warning: ", "("))]


def _wrong_message(attempt: Attempt, done: Done) -> str:
    lines = message_lines(done.err)
    if not lines:
        return "" if attempt.silent else "no message"
    if len(lines) > 1:
        return f"{len(lines)} lines: {lines[-1][:120]}"
    if len(lines[0]) > LONGEST_MESSAGE:
        return f"a message of {len(lines[0])} characters"
    # Names in the message may contain white space
    low = " ".join(lines[0].lower().split())
    if attempt.named and not any(" ".join(name.lower().split()) in low for name in attempt.named if name):
        return f"the message does not name any of {', '.join(attempt.named)[:80]}: {lines[0][:160]}"
    return ""
