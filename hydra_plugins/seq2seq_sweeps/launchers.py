"""Launchers for sweeps on SLURM and in local processes that report every job as soon as it ends.

They differ from hydra-submitit-launcher's only in how they wait: that one waits for its jobs in order, gives up at the
first failure, and needs SLURM's accounting to notice a job that was killed.
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

from seq2seq.sweeps.hydra_callback import JobError
from seq2seq.sweeps.job_records import OVER, Job, Process, common_overrides, slurm_state
from seq2seq.sweeps.sweep_watch import describe
from seq2seq.system.packages import missing_package
from seq2seq.training.command import INTERRUPTED, wants_traceback


class _Missing(Launcher):
    """Base class that replaces hydra-submitit-launcher's where that is not installed; it refuses to launch."""

    def __init__(self, **params: Any) -> None:
        self.params = params

    def setup(self, **parts: Any) -> None:
        """Raise ValueError with the remedy."""
        raise missing_package("hydra-submitit-launcher", "this hydra/launcher", extra="slurm")

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Do nothing: `setup` has raised."""
        raise NotImplementedError


# Hydra imports every plugin at every start, so this module must import without the package.
_Base: Any = _Missing
with contextlib.suppress(ImportError):
    from hydra_plugins.hydra_submitit_launcher.submitit_launcher import BaseSubmititLauncher

    _Base = BaseSubmititLauncher

# Seconds between two looks at the jobs' result files.
POLL_SECONDS = 1.0
# The result of a job that is over may be on its way through a shared file system for so long.
GRACE_SECONDS = 10.0


class _ReportingLauncher(_Base):
    """Launcher that submits the jobs, reports each when it ends, and returns when all have."""

    _EXECUTOR: str  # submitit's name of the cluster
    _OWN: tuple[str, ...] = ()  # settings that are not the executor's

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run one job for each list of settings, on SLURM as one array.

        Args:
            job_overrides: Settings of each job, as on the command line.
            initial_job_idx: Number of the first; a sweeper launches several batches.

        Returns:
            The results in the order of the jobs, failures among them.
        """
        try:
            return self._launch(job_overrides, initial_job_idx)
        except (ValueError, TypeError) as error:
            # Hydra would print a traceback; submitit's own executors refuse settings as TypeErrors, too
            if wants_traceback():
                raise
            print(f"train: hydra.launcher: {' '.join(str(error).split())}", file=sys.stderr)
            sys.exit(2)

    def _launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        assert self.config is not None
        self._require_devices(job_overrides)
        # Unresolved: `run` may refer to a setting that differs between jobs
        raw: Any = OmegaConf.to_container(self.config)
        require_own_folders(raw["run"], job_overrides)
        sweep = Path(str(self.config.hydra.sweep.dir))
        records = [
            Job(folder=sweep / str(number), overrides=tuple(overrides), state="waiting")
            for number, overrides in enumerate(job_overrides, initial_job_idx)
        ]
        # All records before any job, so that `compare --watch` knows of jobs that still wait
        for record in records:
            record.write()
        state = Singleton.get_state()
        # What hydra-submitit-launcher passes to the job, in its order: `__call__` receives it
        arguments = [
            (list(record.overrides), "hydra.sweep.dir", record.number, f"job_id_for_{record.number}", state)
            for record in records
        ]
        # Filled by `_run`, and read here if Ctrl-C interrupts it
        submitted: list[Any] = []
        try:
            return self._run(records, arguments, submitted)
        except KeyboardInterrupt:
            self._interrupted(submitted)
            sys.exit(INTERRUPTED)

    def _submit(self, executor: Any, records: Sequence[Job], arguments: Sequence[Any], common: set[str]) -> list[Any]:
        """Submit some of the jobs, on SLURM as one array."""
        # One argument list for each parameter of `__call__`, as map takes them
        try:
            submitted = executor.map_array(self, *zip(*arguments, strict=True))
        except RuntimeError as error:
            # Submitit's own error for what sbatch says, as without a controller
            raise ValueError(f"the jobs cannot be submitted: {error}") from error
        for record, job in zip(records, submitted, strict=True):
            record.submitted(self._process(job))
            _say(f"submitted {record.title(common)} as {job.job_id}")
        return submitted

    def _executor(self) -> Any:
        """Create submitit's executor from the launcher's settings."""
        import submitit
        from hydra_plugins.hydra_submitit_launcher.config import BaseQueueConf

        # Names that all clusters share; others get the cluster's prefix, `slurm_partition`
        shared = {field.name for field in dataclasses.fields(BaseQueueConf)}
        settings = {key: value for key, value in self.params.items() if key not in ("submitit_folder", *self._OWN)}
        executor = submitit.AutoExecutor(folder=self.params["submitit_folder"], cluster=self._EXECUTOR)
        # submitit wants the cluster's name before settings that only one cluster has
        names = {key: key if key in shared else f"{self._EXECUTOR}_{key}" for key in settings}
        executor.update_parameters(**{names[key]: value for key, value in settings.items()})
        return executor

    def _require_devices(self, job_overrides: Sequence[Sequence[str]]) -> None:
        """Raise ValueError unless every job has as many processes as devices."""
        assert self.config is not None
        tasks = str(self.params.get("tasks_per_node", 1))
        # A sweep may set the devices itself, even to different numbers
        words = [word for overrides in job_overrides for word in overrides]
        devices = {word.split("=", 1)[1] for word in words if word.startswith("trainer.devices=")}
        if wrong := (devices or {str(self.config.trainer.devices)}) - {tasks}:
            raise ValueError(
                f"trainer.devices={sorted(wrong)[0]}, but this sweep starts {tasks} processes a job; use "
                "hydra/launcher=slurm, and one sweep for each number of devices"
            )

    def _run(self, records: Sequence[Job], arguments: Sequence[Any], submitted: list[Any]) -> list[JobReturn]:
        """Submit jobs while there is room, adding them to `submitted`, and report each that ends."""
        executor = self._executor()
        returns: dict[int, JobReturn] = {}
        ended: dict[int, float] = {}  # when a job without a result was first seen to be over
        common = common_overrides(records)
        while len(returns) < len(records):
            # Beyond the last record the slice is empty: no more jobs
            part = slice(len(submitted), len(submitted) + self._room(len(submitted) - len(returns)))
            if records[part]:
                submitted += self._submit(executor, records[part], arguments[part], common)
            # Jobs that were not submitted yet come last, and are left out by zip
            for index, (record, job) in enumerate(zip(records, submitted, strict=False)):
                if index in returns:
                    continue
                result = _outcome(record, job)
                if result is None and (reason := self._gone(job)):
                    # Its result may still be on its way: wait before calling it a failure
                    since = ended.setdefault(index, time.monotonic())
                    if time.monotonic() - since > GRACE_SECONDS:
                        result = _failure(record, reason)
                if result is not None:
                    returns[index] = result
                    _say(describe(_conclude(record, result, job), common))
            # No pause after the last one
            if len(returns) < len(records):
                time.sleep(POLL_SECONDS)
        # Hydra pairs results with settings by position
        return [returns[index] for index in range(len(records))]

    def _room(self, running: int) -> int:
        """Return how many more jobs may be submitted while `running` of them run."""
        return sys.maxsize - running

    def _process(self, job: Any) -> Process:
        """Return where a job that was submitted will run."""
        raise NotImplementedError

    def _gone(self, job: Any) -> str:
        """Say why the job will have no result any more; "" while it may."""
        raise NotImplementedError

    def _interrupted(self, submitted: Sequence[Any]) -> None:
        """Handle Ctrl-C: end the jobs that were submitted, or say how to."""
        raise NotImplementedError


class LocalLauncher(_ReportingLauncher):
    """Launcher of jobs in processes of this machine, `array_parallelism` at the same time (null: all).

    Each job sees one GPU, the one with the fewest jobs, where there are GPUs and no `gpus_per_node` is set: submitit
    alone would hide them all, and the jobs train on the CPU.
    """

    _EXECUTOR = "local"
    _OWN = ("array_parallelism",)

    def __init__(self, **params: Any) -> None:
        super().__init__(**params)
        # Name of the GPU of the job that is submitted next, which receives a copy of this object
        self._gpu: str | None = None
        # Jobs that were submitted, by GPU; empty where submitit decides
        self._on_gpu: dict[str, list[Any]] = {}

    def __getstate__(self) -> dict[str, Any]:
        # A job's copy cannot have the processes of others
        return self.__dict__ | {"_on_gpu": {}}

    def __call__(self, *arguments: Any) -> JobReturn:
        """Run a job, in its own process, as hydra-submitit-launcher does."""
        if self._gpu is not None:
            # Before torch looks for GPUs; submitit has set it to nothing
            os.environ["CUDA_VISIBLE_DEVICES"] = self._gpu
        return super().__call__(*arguments)

    def _run(self, records: Sequence[Job], arguments: Sequence[Any], submitted: list[Any]) -> list[JobReturn]:
        gpus = visible_gpus() if self.params.get("gpus_per_node") is None else []
        self._on_gpu = {gpu: [] for gpu in gpus}
        return super()._run(records, arguments, submitted)

    def _submit(self, executor: Any, records: Sequence[Job], arguments: Sequence[Any], common: set[str]) -> list[Any]:
        if not self._on_gpu:
            return super()._submit(executor, records, arguments, common)
        submitted: list[Any] = []
        for record, argument in zip(records, arguments, strict=True):
            self._gpu = min(self._on_gpu, key=lambda gpu: sum(map(_runs, self._on_gpu[gpu])))
            started = super()._submit(executor, [record], [argument], common)
            self._on_gpu[self._gpu] += started
            submitted += started
        return submitted

    def _room(self, running: int) -> int:
        most = self.params.get("array_parallelism")
        if most is None:
            return super()._room(running)
        if type(most) is not int or most < 1:
            raise ValueError(
                f"hydra.launcher.array_parallelism={most}: a whole number of at least 1 is needed, or null"
            )
        return most - running

    def _process(self, job: Any) -> Process:
        return Process.on_this_host(int(job.job_id))

    def _gone(self, job: Any) -> str:
        return "its process ended without a result" if job.done() else ""

    def _interrupted(self, submitted: Sequence[Any]) -> None:
        # The processes belong to this one, and would go on unseen
        for job in submitted:
            job.cancel()


def _runs(job: Any) -> bool:
    """Return True until a job has its result, which its process may outlast."""
    return not (job.done() or job.paths.result_pickle.exists())


def visible_gpus() -> list[str]:
    """List the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    # Imported where it is needed: Hydra imports this module at every start
    import torch

    count = torch.cuda.device_count()
    names = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(count)))).split(",")
    return [name.strip() for name in names[:count]]


class SlurmLauncher(_ReportingLauncher):
    """Launcher of a SLURM job array, with a process for each device."""

    _EXECUTOR = "slurm"

    def _process(self, job: Any) -> Process:
        return Process(slurm=job.job_id)

    def _gone(self, job: Any) -> str:
        # None: SLURM does not answer, so nothing is known; "": it has forgotten the job
        state = slurm_state(job.job_id)
        over = state is not None and (state in OVER or state == "")
        return f"SLURM ended it ({state or 'the queue knows it no more'})" if over else ""

    def _interrupted(self, submitted: Sequence[Any]) -> None:
        # 7 of 7_2: scancel ends a whole array by it
        arrays = sorted({job.job_id.split("_")[0] for job in submitted})
        _say(f"interrupted; the jobs go on without this process (to end them: scancel {' '.join(arrays)})")


def require_own_folders(run: str | None, job_overrides: Sequence[Sequence[str]]) -> None:
    """Check that jobs, which may run at the same time, have different names `run`.

    Args:
        run: the name that the command sets for all jobs, if any.
        job_overrides: the settings of each job.

    Raises:
        ValueError: two jobs have the same name.
    """
    names = []
    for overrides in job_overrides:
        # The job's own name replaces the one that the command sets for all
        own = [word.split("=", 1)[1] for word in overrides if word.startswith("run=")]
        name = own[0] if own else run
        # A sweeper may have escaped the braces of an interpolation
        if name not in (None, "null", "None") and "$" not in name:
            names.append(name)
    if len(names) > len(set(names)):
        raise ValueError(
            f"run={names[0]} would be the folder of several jobs; leave run out, or name them apart with "
            f"'run={names[0]}-${{seed}}'"
        )


def _outcome(record: Job, job: Any) -> JobReturn | None:
    """Return a failure once one of a job's processes has failed, a result once all have one, else None."""
    # A task is one process of the job, on SLURM one for each device
    tasks = [job.task(index) for index in range(job.num_tasks)]
    results = [_result(record, task) for task in tasks if task.paths.result_pickle.exists()]
    # At once, without waiting for the other processes, which may hang in a collective
    for result in results:
        if result.status is JobStatus.FAILED:
            return result
    return results[0] if len(results) == len(tasks) else None


def _result(record: Job, task: Any) -> JobReturn:
    """Return the result of one process of a job."""
    error = task.exception()
    if error is None:
        return task.result()
    # submitit gives the process' traceback between dashed lines; its last line names the error
    lines = [line for part in str(error).split("-" * 22)[1:2] for line in part.strip().splitlines()]
    return _failure(record, lines[-1] if lines else str(error))


def _failure(record: Job, reason: str) -> JobReturn:
    return JobReturn(overrides=list(record.overrides), status=JobStatus.FAILED, _return_value=JobError(reason))


def _conclude(record: Job, result: JobReturn, job: Any) -> Job:
    """Return a job's own record of its end; write one if it could not."""
    # The job writes its record itself, unless it was killed or never came to Python
    own = Job.read(record.folder) or record
    if result.status is not JobStatus.FAILED:
        return dataclasses.replace(own, state="finished")
    # The job's own message is better than what submitit passes on
    if own.state != "failed":
        own = dataclasses.replace(own, state="failed", error=str(result._return_value), log=str(job.paths.stdout))
        own.write()
    return own


def _say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)
