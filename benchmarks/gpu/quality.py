"""Train a mixer's small model on German-English, translate the test sets and score, by `benchmarks.headline`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from benchmarks.headline import report
from benchmarks.headline.data import Prepared
from benchmarks.headline.parts import Plan, quality

if TYPE_CHECKING:
    from benchmarks.gpu.part import Job


def run(job: Job) -> None:
    """Train for four minutes, or for what the part's time allows; translations that nothing scores are kept as ids."""
    (mixer,) = job.words
    prepared = Prepared(job.data)
    # Compilation before and translation after it take up to two minutes
    seconds = max(60.0, min(240.0, job.left(reserve=120.0))) if job.on_gpu else 0.3
    plan = Plan(
        device=torch.device(job.device),
        seconds=seconds,
        synthetic_seconds=0.0,
        max_tokens=8192 if job.on_gpu else 400,
        synthetic_tokens=0,
        compile=job.on_gpu,
        beam_size=5 if job.on_gpu else 2,
    )
    with tempfile.TemporaryDirectory() as weights:
        found = quality(prepared, mixer, plan, Path(weights))
    # Before the score: its packages may be missing
    job.save(**found)
    if report.score({"parts": {mixer: found}}, prepared):
        for translation in found["translations"].values():
            del translation["ids"]
        job.save(**found)
