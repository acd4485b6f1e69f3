"""Kill a run (kill -9) at random moments, resume it, and compare it with a run that was left alone.

    python -m benchmarks.kills [--kills 20] [--out DIR] [KEY=VALUE ...]

Trains a small model on the phrasebook twice; the second run is killed again and again, and started each time by the
same command with resume=auto. Both must end with the same bits in weights, optimizer and metrics; exit status 1 if not.
KEY=VALUE are settings of seq2seq.train: mixer=lightconv trainer.precision=bf16 trainer.accumulate=2.
"""

from __future__ import annotations

import csv
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import harness
from seq2seq.runs.training_state import read_state, updates
from seq2seq.system.model_path import LAST

SETTINGS = (
    "data=phrasebook", "model=tiny", "model.dim=32", "model.ffn_dim=64", "model.num_heads=4", "data.max_tokens=512",
    "trainer.max_time=null", "trainer.max_steps=600", "trainer.val_steps=150", "trainer.val_sentences=32",
    "trainer.save_time=0.5s", "trainer.log_steps=10", "trainer.line_time=0.2s", "trainer.samples=0",
    "trainer.test=false", "trainer.accelerator=cpu", "search.max_len_extra=4", "logger=csv",
)  # fmt: skip
# A line with one of these says that training runs: kills before that would only hit imports.
RUNNING = ("step ", "validation at")


def start(folder: Path, run: str, overrides: Sequence[str]) -> subprocess.Popen[str]:
    """Start or resume the run of this name."""
    words = [*SETTINGS, f"runs={folder / 'runs'}", f"cache={folder / 'cache'}", *overrides, f"run={run}", "resume=auto"]
    return subprocess.Popen(
        [sys.executable, "-m", "seq2seq.train", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def wait_until_running(process: subprocess.Popen[str]) -> list[str]:
    """Read output until training runs, and return its lines."""
    shown = []
    assert process.stdout is not None
    for line in process.stdout:
        shown.append(line)
        if any(word in line for word in RUNNING):
            break
    return shown


def finish(process: subprocess.Popen[str], shown: list[str]) -> None:
    """Wait for a run that must succeed."""
    rest, _ = process.communicate()
    if process.returncode:
        sys.exit(f"training failed with exit code {process.returncode}:\n{''.join(shown)}{rest}")


def harass(folder: Path, overrides: Sequence[str], kills: int, rng: random.Random) -> list[int]:
    """Train with `kills` kills at random moments, and return the step that each start resumed from, 0 for a new run."""
    begun = []
    while True:
        begun.append(_step(folder, "killed"))
        process = start(folder, "killed", overrides)
        shown = wait_until_running(process)
        # The last start is left to finish
        if len(begun) > kills:
            finish(process, shown)
            return begun
        try:
            # Between two saves as well as within one, in validation as well as in training
            process.wait(rng.uniform(0, 3))
            sys.exit(f"the run ended before kill {len(begun)}; raise trainer.max_steps\n{''.join(shown)}")
        except subprocess.TimeoutExpired:
            # The whole process group, so that no data worker survives
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _step(folder: Path, run: str) -> int:
    """Return the step of a run's last checkpoint, 0 if it has none."""
    return updates(folder / "runs" / run / LAST) or 0


def differences(folder: Path) -> list[str]:
    """Name what differs between both runs."""
    return differences_of(folder / "runs" / "whole", folder / "runs" / "killed")


def differences_of(run: Path, other: Path) -> list[str]:
    """Name what differs between two runs' folders: tensors of weights and optimizer, progress, best scores, metrics."""
    states = [read_state(folder / LAST) for folder in (run, other)]
    different = []
    # Whatever a resumed run continues from; times and versions may differ
    for part in ("state_dict", "optimizer_states", "lr_schedulers", "train_sums", "global_step", "epoch"):
        # A name that only one of them has counts as a difference: None is not a tensor
        first, second = (_flat(state[part], part) for state in states)
        for name in first.keys() | second.keys():
            if not _same(first.get(name), second.get(name)):
                different.append(name)
    whole, killed = (_rows(folder / "metrics.csv") for folder in (run, other))
    if whole != killed:
        different.append("metrics.csv")
    # A kill while a checkpoint is written leaves a temporary file, which the next start removes
    leftovers = [path.name for path in other.rglob("*.tmp")]
    return sorted(different) + [f"left behind: {name}" for name in leftovers]


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return torch.equal(one, other)
    return one == other


def _flat(value: Any, name: str) -> dict[str, Any]:
    """Return the leaves of nested dictionaries and lists by their path."""
    if isinstance(value, list | tuple):
        value = dict(enumerate(value))
    if not isinstance(value, dict):
        return {name: value}
    leaves: dict[str, Any] = {}
    for key, part in value.items():
        leaves |= _flat(part, f"{name}.{key}")
    return leaves


def _rows(path: Path) -> list[dict[str, str]]:
    """Read the rows of metrics.csv but for the columns that depend on the clock."""
    clocked = re.compile("seconds|per_second|memory|mfu")
    with path.open(newline="") as file:
        return [{k: v for k, v in row.items() if not clocked.search(k)} for row in csv.DictReader(file)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Train twice and compare; return 1 if anything differs, or if no start went on from a checkpoint."""
    parser = harness.parser_for("kills", __doc__)
    parser.add_argument("--kills", type=int, default=20, help="how often the second run is killed (20)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31), help="of the moments")
    options, overrides = parser.parse_known_args(arguments)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        finish(start(folder, "whole", overrides), [])
        begun = harass(folder, overrides, options.kills, random.Random(options.seed))
        wrong = differences(folder)
    result = {
        "overrides": overrides,
        "kills": options.kills,
        "seed": options.seed,
        "continued_from": begun[1:],
        "different": wrong,
        "seconds": round(time.monotonic() - began),
    }
    print(json.dumps(result))
    harness.write(options.out, "kills", {"machine": harness.machine(), **result})
    if not any(begun[1:]):
        print("kills: every start began anew, so that nothing was resumed: train longer", file=sys.stderr)
    return 1 if wrong or not any(begun[1:]) else 0


if __name__ == "__main__":
    sys.exit(main())
