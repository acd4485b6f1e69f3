"""Follow a sweep by the records of its jobs: print a line when a job starts, finishes or fails."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from seq2seq.sweeps.job_records import ACTIVE, Job, common_overrides, is_sweep, launcher, read_jobs
from seq2seq.system.json_file import read_json

# A launcher on another machine cannot be checked: its sweep counts as ended after this time without a change.
SILENT_SECONDS = 60.0


def watch(sweeps: Sequence[Path], *, interval: float) -> int:
    """Print every change until the sweeps have ended, and return the number of jobs that failed.

    Args:
        sweeps: Folders of the sweeps.
        interval: Seconds between two looks at the records.

    Raises:
        ValueError: A folder is not a sweep.
    """
    for sweep in sweeps:
        if not is_sweep(sweep):
            raise ValueError(f"--watch: {sweep} is not a sweep; name a folder such as runs/sweeps/<date>")
    # Last state printed, by the job's folder
    states: dict[Path, str] = {}
    changed = time.monotonic()
    while True:
        # Launchers before jobs: the next round sees a job that is launched in between
        launchers = [process for sweep in sweeps if (process := launcher(sweep))]
        jobs = [job.checked() for sweep in sweeps for job in read_jobs(sweep)]
        common = common_overrides(jobs)
        for job in jobs:
            if states.get(job.folder) != job.state:
                states[job.folder] = job.state
                changed = time.monotonic()
                print(f"{time.strftime('%H:%M:%S')} {describe(job, common)}", flush=True)
        silent = time.monotonic() - changed > SILENT_SECONDS
        # A live launcher may add jobs
        launching = any(process.local or not silent for process in launchers)
        if not launching and not any(job.state in ACTIVE for job in jobs):
            return sum(job.state == "failed" for job in jobs)
        time.sleep(interval)


def describe(job: Job, common: Collection[str] = ()) -> str:
    """Describe a job in one line: title, state and result.

    Args:
        common: Settings of all jobs, which the title leaves out.
    """
    if job.state == "failed":
        # Relative to the working directory, to be pasted after `less`
        log = f"; see {os.path.relpath(job.log)}" if job.log else ""
        return f"FAILED    {job.title(common)}: {job.error}{log}"
    return f"{job.state:<9} {job.title(common)}{_score(job)}"


def _score(job: Job) -> str:
    """Format `: test BLEU 31.41 (runs/...)` of a finished job, or the validation score without a test."""
    if job.state != "finished" or job.run is None:
        return ""
    try:
        results = read_json(job.run / "results.json")
        split = "test" if "test" in results else "valid"
        return f": {split} BLEU {results[split]['bleu']:.2f} ({job.run})"
    except (OSError, ValueError, KeyError, TypeError):
        return f": no results ({job.run})"
