"""Train by the project's own command with a token budget that it finds itself, for a minute."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

from benchmarks.gpu.records import ROOT

if TYPE_CHECKING:
    from benchmarks.gpu.part import Job


def run(job: Job) -> None:
    """Train on the embedded corpus, and save what the run's results.json has of speed, memory and score."""
    runs = job.folder / "parts" / "runs"
    shutil.rmtree(runs, ignore_errors=True)
    size = ["model=base"] if job.on_gpu else ["model=tiny", "model.dim=16", "model.ffn_dim=32", "model.num_heads=2"]
    seconds = 60 if job.on_gpu else 2
    words = ["mixer=dynamicconv", *size, f"runs={runs}", "run=visit", f"trainer.max_time={seconds}s"]
    words += ["data.max_tokens=auto"] if job.on_gpu else ["data.max_tokens=512", "trainer.test=false"]
    subprocess.run([sys.executable, "-m", "seq2seq.train", *words], cwd=ROOT, check=True)
    results = json.loads((runs / "visit" / "results.json").read_text(encoding="utf-8"))
    job.save(**{key: results.get(key) for key in ("max_tokens", "throughput", "steps", "test", "valid")})
    shutil.rmtree(runs, ignore_errors=True)
