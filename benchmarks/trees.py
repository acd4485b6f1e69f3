"""Compare the training speed of two versions on a CPU: target tokens per CPU-second, runs of the command in turns.

    git worktree add ../before 849d6a5
    OMP_NUM_THREADS=1 python -m benchmarks.trees ../before . --rounds 3
    OMP_NUM_THREADS=1 python -m benchmarks.trees ../before . --mixers transformer --set model=small data.max_tokens=2000

A and B are folders with the package `seq2seq`. In each round A and B train each mixer in alternating order, by their
own `python -m seq2seq.train` on the embedded corpus. The rate is from the first to the last row of metrics.csv, so that
start, validation and test do not count. Exit status 1: a median of B is below --least of A's.
"""

from __future__ import annotations

import csv
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import harness
from seq2seq.system.markdown import markdown_table

MIXERS = ("transformer", "lightconv", "dynamicconv", "bahdanau")
_SETTINGS = ("trainer.accelerator=cpu", "trainer.threads=1", "trainer.test=false", "trainer.log_steps=5", "seed=1")


def trained(tree: Path, mixer: str, settings: Sequence[str], cache: Path) -> float:
    """Train with the command of a tree, and return target tokens per CPU-second.

    Raises:
        SystemExit: The command fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        words = [f"mixer={mixer}", *_SETTINGS, *settings, f"runs={folder}", "run=one", f"cache={cache}"]
        command = [sys.executable, "-m", "seq2seq.train", *words]
        environment = {**os.environ, "PYTHONPATH": str(tree)}
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{tree}: {' '.join(words)}: exit status {done.returncode}\n{done.stderr[-2000:]}")
        return rate(Path(folder) / "one" / "metrics.csv")


def rate(table: Path) -> float:
    """Return the target tokens per CPU-second between the first row of training and the last.

    Raises:
        ValueError: The table has fewer than two rows of training.
    """
    with table.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row.get("train/cpu_seconds")]
    if len(rows) < 2:
        raise ValueError(f"{table} has {len(rows)} rows of training; raise trainer.max_steps")
    seconds, cpu, pace = (
        [float(row[f"train/{key}"]) for row in rows] for key in ("seconds", "cpu_seconds", "tokens_per_second")
    )
    # Each row has the rate since the previous row
    tokens = sum(pace[i] * (seconds[i] - seconds[i - 1]) for i in range(1, len(rows)))
    return tokens / (cpu[-1] - cpu[0])


def main(argv: Sequence[str] | None = None) -> int:
    """Print a row for each mixer; with --out also write trees.json."""
    parser = harness.parser_for("trees", __doc__)
    parser.add_argument("trees", nargs=2, type=Path, metavar="TREE", help="A and B, folders that have seq2seq/")
    parser.add_argument("--mixers", nargs="+", default=list(MIXERS), help="presets (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each (3)")
    parser.add_argument("--steps", type=int, default=60, help="updates of a run (60)")
    parser.add_argument("--least", type=float, default=0.95, help="share of A's rate that B must have (0.95)")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings of every run")
    options = parser.parse_args(argv)
    trees = [tree.absolute() for tree in options.trees]
    for tree in trees:
        if not (tree / "seq2seq" / "train.py").is_file():
            parser.error(f"{tree} has no seq2seq/train.py; name a checkout")
    settings = [f"trainer.max_steps={options.steps}", *options.set]
    rows: list[dict[str, Any]] = []
    # Separate caches, since versions may prepare text differently
    with tempfile.TemporaryDirectory() as cache:
        for mixer in options.mixers:
            rates: list[list[float]] = [[], []]
            for turn in range(options.rounds):
                for place in (0, 1) if turn % 2 == 0 else (1, 0):
                    rates[place].append(trained(trees[place], mixer, settings, Path(cache) / str(place)))
            before, now = map(statistics.median, rates)
            rows.append({"mixer": mixer, "a": before, "b": now, "ratio": now / before, "rates": rates})
            print(f"{mixer}: A {before:,.0f}, B {now:,.0f}, {now / before:.3f}", flush=True)
    cells = [[f"`{row['mixer']}`", f"{row['a']:,.0f}", f"{row['b']:,.0f}", f"{row['ratio']:.3f}"] for row in rows]
    header = ["mixer", "A: tokens per CPU-second", "B", "B / A"]
    table = markdown_table(header, cells, right=header[1:])
    print(table)
    harness.write(options.out, "trees", {"machine": harness.machine(), "settings": settings, "runs": rows}, table)
    return int(any(row["ratio"] < options.least for row in rows))


if __name__ == "__main__":
    sys.exit(main())
