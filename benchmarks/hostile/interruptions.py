"""Kills at random times or writes, and damaged states; the repeated command must end as if uninterrupted."""

from __future__ import annotations

import csv
import dataclasses
import os
import random
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.campaign import Row
from benchmarks.hostile.attempts import Attempt, judge, leftovers, message_lines, row
from benchmarks.hostile.processes import Command, Done, run
from benchmarks.hostile.world import LONGER, World, same_files
from seq2seq.runs.folder import RunFolder
from seq2seq.runs.training_state import read_state
from seq2seq.system.model_path import LAST

# Exit statuses by signal; a shell shows 128 + signal.
SIGNALS = {signal.SIGKILL: (-9,), signal.SIGTERM: (143, -15), signal.SIGINT: (130, -2)}
# Audit events of Python that change the disk.
EVENTS = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.link", "shutil.rmtree")


def carry_out(rng: random.Random, world: World, folder: Path) -> Row:
    """Interrupt a command, run it again, and compare with an uninterrupted one."""
    work, kept = folder / "work", folder / "kept"
    name = rng.choices(("train", "prepare", "translate", "average"), (10, 4, 1, 1))[0]
    command, check = _command(name, world, folder)
    number = rng.choice(list(SIGNALS))
    if rng.random() < 0.5:
        moment = rng.uniform(0, 4.0 if name == "train" else 1.0)
        first = dataclasses.replace(command, signals=(moment, int(number)))
        what = f"{name}: {number.name} after {moment:.2f} s"
    else:
        event = rng.randint(1, 150 if name == "train" else 30)
        first = dataclasses.replace(command, before=at_write(event, number, work))
        what = f"{name}: {number.name} at write {event}"
    done = run(first, work, kept)
    if name == "train":
        what += damage(rng, RunFolder(work / "runs" / "base"))
    attempt = Attempt(what=what, command=command, must="work", check=check)
    wrong = _interrupted(done, SIGNALS[number], work)
    if wrong:
        return row(what, command, done, "else", wrong)
    if done.status == -9 and name in ("translate", "average"):
        # A killed process cannot remove its temporary files, and no other process may, except in a run's folder
        for path in work.glob(".*.tmp"):
            path.unlink()
    again = run(command, work, kept)
    outcome, why = judge(attempt, again, work)
    return row(what, command, again, outcome, f"run again: {why}" if why else "")


def damage(rng: random.Random, run_folder: RunFolder) -> str:
    """Damage one of the two states of an interrupted training in half of the cases; return which and how, or ""."""
    if len(run_folder.states) < 2 or rng.random() < 0.5:
        return ""
    path = rng.choice(run_folder.states)
    content = bytearray(path.read_bytes())
    kind = rng.choice(("cut", "zeros", "one bit", "removed"))
    if kind == "removed":
        path.unlink()
    elif kind == "cut":
        path.write_bytes(content[: rng.randrange(len(content))])
    elif kind == "zeros":
        path.write_bytes(bytes(len(content)))
    else:
        # The middle of the file has values of tensors; its end and the gaps between records may be meaningless
        content[len(content) // 2] ^= 1 << rng.randrange(8)
        path.write_bytes(content)
    return f", {path.name}: {kind}"


def _command(name: str, world: World, folder: Path) -> tuple[Command, Callable[[Done], str]]:
    """Return a command, and the check of its outputs after the second run."""
    work = folder / "work"
    if name == "train":
        words = world.train_words(folder, *LONGER, "run=base", "resume=auto")
        return Command("seq2seq.train", words), lambda _: same_run(
            world.root / "longer" / "base", work / "runs" / "base"
        )
    if name == "prepare":
        words = world.train_words(folder, cache=False)
        return Command("seq2seq.prepare", words), lambda _: same_files(world.prepared, work / "cache")
    if name == "translate":
        words = ("--ckpt", str(world.best), "--output", "output")
        command = Command("seq2seq.translate", words, stdin=world.lines)
        return command, lambda _: "" if (work / "output").read_bytes() == world.translation else "another output"
    words = ("--out", "mean.safetensors", str(world.best), str(world.step))
    return Command("seq2seq.average", words), lambda _: "" if (work / "mean.safetensors").is_file() else "no average"


def _interrupted(done: Done, statuses: tuple[int, ...], work: Path) -> str:
    """Return the fault in how an interrupted command ended, or ""."""
    if done.exceeded:
        return f"did not end: {done.exceeded}"
    # The command may have ended before the signal
    if done.status not in (0, *statuses):
        return f"exit status {done.status} after the signal: {' '.join(message_lines(done.err))[-200:]}"
    if done.status == -9:
        return ""
    if "Traceback" in done.err:
        return f"traceback after the signal: {message_lines(done.err)[-1][:200]}"
    if len(message_lines(done.err)) > 1:
        return f"{len(message_lines(done.err))} lines after the signal: {message_lines(done.err)[-1][:120]}"
    left = leftovers(work)
    return f"left {', '.join(left)}" if left else ""


def at_write(event: int, number: signal.Signals, work: Path) -> Callable[[], None]:
    """Return a function that makes this process send itself a signal right before its n-th write."""
    count = 0

    def hook(name: str, arguments: tuple[object, ...]) -> None:
        nonlocal count
        if name not in EVENTS:
            return
        # Skip files opened for reading
        flags = arguments[2] if name == "open" and len(arguments) > 2 else os.O_RDWR
        if isinstance(flags, int) and not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            return
        # Skip devices and standard streams
        path = arguments[0]
        if isinstance(path, str | bytes | os.PathLike):
            absolute = os.path.join(os.getcwd(), os.fsdecode(path))
            if not absolute.startswith(str(work)):
                return
        count += 1
        if count == event:
            os.kill(os.getpid(), number)

    return lambda: sys.addaudithook(hook)


def same_run(expected: Path, run_folder: Path) -> str:
    """Return how an interrupted run differs from an uninterrupted one: weights, optimizer, progress, metrics; or ""."""
    states = [read_state(folder / LAST) for folder in (expected, run_folder)]
    different = []
    # A resumed run continues from these; times and versions may differ
    for part in ("state_dict", "optimizer_states", "lr_schedulers", "train_sums", "global_step", "epoch"):
        first, second = (_leaves(state[part], part) for state in states)
        # A name that only one run has counts as a difference
        different += [name for name in first.keys() | second.keys() if not _same(first.get(name), second.get(name))]
    if _unclocked_rows(expected / "metrics.csv") != _unclocked_rows(run_folder / "metrics.csv"):
        different.append("metrics.csv")
    # A kill during the writing of a checkpoint leaves a temporary file, which the next start removes
    different += [path.name for path in run_folder.rglob("*.tmp")]
    return f"differs in {', '.join(sorted(different)[:5])}" if different else ""


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return torch.equal(one, other)
    return one == other


def _leaves(value: Any, name: str) -> dict[str, Any]:
    """Return the leaves of nested dictionaries and lists by their path."""
    if isinstance(value, list | tuple):
        value = dict(enumerate(value))
    if not isinstance(value, dict):
        return {name: value}
    leaves: dict[str, Any] = {}
    for key, part in value.items():
        leaves |= _leaves(part, f"{name}.{key}")
    return leaves


def _unclocked_rows(path: Path) -> list[dict[str, str]]:
    """Read the rows of metrics.csv without the columns that depend on the clock."""
    clocked = re.compile("seconds|per_second|memory|mfu")
    with path.open(newline="") as file:
        return [{k: v for k, v in row.items() if not clocked.search(k)} for row in csv.DictReader(file)]
