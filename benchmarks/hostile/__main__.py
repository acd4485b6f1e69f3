"""Try to break the commands: wrong settings, files, options and interruptions, with the count of outcomes.

    python -m benchmarks.hostile --out benchmarks/results/hostile
    python -m benchmarks.hostile --attempts 300 --only settings
    python -m benchmarks.hostile --repeat 733 --keep /tmp/733      # one attempt again, its files kept

Each attempt follows from --seed and its number. A process that has imported torch is forked for each, so 2,000 take
minutes on two cores; some refusals are then repeated in fresh processes, for the CPU seconds that a person waits.
Exit status: 0 every attempt worked or was refused in one line; 1 another outcome; 2 wrong options.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from benchmarks import harness
from benchmarks.hostile import processes, report

# Kinds of attempts, one module each, and their shares of all.
KINDS = {
    "settings": 27, "options": 22, "checkpoints": 20, "corpora": 9, "caches": 4, "input": 15, "interruptions": 3,
}  # fmt: skip
# An attempt may run several commands, each with limits of its own.
LONGEST = 900.0


def kind_of(seed: int, number: int, kinds: Sequence[str]) -> str:
    """Draw the kind of an attempt."""
    return random.Random(f"{seed}/{number}/kind").choices(kinds, [KINDS[kind] for kind in kinds])[0]


def attempt(world: object, seed: int, number: int, kind: str, folder: Path) -> dict[str, object]:
    """Draw an attempt and carry it out; its outcome as plain values."""
    from benchmarks.hostile import attempts

    module = importlib.import_module(f"benchmarks.hostile.{kind}")
    rng = random.Random(f"{seed}/{number}/{kind}")
    folder.mkdir(parents=True, exist_ok=True)
    if hasattr(module, "carry_out"):
        result = module.carry_out(rng, world, folder)
    else:
        result = attempts.carry_out(module.draw(rng, world, folder), folder)
    return dataclasses.asdict(dataclasses.replace(result, number=number, kind=kind))


@dataclasses.dataclass
class Campaign:
    """Attempts that run side by side, each in a fork of this process.

    Args:
        keep: Keep the files of all attempts, not only of those with another outcome.
    """

    world: object
    seed: int
    kinds: Sequence[str]
    root: Path
    keep: bool = False
    running: dict[int, tuple[int, float]] = dataclasses.field(default_factory=dict)
    results: list[dict[str, object]] = dataclasses.field(default_factory=list)

    def start(self, number: int) -> None:
        """Fork a process for an attempt."""
        sys.stdout.flush()
        pid = os.fork()
        if pid:
            self.running[pid] = (number, time.monotonic())
            return
        status = 1
        try:
            os.setsid()
            folder = self.root / str(number)
            # Of a campaign that was stopped in the middle of this attempt
            shutil.rmtree(folder, ignore_errors=True)
            kind = kind_of(self.seed, number, self.kinds)
            try:
                found = attempt(self.world, self.seed, number, kind, folder)
            except Exception:
                found = {"number": number, "kind": kind, "outcome": "broken", "why": traceback.format_exc()[-1500:]}
            (self.root / f"{number}.json").write_text(json.dumps(found))
            status = 0
        finally:
            os._exit(status)

    def collect(self) -> None:
        """Wait for an attempt, or a moment, and read the outcomes of those that have ended."""
        time.sleep(0.01)
        for pid, (number, since) in list(self.running.items()):
            if time.monotonic() - since > LONGEST:
                with contextlib.suppress(OSError):
                    os.killpg(pid, signal.SIGKILL)
            if os.waitpid(pid, os.WNOHANG)[0] == 0:
                continue
            del self.running[pid]
            path = self.root / f"{number}.json"
            found = {"number": number, "kind": "?", "outcome": "broken", "why": "the attempt's process was lost"}
            if path.exists():
                found = json.loads(path.read_text())
            self.results.append(found)
            right = found["outcome"] in ("worked", "refused")
            if right and not self.keep:
                shutil.rmtree(self.root / str(number), ignore_errors=True)
            if not right:
                print(report.line(found), flush=True)

    def carry_out(self, numbers: Sequence[int], jobs: int) -> list[dict[str, object]]:
        """Run the attempts of these numbers, `jobs` at a time."""
        self.results = [
            json.loads(path.read_text()) for path in (self.root / f"{n}.json" for n in numbers) if path.exists()
        ]
        there = {row["number"] for row in self.results}
        waiting = [number for number in reversed(numbers) if number not in there]
        while waiting or self.running:
            while waiting and len(self.running) < jobs:
                self.start(waiting.pop())
            self.collect()
        return sorted(self.results, key=lambda found: int(str(found["number"])))


def _parser() -> argparse.ArgumentParser:
    parser = harness.parser_for("hostile", __doc__)
    add = parser.add_argument
    add("--attempts", type=int, default=2000, metavar="N", help="how many (2000)")
    add("--first", type=int, default=0, metavar="N", help="number of the first one (0)")
    add("--seed", type=int, default=0, metavar="N", help="of all attempts (0)")
    add("--only", choices=KINDS, help="attempts of one kind")
    add("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="attempts at a time (the number of cores)")
    add("--fresh", type=int, default=40, metavar="N", help="refusals repeated in fresh processes (40)")
    text = "an earlier report of this seed: carry out again what had another outcome there, and count it anew"
    add("--again", type=Path, metavar="FILE", help=text)
    add("--repeat", type=int, metavar="NUMBER", help="carry out this attempt alone, and print all of its outcome")
    text = (
        "folder for outcomes and the files of attempts with another outcome; a campaign that was stopped goes on there"
    )
    add("--keep", type=Path, metavar="DIR", help=text)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out the attempts, print and write the report; return 1 if there was any other outcome."""
    options = _parser().parse_args(arguments)
    start = time.monotonic()
    processes.load_modules()
    from benchmarks.hostile import world

    # Now, so that all attempts run the same code
    for kind in KINDS:
        importlib.import_module(f"benchmarks.hostile.{kind}")

    kinds = [options.only] if options.only else list(KINDS)
    with contextlib.ExitStack() as stack:
        root = options.keep or Path(tempfile.mkdtemp(prefix="hostile-"))
        if not options.keep:
            # No TemporaryDirectory: an attempt's process would delete it at its end
            stack.callback(shutil.rmtree, root, ignore_errors=True)
        shutil.rmtree(root / "world", ignore_errors=True)
        campaign = Campaign(world.build(root / "world"), options.seed, kinds, root, keep=options.repeat is not None)
        numbers = range(options.first, options.first + options.attempts)
        earlier: list[dict[str, object]] = []
        if options.again:
            kept = json.loads(options.again.read_text("utf-8"))["outcomes"]
            earlier = [row for row in kept if row["outcome"] in ("worked", "refused")]
            numbers = [row["number"] for row in kept if row not in earlier]
        if options.repeat is not None:
            numbers = [options.repeat]
        found = campaign.carry_out(numbers, options.jobs)
        # Settings and options that were refused, of these attempts alone
        fresh = report.time_refusals(found, root, options.fresh if options.repeat is None else 0)
    if options.repeat is not None:
        print(json.dumps(found[0], indent=1, ensure_ascii=False))
    found = sorted([*earlier, *found], key=lambda row: int(str(row["number"])))
    summary = {
        "machine": harness.machine(),
        "seed": options.seed,
        "first": found[0]["number"],
        "seconds": round(time.monotonic() - start),
        **report.summarize(found, fresh),
    }
    table = report.table(summary)
    print(table)
    harness.write(options.out, "hostile", summary, table)
    return 1 if summary["else"] else 0


if __name__ == "__main__":
    sys.exit(main())
