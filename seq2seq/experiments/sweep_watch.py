"""Follow a sweep by its jobs' records: a line as soon as a job starts, finishes or fails."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from seq2seq.experiments.job_records import ACTIVE, Job, common_overrides, launcher, read_jobs

# A sweep launched from another machine, whose process cannot be looked for, has ended when it is silent for so long.
SILENT_SECONDS = 60.0


def watch(sweeps: Sequence[Path], *, interval: float) -> int:
    """Print every change until the sweeps have ended; the number of jobs that failed."""
    seen: dict[Path, str] = {}
    changed = time.monotonic()
    while True:
        # first whether there may be more jobs: one that starts after this look is seen by the next
        open_ended = [process for sweep in sweeps if (process := launcher(sweep))]
        jobs = [job.checked() for sweep in sweeps for job in read_jobs(sweep)]
        for job in jobs:
            if seen.get(job.folder) != job.state:
                seen[job.folder] = job.state
                changed = time.monotonic()
                print(f"{time.strftime('%H:%M:%S')} {describe(job, common_overrides(jobs))}", flush=True)
        silent = time.monotonic() - changed > SILENT_SECONDS and not any(process.local for process in open_ended)
        if not any(job.state in ACTIVE for job in jobs) and (not open_ended or silent):
            return sum(job.state == "failed" for job in jobs)
        time.sleep(interval)


def describe(job: Job, common: Collection[str] = ()) -> str:
    """One line: the job, its state, and what it came to."""
    if job.state == "failed":
        log = f"; see {os.path.relpath(job.log)}" if job.log else ""
        return f"FAILED    {job.title(common)}: {job.error}{log}"
    return f"{job.state:<9} {job.title(common)}{score(job)}"


def score(job: Job) -> str:
    """`: BLEU 31.41 (runs/...)` of a finished job; the validation's where there was no test."""
    if job.state != "finished" or job.run is None:
        return ""
    try:
        results = json.loads((job.run / "results.json").read_text(encoding="utf-8"))
        split = "test" if "test" in results else "valid"
        return f": {split} BLEU {results[split]['bleu']:.2f} ({job.run})"
    except (OSError, ValueError, KeyError, TypeError):
        return f": no results ({job.run})"
