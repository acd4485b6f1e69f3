"""Records of a sweep's jobs: each job keeps `<sweep>/<number>/job.json`, which others read while it runs."""

from __future__ import annotations

import dataclasses
import functools
import os
import socket
import subprocess
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from seq2seq.system.files import write_json
from seq2seq.system.json_file import read_json, read_json_or_none
from seq2seq.system.slurm import this_job

RECORD = "job.json"
# The process of a job that has not started, by the launcher; a file of its own since the job writes the record.
SUBMITTED = "submitted.json"
# The process that launches the sweep's jobs, and whether it has ended.
SWEEP = "sweep.json"

ACTIVE = ("waiting", "running")
# States of a job that SLURM no longer works on.
OVER = {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT"}
# SLURM is asked about an array once in so many seconds.
ASK_SECONDS = 5.0


@dataclasses.dataclass(frozen=True)
class Process:
    """A process of a host, or a job of SLURM.

    Attributes:
        host: Name of its host.
        pid: Its process id there.
        slurm: Number of its SLURM job: `7`, or `7_2` in an array.
    """

    host: str = ""
    pid: int = 0
    slurm: str = ""

    @classmethod
    def here(cls) -> Process:
        """Describe this process, and the SLURM job that it is part of."""
        return cls.on_this_host(os.getpid(), this_job())

    @classmethod
    def on_this_host(cls, pid: int, slurm: str = "") -> Process:
        """Describe a process of this host by its process id."""
        return cls(host=socket.gethostname(), pid=pid, slurm=slurm)

    @property
    def local(self) -> bool:
        """True for a process of this host."""
        return self.host == socket.gethostname()

    def alive(self) -> bool:
        """Return False only if the process is known to be gone, by SLURM or because this host has no such process."""
        if self.slurm and (state := slurm_state(self.slurm)) is not None:
            # A job that is put back into the queue has no process, but is not over
            return state not in OVER and state != ""
        # A process of another host cannot be checked: it counts as alive
        if not self.local or not self.pid:
            return True
        try:
            # Signal 0 tests for existence and sends nothing
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            # It belongs to another user
            return True
        return True


def slurm_state(job: str) -> str | None:
    """Ask SLURM for the state of a job.

    Returns:
        `RUNNING` and so on, "" if the queue does not know the job any more, None if SLURM does not answer.
    """
    # One query for the whole array; the moment makes the cache expire
    states = _array_states(job.split("_")[0], int(time.monotonic() // ASK_SECONDS))
    return None if states is None else states.get(job, "")


@functools.lru_cache(maxsize=256)
def _array_states(array: str, moment: int) -> dict[str, str] | None:
    """Ask for the states of an array's jobs, once in a `moment` however many jobs there are."""
    # --states=all also lists jobs that ended a short while ago; %i number, %T state in full
    command = ["squeue", "--noheader", "--array", "--states=all", "--format=%i %T", f"--jobs={array}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    # An array that the queue has forgotten is an answer (no states), other errors are none
    if done.returncode and "Invalid job id" not in done.stderr:
        return None
    return dict(line.split()[:2] for line in done.stdout.splitlines() if len(line.split()) > 1)


@dataclasses.dataclass(frozen=True)
class Job:
    """A job of a sweep.

    Attributes:
        folder: `<sweep>/<number>`.
        overrides: Its settings, as on the command line.
        state: "waiting", "running", "finished" or "failed".
        run: Its run's folder, known once it has started.
        error: Reason of its failure.
        log: The file of its standard output, if it has one.
        process: The process that runs it, or will run it.
    """

    folder: Path
    overrides: tuple[str, ...]
    state: str
    run: Path | None = None
    error: str = ""
    log: str = ""
    process: Process = dataclasses.field(default_factory=Process)

    @property
    def number(self) -> int:
        """Its position in the sweep, from 0."""
        return int(self.folder.name)

    def title(self, common: Collection[str] = ()) -> str:
        """Name the job by its number and its settings but those that are `common` to all jobs."""
        own = [override for override in self.overrides if override not in common]
        return f"job {self.number} ({' '.join(own)})" if own else f"job {self.number}"

    def write(self) -> None:
        """Write the record atomically; the run's folder relative to it, so that a tree of runs can be moved."""
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
        """Read the record of `<sweep>/<number>`; None if there is none. A job whose record is damaged has failed."""
        try:
            record = read_json(folder / RECORD)
            process = record.get("process") or {}
            # A job that has started has recorded its own process, which is the better source
            if record.get("state") == "waiting":
                process = read_json_or_none(folder / SUBMITTED) or process
            return cls(
                folder=folder,
                overrides=tuple(str(override) for override in record.get("overrides", ())),
                state=str(record.get("state", "")),
                run=Path(os.path.normpath(folder / record["run"])) if record.get("run") else None,
                error=" ".join(str(record.get("error", "")).split()),
                log=str(record.get("log", "")),
                process=Process(**process),
            )
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            return cls(folder=folder, overrides=(), state="failed", error=f"its record {RECORD} is damaged ({error})")

    def submitted(self, process: Process) -> None:
        """Record the process that will run the job."""
        write_json(self.folder / SUBMITTED, dataclasses.asdict(process))

    def checked(self) -> Job:
        """Return the job as failed if it waits or runs by its record while its process is gone."""
        # Finished and failed jobs may well have no process
        error = self._lost() if self.state in ACTIVE else ""
        if not error:
            return self
        # It may have started or ended since its record was read
        now = Job.read(self.folder) or self
        return now.checked() if now.state != self.state else dataclasses.replace(self, state="failed", error=error)

    def _lost(self) -> str:
        """Explain why a job that waits or runs will never end; "" while it may."""
        # Not submitted yet: only a launcher that is alive can still start it
        if self.state == "waiting" and self.process == Process():
            sweep = self.folder.parent
            orphan = is_sweep(sweep) and launcher(sweep) is None
            return "never started: the process that launches the sweep has ended" if orphan else ""
        if self.process.alive():
            return ""
        # SLURM's state tells a job that a person canceled from one that failed
        state = slurm_state(self.process.slurm) if self.process.slurm else None
        if self.state == "running":
            return f"SLURM ended it ({state})" if state else "its process is gone (killed, or its machine went down)"
        if state in ("", "CANCELLED"):
            return "cancelled before it started"
        return f"ended before it started ({f'SLURM: {state}' if state else 'its process is gone'})"


def record_run(folder: Path, run: Path) -> None:
    """Record the folder of the run that the job `<sweep>/<number>` is, as soon as the run knows it."""
    # A job of a launcher without this project's callback has no record
    if job := Job.read(folder):
        dataclasses.replace(job, run=run).write()


def is_sweep(folder: Path) -> bool:
    """Return True for a sweep's folder."""
    # multirun.yaml is Hydra's own, of a sweep without this project's callback
    return (folder / SWEEP).is_file() or (folder / "multirun.yaml").is_file()


def read_jobs(sweep: Path) -> list[Job]:
    """Read the records of a sweep's jobs, in order."""
    # A job's folder is named by its number
    folders = [path.parent for path in sweep.glob(f"*/{RECORD}") if path.parent.name.isdecimal()]
    jobs = [job for folder in folders if (job := Job.read(folder))]
    return sorted(jobs, key=lambda job: job.number)


def common_overrides(jobs: Sequence[Job]) -> set[str]:
    """Return the settings that all of two or more jobs have."""
    # A single job would have all its settings in common, and no title
    return set.intersection(*(set(job.overrides) for job in jobs)) if len(jobs) > 1 else set()


def write_sweep(sweep: Path, *, ended: bool) -> None:
    """Record that this process launches the sweep's jobs, or that it has ended."""
    sweep.mkdir(parents=True, exist_ok=True)
    write_json(sweep / SWEEP, {"ended": ended, "process": dataclasses.asdict(Process.here())})


def launcher(sweep: Path) -> Process | None:
    """Return the process that launches more jobs of a sweep; None if it has ended."""
    record = read_json_or_none(sweep / SWEEP)
    if record is None or record.get("ended"):
        return None
    # A launcher that was killed has not recorded its end
    process = Process(**record["process"])
    return process if process.alive() else None
