"""Launchers for sweeps on SLURM and in local processes, which report every job as soon as it ends.

They are hydra-submitit-launcher's, but for waiting: that one waits for its jobs in order, gives up at the first failure
and needs SLURM's accounting to learn of a job that was killed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from omegaconf import OmegaConf

from seq2seq.experiments.hydra_callback import JobError, compare_command
from seq2seq.experiments.job_records import OVER, Job, Process, common_overrides, slurm_state
from seq2seq.experiments.sweep_watch import describe


class _Missing(Launcher):
    """Stands for what is not installed, and says so when it is wanted."""

    def __init__(self, **params: Any) -> None:
        self.params = params

    def setup(self, **parts: Any) -> None:
        """ValueError with the remedy."""
        raise ValueError("this hydra/launcher needs hydra-submitit-launcher: pip install -e '.[slurm]'")

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Never called."""
        raise NotImplementedError


_Base: Any = _Missing
with contextlib.suppress(ImportError):
    from hydra_plugins.hydra_submitit_launcher.submitit_launcher import BaseSubmititLauncher

    _Base = BaseSubmititLauncher

POLL_SECONDS = 1.0
# A job that is over may have its result still on the way through a shared file system.
GRACE_SECONDS = 10.0


class _ReportingLauncher(_Base):
    """Submits the jobs, reports each when it ends, and returns when all have."""

    _OWN: tuple[str, ...] = ()  # settings that are not the executor's

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run one job for each list of settings, as one array where there are arrays."""
        assert self.config is not None
        self._require_devices(job_overrides)
        raw: Any = OmegaConf.to_container(self.config)
        require_own_folders(raw["run"], job_overrides)
        sweep = Path(str(self.config.hydra.sweep.dir))
        records = [
            Job(folder=sweep / str(number), overrides=tuple(overrides), state="waiting")
            for number, overrides in enumerate(job_overrides, initial_job_idx)
        ]
        for record in records:
            record.write()
        state = Singleton.get_state()
        arguments = [
            (list(job.overrides), "hydra.sweep.dir", job.number, f"job_id_for_{job.number}", state) for job in records
        ]
        submitted: list[Any] = []
        try:
            return self._run(records, arguments, submitted)
        except KeyboardInterrupt:
            self._interrupted(submitted)
            sys.exit(130)

    def _submit(self, executor: Any, records: Sequence[Job], arguments: Sequence[Any], common: set[str]) -> list[Any]:
        """Submit some of the jobs, as one array where there are arrays."""
        submitted = executor.map_array(self, *zip(*arguments, strict=True))
        for record, job in zip(records, submitted, strict=True):
            record.submitted(self._process(job))
            _say(f"submitted {record.title(common)} as {job.job_id}")
        return submitted

    def _executor(self) -> Any:
        import submitit
        from hydra_plugins.hydra_submitit_launcher.config import BaseQueueConf

        shared = {field.name for field in dataclasses.fields(BaseQueueConf)}
        settings = {key: value for key, value in self.params.items() if key not in ("submitit_folder", *self._OWN)}
        executor = submitit.AutoExecutor(folder=self.params["submitit_folder"], cluster=self._EXECUTOR)
        prefix = f"{self._EXECUTOR}_"
        executor.update_parameters(**{(k if k in shared else prefix + k): v for k, v in settings.items()})
        return executor

    def _require_devices(self, job_overrides: Sequence[Sequence[str]]) -> None:
        """ValueError unless every job has as many processes as devices."""
        assert self.config is not None
        tasks = str(self.params.get("tasks_per_node", 1))
        given = {
            o.split("=", 1)[1] for overrides in job_overrides for o in overrides if o.startswith("trainer.devices=")
        }
        if wrong := (given or {str(self.config.trainer.devices)}) - {tasks}:
            raise ValueError(
                f"trainer.devices={sorted(wrong)[0]}, but this sweep starts {tasks} processes a job; use "
                "hydra/launcher=slurm, and one sweep for each number of devices"
            )

    def _run(self, records: Sequence[Job], arguments: Sequence[Any], submitted: list[Any]) -> list[JobReturn]:
        """Submit jobs while there is room, adding them to `submitted`, and report each that ends."""
        executor, returns = self._executor(), dict[int, JobReturn]()
        ended: dict[int, float] = {}
        common = common_overrides(records)
        while len(returns) < len(records):
            part = slice(len(submitted), len(submitted) + self._room(len(submitted) - len(returns)))
            if records[part]:
                submitted += self._submit(executor, records[part], arguments[part], common)
            for index, (record, job) in enumerate(zip(records, submitted, strict=False)):
                if index in returns:
                    continue
                found = _outcome(record, job)
                if found is None and (reason := self._gone(job)):
                    # its result may be on the way
                    since = ended.setdefault(index, time.monotonic())
                    found = _failure(record, reason) if time.monotonic() - since > GRACE_SECONDS else None
                if found is not None:
                    returns[index] = found
                    _say(describe(_conclude(record, found, job), common))
            if len(returns) < len(records):
                time.sleep(POLL_SECONDS)
        if failed := [each for each in returns.values() if each.status is JobStatus.FAILED]:
            sweep = Path(str(self.config.hydra.sweep.dir))
            _say(f"{len(failed)} of {len(records)} jobs failed; compare the others with: {compare_command(sweep)}")
        return [returns[index] for index in range(len(records))]

    def _room(self, running: int) -> int:
        """How many more jobs may be submitted while `running` are."""
        return sys.maxsize - running

    def _process(self, job: Any) -> Process:
        """Where a job that was submitted will run."""
        raise NotImplementedError

    def _gone(self, job: Any) -> str:
        """Why the job will have no result any more, "" while it may."""
        raise NotImplementedError

    def _interrupted(self, submitted: Sequence[Any]) -> None:
        raise NotImplementedError


class LocalLauncher(_ReportingLauncher):
    """Each job in a process of this machine, `array_parallelism` at the same time (null: all)."""

    _EXECUTOR = "local"
    _OWN = ("array_parallelism",)

    def _room(self, running: int) -> int:
        most = self.params.get("array_parallelism")
        if most is not None and (type(most) is not int or most < 1):
            raise ValueError(
                f"hydra.launcher.array_parallelism={most}: a whole number of at least 1 is needed, or null"
            )
        return super()._room(running) if most is None else most - running

    def _process(self, job: Any) -> Process:
        return dataclasses.replace(Process.here(), pid=int(job.job_id), slurm="")

    def _gone(self, job: Any) -> str:
        return "its process ended without a result" if job.done() else ""

    def _interrupted(self, submitted: Sequence[Any]) -> None:
        for job in submitted:
            job.cancel()


class SlurmLauncher(_ReportingLauncher):
    """A job array of SLURM, a process for each device."""

    _EXECUTOR = "slurm"

    def __call__(self, sweep_overrides: list[str], *rest: Any) -> JobReturn:
        """Run in the job; one that SLURM has put back into the queue continues its own run."""
        given = any(override.startswith("resume=") for override in sweep_overrides)
        if int(os.environ.get("SLURM_RESTART_COUNT") or 0) and not given:
            sweep_overrides = [*sweep_overrides, "resume=auto"]
        return super().__call__(sweep_overrides, *rest)

    def _process(self, job: Any) -> Process:
        return Process(slurm=job.job_id)

    def _gone(self, job: Any) -> str:
        state = slurm_state(job.job_id)
        over = state is not None and (state in OVER or state == "")
        return f"SLURM ended it ({state or 'the queue knows it no more'})" if over else ""

    def _interrupted(self, submitted: Sequence[Any]) -> None:
        arrays = sorted({job.job_id.split("_")[0] for job in submitted})
        _say(f"interrupted; the jobs go on without this process (to end them: scancel {' '.join(arrays)})")


def require_own_folders(run: str | None, job_overrides: Sequence[Sequence[str]]) -> None:
    """ValueError if two jobs, which may run at the same time, are given the same name `run`."""
    given = [next((o.split("=", 1)[1] for o in job if o.startswith("run=")), run) for job in job_overrides]
    # a sweeper may have escaped the braces of an interpolation
    names = [name for name in given if name not in (None, "null", "None") and "$" not in name]
    if len(names) > len(set(names)):
        raise ValueError(
            f"run={names[0]} would be the folder of several jobs; leave run out, or name them apart with "
            f"'run={names[0]}-${{seed}}'"
        )


def _outcome(record: Job, job: Any) -> JobReturn | None:
    """What a job returned: a failure once one of its processes has failed, a result once all have one."""
    tasks = [job.task(index) for index in range(job.num_tasks)]
    done = [task for task in tasks if task.paths.result_pickle.exists()]
    found = [_result(record, task) for task in done]
    failed = [each for each in found if each.status is JobStatus.FAILED]
    return failed[0] if failed else (found[0] if len(found) == len(tasks) else None)


def _result(record: Job, task: Any) -> JobReturn:
    error = task.exception()
    if error is None:
        return task.result()
    # the traceback of the process; its last line says what was wrong
    lines = [line for line in str(error).split("-" * 22)[1:2] for line in line.strip().splitlines()]
    return _failure(record, lines[-1] if lines else str(error))


def _failure(record: Job, reason: str) -> JobReturn:
    return JobReturn(overrides=list(record.overrides), status=JobStatus.FAILED, _return_value=JobError(reason))


def _conclude(record: Job, found: JobReturn, job: Any) -> Job:
    """The job's own record of its end; ours, where it could not write one."""
    own = Job.read(record.folder) or record
    failed = found.status is JobStatus.FAILED
    if failed and own.state != "failed":
        own = dataclasses.replace(own, state="failed", error=str(found._return_value), log=str(job.paths.stdout))
        own.write()
    return own if failed else dataclasses.replace(own, state="finished")


def _say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)
