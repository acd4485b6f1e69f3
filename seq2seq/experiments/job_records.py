"""The jobs of a sweep: each keeps a small record in `<sweep>/<number>/job.json` that others read while it runs."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import socket
import subprocess
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

RECORD = "job.json"
# Beside it, what the launcher knows of a job that has not started: a file of its own, since the job writes the record.
SUBMITTED = "submitted.json"
# Who launched the sweep, and whether it has ended.
SWEEP = "sweep.json"
ACTIVE = ("waiting", "running")
# States of a job that SLURM no longer works on.
ASK_SECONDS = 5.0  # between two questions to SLURM about the same array
OVER = {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT"}


@dataclasses.dataclass(frozen=True)
class Process:
    """Where something runs: a process of a host, or a job of SLURM (`7`, or `7_2` in an array)."""

    host: str = ""
    pid: int = 0
    slurm: str = ""

    @classmethod
    def here(cls) -> Process:
        """This process, and the SLURM job that it is part of."""
        array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
        slurm = f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID", "")
        return cls(host=socket.gethostname(), pid=os.getpid(), slurm=slurm)

    @property
    def local(self) -> bool:
        """Whether it can be looked for on this host."""
        return self.host == socket.gethostname()

    def alive(self) -> bool:
        """False only where it is known to be gone: SLURM says so, or this host has no such process."""
        if self.slurm and (state := slurm_state(self.slurm)) is not None:
            # a job that is put back into the queue has no process, but is not over
            return state not in OVER and state != ""
        return not self.local or not self.pid or Path(f"/proc/{self.pid}").exists() or _signalled(self.pid)


def _signalled(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def slurm_state(job: str) -> str | None:
    """What SLURM says of a job: `RUNNING` and so on, "" if the queue knows it no more, None if it cannot be asked."""
    states = _array_states(job.split("_")[0], int(time.monotonic() // ASK_SECONDS))
    return None if states is None else states.get(job, "")


@functools.lru_cache(maxsize=256)
def _array_states(array: str, moment: int) -> dict[str, str] | None:
    """The states of an array's jobs; asked for once a moment, whatever the number of its jobs."""
    ask = ["squeue", "--noheader", "--array", "--states=all", "--format=%i %T", f"--jobs={array}"]
    try:
        done = subprocess.run(ask, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    if done.returncode and "Invalid job id" not in done.stderr:
        return None
    return dict(line.split()[:2] for line in done.stdout.splitlines() if len(line.split()) > 1)


@dataclasses.dataclass(frozen=True)
class Job:
    """One job: its settings, the folder of its run, and its state: waiting, running, finished or failed."""

    folder: Path
    overrides: tuple[str, ...]
    state: str
    run: Path | None = None
    error: str = ""
    log: str = ""
    process: Process = dataclasses.field(default_factory=Process)

    @property
    def number(self) -> int:
        """Its place in the sweep, from 0."""
        return int(self.folder.name)

    def title(self, common: Collection[str] = ()) -> str:
        """What a line about it starts with; settings that are `common` to all jobs need not be named."""
        own = [override for override in self.overrides if override not in common]
        return f"job {self.number} ({' '.join(own)})" if own else f"job {self.number}"

    def write(self) -> None:
        """Record it, atomically; the run's folder as seen from here, so that a tree of runs can be moved."""
        from seq2seq.files import write_json

        self.folder.mkdir(parents=True, exist_ok=True)
        record = {
            "overrides": list(self.overrides),
            "state": self.state,
            "run": os.path.relpath(self.run, self.folder) if self.run else None,
            "error": self.error,
            "log": self.log,
            "process": dataclasses.asdict(self.process),
        }
        write_json(self.folder / RECORD, record)

    @classmethod
    def read(cls, folder: Path) -> Job | None:
        """The job of `<sweep>/<number>`; None where there is no whole record."""
        record = _json(folder / RECORD)
        if record is None:
            return None
        waits = record.get("state") == "waiting"
        process = (_json(folder / SUBMITTED) if waits else None) or record.get("process", {})
        return cls(
            folder=folder,
            overrides=tuple(record.get("overrides", ())),
            state=str(record.get("state", "")),
            run=Path(os.path.normpath(folder / record["run"])) if record.get("run") else None,
            error=str(record.get("error", "")),
            log=str(record.get("log", "")),
            process=Process(**process),
        )

    def submitted(self, process: Process) -> None:
        """Record where the job will run."""
        from seq2seq.files import write_json

        write_json(self.folder / SUBMITTED, dataclasses.asdict(process))

    def checked(self) -> Job:
        """The job, as failed if it says that it waits or runs while its process is gone."""
        if self.state not in ACTIVE or (self.process.alive() and not self._forsaken()):
            return self
        # it may have started or ended between the two looks
        now = Job.read(self.folder) or self
        if now.state != self.state:
            return now.checked()
        error = "its process is gone (killed, or its machine went down)" if self.state == "running" else self._never()
        return dataclasses.replace(self, state="failed", error=error)

    def _forsaken(self) -> bool:
        """Whether it waits to be submitted by a launcher that has ended."""
        sweep = self.folder.parent
        return self.state == "waiting" and self.process == Process() and is_sweep(sweep) and launcher(sweep) is None

    def _never(self) -> str:
        """Why a job that waits will not start."""
        if self.process == Process():
            return "never started: the process that launches the sweep has ended"
        state = slurm_state(self.process.slurm) if self.process.slurm else None
        if state in ("", "CANCELLED"):
            return "cancelled before it started"
        return f"ended before it started ({f'SLURM: {state}' if state else 'its process is gone'})"


def is_sweep(folder: Path) -> bool:
    """Whether `folder` is a sweep's."""
    return (folder / SWEEP).is_file() or (folder / "multirun.yaml").is_file()


def read_jobs(sweep: Path) -> list[Job]:
    """The jobs of a sweep that have a record, in order."""
    return sorted(_jobs(sweep), key=lambda job: job.number)


def _jobs(sweep: Path) -> Iterator[Job]:
    for record in sweep.glob(f"*/{RECORD}"):
        if record.parent.name.isdigit() and (job := Job.read(record.parent)):
            yield job


def common_overrides(jobs: Sequence[Job]) -> set[str]:
    """The settings that all of two or more jobs were given."""
    return set.intersection(*(set(job.overrides) for job in jobs)) if len(jobs) > 1 else set()


def write_sweep(sweep: Path, *, ended: bool) -> None:
    """Record that this process launches the sweep, or that it has ended."""
    from seq2seq.files import write_json

    sweep.mkdir(parents=True, exist_ok=True)
    write_json(sweep / SWEEP, {"ended": ended, "process": dataclasses.asdict(Process.here())})


def launcher(sweep: Path) -> Process | None:
    """The process that launches more jobs of this sweep; None when there is none any more."""
    record = _json(sweep / SWEEP)
    if record is None or record.get("ended"):
        return None
    process = Process(**record.get("process", {}))
    return process if process.alive() else None


def _json(path: Path) -> dict[str, Any] | None:
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return loaded if isinstance(loaded, dict) else None
