"""Train by the project's own command for some seconds, with its own settings or without replayed passes."""

from __future__ import annotations

import csv
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.gpu.records import ROOT

if TYPE_CHECKING:
    from benchmarks.gpu.part import Job

# What captures no passes.
EAGER = ("trainer.graphs=false",)
_RESULTS = (
    *("steps", "start_seconds", "target_tokens_per_second", "seconds", "max_time", "seconds_over_budget"),
    *("test_seconds", "training_seconds", "max_tokens", "compiled", "passes", "throughput", "epochs", "parameters"),
)
# Seconds of training, and those that start, validation and test may take beside it.
_SECONDS, _BESIDE = 30.0, 70.0


def run(job: Job) -> None:
    """Train, and save what the run's files say, while it runs and at the end; words are mixer, tokens, and `eager`."""
    mixer, tokens, *ways = job.words
    seconds = max(10.0, min(_SECONDS, job.left(reserve=_BESIDE))) if job.on_gpu else 2.0
    size = ["model=base"] if job.on_gpu else ["model=tiny", "model.dim=16", "model.ffn_dim=32", "model.num_heads=2"]
    words = [f"mixer={mixer}", *size, *corpus(job), *(EAGER if "eager" in ways else ())]
    words += [f"data.max_tokens={tokens if job.on_gpu or tokens == 'auto' else 512}"]
    # The machine cuts these updates into micro-batches
    words += [f"data.batch_tokens={65536 if job.on_gpu else 512}"] if tokens == "auto" else []
    words += [f"trainer.max_time={seconds:.0f}s", f"trainer.val_sentences={50 if job.on_gpu else 2}"]
    words += ["trainer.log_steps=20", "trainer.line_time=5s"]
    # Translations of a tiny model do not end, and take longer than all else
    words += [] if job.on_gpu else ["trainer.test=false"]
    with tempfile.TemporaryDirectory() as runs:
        command = [sys.executable, "-m", "seq2seq.train", *words, f"runs={runs}", "run=visit"]
        began = time.monotonic()
        with subprocess.Popen(command, cwd=ROOT) as process:
            while process.poll() is None:
                try:
                    process.wait(timeout=2.0)
                except subprocess.TimeoutExpired:
                    job.save(**measured(Path(runs) / "visit"))
        job.save(command=" ".join(words), wall=round(time.monotonic() - began, 1), **measured(Path(runs) / "visit"))
        if process.returncode:
            raise SystemExit(f"RuntimeError: the training command ended with exit status {process.returncode}")


def corpus(job: Job) -> list[str]:
    """Return the settings of the corpus: of a folder with train, valid, test and joint.model, or the embedded one."""
    if not job.command_data:
        return []
    folder, src, tgt = job.command_data
    splits = [f"data.{split}={Path(folder).absolute() / split}" for split in ("train", "valid", "test")]
    model = Path(folder).absolute() / "joint.model"
    return ["data=files", f"data.src={src}", f"data.tgt={tgt}", *splits, f"tokenizer.model={model}"]


def measured(folder: Path) -> dict[str, Any]:
    """Return what a run's files have so far."""
    found: dict[str, Any] = {}
    if (folder / "metrics.csv").is_file():
        found |= rates(folder / "metrics.csv")
    if (folder / "results.json").is_file():
        results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
        found |= {key: results.get(key) for key in _RESULTS}
        found |= {f"{split} bleu": results[split]["bleu"] for split in ("valid", "test") if results.get(split)}
    return found


def rates(path: Path) -> dict[str, Any]:
    """Return updates, and target tokens/s by the seconds of training, of a table whose last line may be cut."""
    rows = []
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            try:
                rows.append([int(row["step"]), float(row["train/seconds"]), float(row["train/tokens_per_second"])])
            except (KeyError, TypeError, ValueError):
                # Rows of validations have other columns
                continue
    if not rows:
        return {}
    later = [rate for _, _, rate in rows[len(rows) // 2 :]]
    return {
        "updates so far": rows[-1][0],
        "rates": [[round(seconds, 1), round(rate)] for _, seconds, rate in rows[:: max(1, len(rows) // 12)]],
        "later tokens/s": round(statistics.median(later)),
    }
