"""Kill -9 at random moments, start again, compare: `python -m benchmarks.kills [--kills 20] [--out DIR] [OVERRIDES]`.

Trains a small model on the phrasebook once in peace and once while it is killed again and again, each time started anew
by the same command with resume=auto. Both must end with the same bits in weights, optimiser and metrics; exit 1 if not.
Further words are overrides of seq2seq.train: mixer=lightconv trainer.precision=bf16 trainer.accumulate=2.
"""

from __future__ import annotations

import argparse
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

GIVEN = (
    "data=phrasebook", "model=tiny", "model.dim=32", "model.ffn_dim=64", "model.num_heads=4", "data.max_tokens=512",
    "trainer.max_time=null", "trainer.max_steps=600", "trainer.val_steps=150", "trainer.val_sentences=32",
    "trainer.save_time=0.5s", "trainer.log_steps=10", "trainer.line_time=0.2s", "trainer.samples=0",
    "trainer.test=false", "trainer.accelerator=cpu", "search.max_len_extra=4", "logger=csv",
)  # fmt: skip
# What a line says once training runs: kills before that would only hit imports.
RUNNING = ("step ", "validation at")


def start(folder: Path, run: str, overrides: Sequence[str]) -> subprocess.Popen[str]:
    """Begin, or continue, the run of this name."""
    words = [*GIVEN, f"runs={folder / 'runs'}", f"cache={folder / 'cache'}", *overrides, f"run={run}", "resume=auto"]
    return subprocess.Popen(
        [sys.executable, "-m", "seq2seq.train", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip


def wait_until_running(process: subprocess.Popen[str]) -> list[str]:
    """The lines shown until training runs, or all of them."""
    shown = []
    assert process.stdout is not None
    for line in process.stdout:
        shown.append(line)
        if any(word in line for word in RUNNING):
            break
    return shown


def finish(process: subprocess.Popen[str], shown: list[str]) -> None:
    """Wait for the end of a run that must succeed."""
    rest, _ = process.communicate()
    if process.returncode:
        sys.exit(f"training failed with exit code {process.returncode}:\n{''.join(shown)}{rest}")


def harass(folder: Path, overrides: Sequence[str], kills: int, rng: random.Random) -> list[int]:
    """Train with `kills` kills at random moments; the update that each start continued from, 0 for a fresh start."""
    begun = []
    while True:
        begun.append(_step(folder, "killed"))
        process = start(folder, "killed", overrides)
        shown = wait_until_running(process)
        if len(begun) > kills:
            finish(process, shown)
            return begun
        try:
            # between two saves as well as within one, in validation as well as in training
            process.wait(rng.uniform(0, 3))
            sys.exit(f"the run ended before kill {len(begun)}; raise trainer.max_steps\n{''.join(shown)}")
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _step(folder: Path, run: str) -> int:
    from seq2seq import checkpoint

    path = folder / "runs" / run / "checkpoints" / "last.ckpt"
    return int(checkpoint.read(path)["global_step"]) if path.exists() else 0


def differences(folder: Path) -> list[str]:
    """What differs between both runs: tensors of weights and optimiser, progress, best scores, rows of metrics."""
    import torch

    from seq2seq import checkpoint

    states = [checkpoint.read(folder / "runs" / run / "checkpoints" / "last.ckpt") for run in ("whole", "killed")]
    found = []
    for part in ("state_dict", "optimizer_states", "lr_schedulers", "train_sums", "global_step", "epoch"):
        first, second = (_flat(state[part], part) for state in states)
        for name in first.keys() | second.keys():
            a, b = first.get(name), second.get(name)
            same = torch.equal(a, b) if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) else a == b
            found += [] if same else [name]
    rows = [_rows(folder / "runs" / run / "metrics.csv") for run in ("whole", "killed")]
    found += [] if rows[0] == rows[1] else ["metrics.csv"]
    left = [path.name for path in (folder / "runs" / "killed").rglob("*.tmp")]
    return sorted(found) + [f"left behind: {name}" for name in left]


def _flat(value: Any, name: str) -> dict[str, Any]:
    if isinstance(value, dict):
        return {key: leaf for k, v in value.items() for key, leaf in _flat(v, f"{name}.{k}").items()}
    if isinstance(value, list | tuple):
        return {key: leaf for k, v in enumerate(value) for key, leaf in _flat(v, f"{name}.{k}").items()}
    return {name: value}


def _rows(path: Path) -> list[dict[str, str]]:
    """The rows without what the clock decides."""
    clocked = re.compile("seconds|per_second|memory|mfu")
    with path.open(newline="") as file:
        return [{k: v for k, v in row.items() if not clocked.search(k)} for row in csv.DictReader(file)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Train twice and compare; 1 if anything differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    parser.add_argument("--out", type=Path)
    options, overrides = parser.parse_known_args(arguments)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        finish(start(folder, "whole", overrides), [])
        begun = harass(folder, overrides, options.kills, random.Random(options.seed))
        wrong = differences(folder)
    result = {"overrides": overrides, "kills": options.kills, "seed": options.seed, "continued_from": begun[1:],
              "different": wrong, "seconds": round(time.monotonic() - began)}  # fmt: skip
    print(json.dumps(result))
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "kills.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
