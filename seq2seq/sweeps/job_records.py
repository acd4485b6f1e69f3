"""Records of a sweep's jobs: `<sweep>/<number>/job.json`, which the job writes and other processes read."""

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
from seq2seq.system.slurm import launched_by_slurm, this_job

RECORD = "job.json"
# Holds the process of a job that has not started. The launcher writes this file; the job itself writes the record.
SUBMITTED = "submitted.json"
# Holds the process that launches the jobs of a sweep, and whether it has ended.
SWEEP = "sweep.json"

ACTIVE = ("waiting", "running")
# Final states of a SLURM job; "" if the queue no longer knows it.
OVER = {"", "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT"}
# Seconds between two queries about a SLURM array.
ASK_SECONDS = 5.0


@dataclasses.dataclass(frozen=True)
class Process:
    """A process on a host, or a SLURM job.

    Attributes:
        host: Name of the host.
        pid: Process id on the host.
        slurm: Number of the SLURM job: `7`, or `7_2` in an array.
        inside: The process was started inside the SLURM job, and may end before it; else SLURM launched it.
    """

    host: str = ""
    pid: int = 0
    slurm: str = ""
    inside: bool = False

    @classmethod
    def here(cls, pid: int | None = None) -> Process:
        """Describe a process of this host; by default this process, and the SLURM job that it is part of."""
        slurm = this_job() if pid is None else ""
        inside = bool(slurm) and not launched_by_slurm()
        return cls(host=socket.gethostname(), pid=pid or os.getpid(), slurm=slurm, inside=inside)

    @property
    def local(self) -> bool:
        """True for a process of this host."""
        return self.host == socket.gethostname()

    def alive(self) -> bool:
        """Return False if the process is known to be gone, from SLURM or on this host."""
        state = slurm_state(self.slurm) if self.slurm else None
        # A requeued job has no process, but is not over
        if state is not None and (state in OVER or not (self.inside and self.local)):
            return state not in OVER
        # Processes of other hosts cannot be checked and count as alive
        if not self.local or not self.pid:
            return True
        try:
            # Signal 0 only tests for existence
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            # A process of another user
            pass
        return True


def slurm_state(job: str) -> str | None:
    """Ask SLURM for the state of a job.

    Returns:
        `RUNNING` and so on, "" if the queue no longer knows the job, None if SLURM does not answer.
    """
    # `moment` makes the cache expire
    states = _array_states(job.split("_")[0], int(time.monotonic() // ASK_SECONDS))
    return None if states is None else states.get(job, "")


@functools.lru_cache(maxsize=256)
def _array_states(array: str, moment: int) -> dict[str, str] | None:
    """Ask for the states of all jobs of an array, once for each `moment`."""
    # --states=all includes jobs that ended recently; %i: number, %T: state in full
    command = ["squeue", "--noheader", "--array", "--states=all", "--format=%i %T", f"--jobs={array}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    # "Invalid job id": the queue has forgotten the array, so it has no states
    if done.returncode and "Invalid job id" not in done.stderr:
        return None
    return dict(line.split()[:2] for line in done.stdout.splitlines() if len(line.split()) > 1)


@dataclasses.dataclass(frozen=True)
class Job:
    """A job of a sweep.

    Attributes:
        folder: `<sweep>/<number>`.
        overrides: Settings, as on the command line.
        state: "waiting", "running", "finished" or "failed".
        run: Folder of its run, known after the start.
        error: Reason of a failure.
        log: File of the standard output, or "".
        process: The process that runs or will run the job.
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
        """Position in the sweep, from 0."""
        return int(self.folder.name)

    def title(self, common: Collection[str] = ()) -> str:
        """Name the job by its number and the settings that are not `common` to all jobs."""
        own = [override for override in self.overrides if override not in common]
        return f"job {self.number} ({' '.join(own)})" if own else f"job {self.number}"

    def write(self) -> None:
        """Write the record, with a relative path of the run, so that a tree of runs can be moved."""
        self.folder.mkdir(parents=True, exist_ok=True)
        record = dataclasses.asdict(self) | {"run": self.run and os.path.relpath(self.run, self.folder)}
        del record["folder"]
        write_json(self.folder / RECORD, record)

    @classmethod
    def read(cls, folder: Path) -> Job | None:
        """Read the record of `<sweep>/<number>`, None if it is missing; a job with a damaged record has failed."""
        try:
            record = read_json(folder / RECORD)
            process = record.get("process") or {}
            # A started job has recorded its own process
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
        """Return the job as failed if its record says that it waits or runs, but its process is gone."""
        error = self._lost() if self.state in ACTIVE else ""
        if not error:
            return self
        # The job may have started or ended since the record was read
        now = Job.read(self.folder) or self
        return now.checked() if now.state != self.state else dataclasses.replace(self, state="failed", error=error)

    def _lost(self) -> str:
        """Explain why a job that waits or runs will never end, or return ""."""
        # A job that is not submitted needs a launcher
        if self.state == "waiting" and self.process == Process():
            sweep = self.folder.parent
            orphan = is_sweep(sweep) and launcher(sweep) is None
            return "never started: the process that launches the sweep has ended" if orphan else ""
        if self.process.alive():
            return ""
        # SLURM's state tells a job that a person canceled from one that failed
        state = slurm_state(self.process.slurm) if self.process.slurm else None
        if self.state == "running":
            ended = state and state in OVER
            return f"SLURM ended it ({state})" if ended else "its process is gone (killed, or its machine went down)"
        if state in ("", "CANCELLED"):
            return "cancelled before it started"
        return f"ended before it started ({f'SLURM: {state}' if state else 'its process is gone'})"


def record_run(folder: Path, run: Path) -> None:
    """Record the run's folder for the job `<sweep>/<number>`."""
    # Launchers without this project's callback keep no record
    if job := Job.read(folder):
        dataclasses.replace(job, run=run).write()


def is_sweep(folder: Path) -> bool:
    """Return True for a sweep's folder."""
    # Hydra writes multirun.yaml, also without this project's callback
    return (folder / SWEEP).is_file() or (folder / "multirun.yaml").is_file()


def read_jobs(sweep: Path) -> list[Job]:
    """Read the records of a sweep's jobs, in order."""
    folders = [path.parent for path in sweep.glob(f"*/{RECORD}") if path.parent.name.isdecimal()]
    jobs = [job for folder in folders if (job := Job.read(folder))]
    return sorted(jobs, key=lambda job: job.number)


def common_overrides(jobs: Sequence[Job]) -> set[str]:
    """Return the common settings of two or more jobs; a single job has none, so that its title shows all."""
    return set.intersection(*(set(job.overrides) for job in jobs)) if len(jobs) > 1 else set()


def write_sweep(sweep: Path, *, ended: bool) -> None:
    """Record that this process launches the jobs of a sweep, or that it has ended."""
    sweep.mkdir(parents=True, exist_ok=True)
    write_json(sweep / SWEEP, {"ended": ended, "process": dataclasses.asdict(Process.here())})


def launcher(sweep: Path) -> Process | None:
    """Return the process that launches jobs of a sweep; None if it has ended."""
    record = read_json_or_none(sweep / SWEEP)
    if record is None or record.get("ended"):
        return None
    # A killed launcher has not recorded its end
    process = Process(**record["process"])
    return process if process.alive() else None
