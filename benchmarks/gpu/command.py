"""Train by the project's own command for some seconds, with its own settings or without replayed passes."""

from __future__ import annotations

import csv
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.gpu.records import ROOT

if TYPE_CHECKING:
    from benchmarks.gpu.part import PartJob

# Setting of each way: no captured passes, the kernels that are off by default, a residual stream in bf16.
WAYS = {"eager": "trainer.graphs=false", "fused": "trainer.fused=true", "residual": "trainer.bf16_residual=true"}
_RESULTS = (
    *("steps", "start_seconds", "target_tokens_per_second", "seconds", "max_time", "seconds_over_budget"),
    *("test_seconds", "training_seconds", "max_tokens", "passes", "throughput", "epochs", "parameters"),
)
# Runs that are tested and train for longer, since captures take the first twenty seconds at 16,384 tokens.
_LONG = ("transformer/16384", "dynamicconv/16384")
# Seconds of training of these runs, of runs with plain passes (whose rate is constant) and of other runs; and seconds
# reserved for start and test.
_LONGER, _PLAIN, _OTHERS, _BESIDE = 30.0, 10.0, 20.0, 30.0
# Updates are compared over this time of training; the start ends with the hundredth update.
MINUTE, HUNDREDTH = 60.0, 100
# The log's line about kernels that were compiled before the clock of training starts.
_COMPILED = re.compile(r"kernels compiled on \d+ threads in ([\d.]+) s")


def run(job: PartJob) -> None:
    """Train, and save the results in the run's files during the run and at the end.

    The words are mixer, tokens, and ways: keys of WAYS, or `big` for the size. Every run compiles its kernels anew.
    """
    mixer, tokens, *ways = job.words
    tested = job.on_gpu and "/".join(job.words) in _LONG
    most = _LONGER if tested else _PLAIN if "eager" in ways else _OTHERS
    seconds = max(10.0, min(most, job.left(reserve=_BESIDE))) if job.on_gpu else 2.0
    # A rehearsal on a CPU has neither kernels nor autocast
    words = settings(job, mixer, tokens, "big" if "big" in ways else "base")
    words += [WAYS[way] for way in ways if way in WAYS and (job.on_gpu or way == "eager")]
    words += [f"trainer.max_time={seconds:.0f}s", f"trainer.val_sentences={50 if job.on_gpu else 2}"]
    words += ["trainer.log_steps=20", "trainer.line_time=5s"]
    # Translations of a tiny model run to the length limit
    words += [] if tested else ["trainer.test=false"]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "runs" / "visit"
        command = [sys.executable, "-m", "seq2seq.train", *words, f"runs={place.parent}", "run=visit"]
        environment = {**os.environ, "TRITON_CACHE_DIR": f"{folder}/triton"}
        began = time.monotonic()
        with subprocess.Popen(command, cwd=ROOT, env=environment) as process:
            while process.poll() is None:
                try:
                    process.wait(timeout=2.0)
                except subprocess.TimeoutExpired:
                    job.save(**measured(place))
        job.save(command=" ".join(words), wall=round(time.monotonic() - began, 1), **measured(place))
        # The log of this process has the command's output
        log = job.path.with_suffix(".log")
        if found := _COMPILED.search(log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""):
            job.save(**{"compiled s": float(found[1])})
        if process.returncode:
            raise SystemExit(f"RuntimeError: the training command ended with exit status {process.returncode}")


def settings(job: PartJob, mixer: str, tokens: str, size: str = "base") -> list[str]:
    """Return the settings of mixer, size, corpus and batches."""
    shape = [f"model={size}"] if job.on_gpu else ["model=tiny", "model.dim=16", "model.ffn_dim=32", "model.num_heads=2"]
    words = [f"mixer={mixer}", *shape, *corpus(job)]
    words += [f"data.max_tokens={tokens if job.on_gpu or tokens == 'auto' else 512}"]
    # With `auto`, the machine cuts these updates into micro-batches
    return words + ([f"data.batch_tokens={65536 if job.on_gpu else 512}"] if tokens == "auto" else [])


def corpus(job: PartJob) -> list[str]:
    """Return the settings of the corpus: a folder with train, valid, test and joint.model, or the embedded corpus."""
    if not job.command_data:
        return []
    folder, src, tgt = job.command_data
    splits = [f"data.{split}={Path(folder).absolute() / split}" for split in ("train", "valid", "test")]
    model = Path(folder).absolute() / "joint.model"
    return ["data=files", f"data.src={src}", f"data.tgt={tgt}", *splits, f"tokenizer.model={model}"]


def measured(folder: Path) -> dict[str, Any]:
    """Return the results that a run's files have so far."""
    found: dict[str, Any] = {}
    if (folder / "metrics.csv").is_file():
        found |= rates(folder / "metrics.csv")
    if (folder / "results.json").is_file():
        results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
        found |= {key: results.get(key) for key in _RESULTS}
        found |= {f"{split} bleu": results[split]["bleu"] for split in ("valid", "test") if results.get(split)}
    return found


def rates(path: Path) -> dict[str, Any]:
    """Return updates, and target tokens/s over time, of a table whose last line may be truncated."""
    rows = []
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            try:
                rows.append((int(row["step"]), float(row["train/seconds"]), float(row["train/tokens_per_second"])))
            except (KeyError, TypeError, ValueError):
                # Rows of validations have other columns
                continue
    if not rows:
        return {}
    later = [rate for _, _, rate in rows[len(rows) // 2 :]]
    hundredth = next((seconds for step, seconds, _ in rows if step == HUNDREDTH), None)
    return {
        "updates so far": rows[-1][0],
        "rates": [[round(seconds, 1), round(rate)] for _, seconds, rate in rows[:: max(1, len(rows) // 12)]],
        "later tokens/s": round(statistics.median(later)),
        **({} if hundredth is None else {"update 100 s": round(hundredth, 1)}),
        **in_a_minute([(step, seconds) for step, seconds, _ in rows]),
    }


def in_a_minute(rows: list[tuple[int, float]]) -> dict[str, Any]:
    """Return the updates of the first minute of training; a shorter run is extrapolated from its later half.

    Args:
        rows: Updates and seconds of training.
    """
    step, seconds = next(((step, s) for step, s in rows if s >= MINUTE), rows[-1])
    middle, then = rows[(len(rows) - 1) // 2]
    pace = (step - middle) / (seconds - then) if seconds > then else step / seconds
    return {
        "updates in 60 s": round(step + pace * (MINUTE - seconds)),
        "of which measured": round(min(1, seconds / MINUTE), 2),
    }
