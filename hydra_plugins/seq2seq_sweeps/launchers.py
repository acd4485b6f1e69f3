"""Launchers for sweeps on SLURM and in local processes that report every job as soon as it ends, and in this process.

The first two differ from the launchers of hydra-submitit-launcher mainly in how they wait. The latter wait for the jobs
in order, give up at the first failure, and need SLURM's accounting to notice a job that was killed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from omegaconf import DictConfig

from seq2seq.sweeps.hydra_callback import JobError
from seq2seq.sweeps.job_records import OVER, Job, Process, common_overrides, slurm_state
from seq2seq.sweeps.sweep_watch import describe
from seq2seq.system.packages import missing_package
from seq2seq.training.command import INTERRUPTED, wants_traceback


class _Missing(Launcher):
    """Base class that refuses to launch, used if hydra-submitit-launcher is not installed."""

    def __init__(self, **params: Any) -> None:
        self.params = params

    def setup(self, **parts: Any) -> None:
        """Raise ValueError with the remedy."""
        raise missing_package("hydra-submitit-launcher", "this hydra/launcher", extra="slurm")

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Raise NotImplementedError; Hydra does not get here, because `setup` has raised."""
        raise NotImplementedError


# Hydra imports every plugin at every start, so this module must import without the package.
_Base: Any = _Missing
with contextlib.suppress(ImportError):
    from hydra_plugins.hydra_submitit_launcher.submitit_launcher import BaseSubmititLauncher

    _Base = BaseSubmititLauncher

# Seconds between two checks of the jobs' result files.
POLL_SECONDS = 1.0


def _record_jobs(config: DictConfig, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> list[Job]:
    """Record all jobs before the first one starts, so that `compare` knows the jobs that wait."""
    sweep = Path(str(config.hydra.sweep.dir))
    records = [
        Job(folder=sweep / str(number), overrides=tuple(overrides), state="waiting")
        for number, overrides in enumerate(job_overrides, initial_job_idx)
    ]
    for record in records:
        record.write()
    return records


class SequentialLauncher(BasicLauncher):
    """Launcher of one job after the other in this process: Hydra's own, with a record of all jobs."""

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Record the jobs, and run them."""
        assert self.config is not None
        _record_jobs(self.config, job_overrides, initial_job_idx)
        return super().launch(job_overrides, initial_job_idx)


class _ReportingLauncher(_Base):
    """Launcher that submits the jobs, reports the end of each, and returns after the last."""

    _EXECUTOR: str  # submitit's name of the cluster
    _OWN: tuple[str, ...] = ()  # settings that are not the executor's
    _GRACE = 10.0  # seconds that the result of an ended job may take to appear

    def __call__(self, *arguments: Any) -> JobReturn:
        """Run a job, in its own process, and raise its error: srun ends the other processes if one fails."""
        result = super().__call__(*arguments)
        result.return_value  # noqa: B018 (raises the error)
        return result

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run one job for each list of settings, on SLURM as one array.

        Args:
            job_overrides: Settings of each job, as on the command line.
            initial_job_idx: Number of the first job; a sweeper launches several batches.

        Returns:
            The results in the order of the jobs, including failures.
        """
        try:
            return self._launch(job_overrides, initial_job_idx)
        except (ValueError, TypeError) as error:
            # Hydra would print a traceback. Submitit's executors refuse some settings with a TypeError.
            if wants_traceback():
                raise
            print(f"train: hydra.launcher: {' '.join(str(error).split())}", file=sys.stderr)
            sys.exit(2)

    def _launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        assert self.config is not None
        self._require_devices(job_overrides)
        records = _record_jobs(self.config, job_overrides, initial_job_idx)
        state = Singleton.get_state()
        # Arguments of `__call__`, in the order of hydra-submitit-launcher
        arguments = [
            (list(record.overrides), "hydra.sweep.dir", record.number, f"job_id_for_{record.number}", state)
            for record in records
        ]
        # Filled by `_run`, and read after Ctrl-C
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
            # Submitit raises this for an error of sbatch, for example if SLURM has no controller
            raise ValueError(f"the jobs cannot be submitted: {error}") from error
        for record, job in zip(records, submitted, strict=True):
            record.submitted(self._process(job))
            _say(f"submitted {record.title(common)} as {job.job_id}")
        return submitted

    def _executor(self) -> Any:
        """Create submitit's executor from the launcher's settings."""
        import submitit
        from hydra_plugins.hydra_submitit_launcher.config import BaseQueueConf

        shared = {field.name for field in dataclasses.fields(BaseQueueConf)}
        executor = submitit.AutoExecutor(folder=self.params["submitit_folder"], cluster=self._EXECUTOR)
        settings = {}
        for key in (key for key in self.params if key not in ("submitit_folder", *self._OWN)):
            # Settings of only one cluster have its name as a prefix: slurm_partition
            settings[key if key in shared else f"{self._EXECUTOR}_{key}"] = self.params[key]
        executor.update_parameters(**settings)
        return executor

    def _require_devices(self, job_overrides: Sequence[Sequence[str]]) -> None:
        """Raise ValueError unless every job has as many processes as devices."""
        assert self.config is not None
        tasks = str(self.params.get("tasks_per_node", 1))
        # The sweep may set the number of devices, even to several values
        words = [word for overrides in job_overrides for word in overrides]
        devices = {word.split("=", 1)[1] for word in words if word.lstrip("+").startswith("trainer.devices=")}
        if wrong := (devices or {str(self.config.trainer.devices)}) - {tasks}:
            raise ValueError(
                f"trainer.devices={sorted(wrong)[0]}, but this sweep starts {tasks} processes a job; use "
                "hydra/launcher=slurm, and one sweep for each number of devices"
            )

    def _run(self, records: Sequence[Job], arguments: Sequence[Any], submitted: list[Any]) -> list[JobReturn]:
        """Submit jobs while there is room, adding them to `submitted`, and report each that ends."""
        executor = self._executor()
        returns: dict[int, JobReturn] = {}
        ended: dict[int, float] = {}  # when a job was first seen to have ended without a result
        common = common_overrides(records)
        while len(returns) < len(records):
            # Empty after the last record
            part = slice(len(submitted), len(submitted) + self._room(len(submitted) - len(returns)))
            if records[part]:
                submitted += self._submit(executor, records[part], arguments[part], common)
            # zip leaves out the jobs that are not submitted yet, which come last
            for index, (record, job) in enumerate(zip(records, submitted, strict=False)):
                if index in returns:
                    continue
                result = _outcome(record, job)
                if result is None and (reason := self._gone(job)):
                    # The result may arrive late
                    since = ended.setdefault(index, time.monotonic())
                    if time.monotonic() - since > self._GRACE:
                        result = _failure(record, reason)
                else:
                    ended.pop(index, None)
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
        """Return why the job cannot have a result any more; "" as long as it can."""
        raise NotImplementedError

    def _interrupted(self, submitted: Sequence[Any]) -> None:
        """Handle Ctrl-C: end the submitted jobs, or say how to."""
        raise NotImplementedError


class LocalLauncher(_ReportingLauncher):
    """Launcher of jobs in processes of this machine, `array_parallelism` at the same time (null: all).

    On a machine with GPUs, unless `gpus_per_node` is set, each job sees the GPU with the fewest jobs. Submitit alone
    would hide all GPUs.
    """

    _EXECUTOR = "local"
    _OWN = ("array_parallelism",)

    def __init__(self, **params: Any) -> None:
        super().__init__(**params)
        # Name of the GPU of the next job, which receives a copy of this object
        self._gpu: str | None = None
        # Submitted jobs by GPU; empty if submitit decides
        self._on_gpu: dict[str, list[Any]] = {}

    def __getstate__(self) -> dict[str, Any]:
        # The copy for a job cannot hold processes
        return self.__dict__ | {"_on_gpu": {}}

    def __call__(self, *arguments: Any) -> JobReturn:
        """Run a job, in its own process, on its GPU."""
        if self._gpu is not None:
            # Submitit has set this variable to nothing, and torch has not read it yet
            os.environ["CUDA_VISIBLE_DEVICES"] = self._gpu
        return super().__call__(*arguments)

    def _run(self, records: Sequence[Job], arguments: Sequence[Any], submitted: list[Any]) -> list[JobReturn]:
        gpus = visible_gpus() if self.params.get("gpus_per_node") is None else []
        self._on_gpu = {gpu: [] for gpu in gpus}
        # As Ctrl-C does, `kill` ends the jobs, too
        earlier = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            return super()._run(records, arguments, submitted)
        finally:
            signal.signal(signal.SIGTERM, earlier)

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
        return Process.here(int(job.job_id))

    def _gone(self, job: Any) -> str:
        return "its process ended without a result" if job.done() else ""

    def _interrupted(self, submitted: Sequence[Any]) -> None:
        # The jobs would continue without this process
        for job in submitted:
            job.cancel()


def _runs(job: Any) -> bool:
    """Return True until a job has its result; its process may still run then."""
    return not (job.done() or job.paths.result_pickle.exists())


def visible_gpus() -> list[str]:
    """List the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    # Not at the top: Hydra imports this module at every start
    import torch

    count = torch.cuda.device_count()
    names = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(count)))).split(",")
    return [name.strip() for name in names[:count]]


class SlurmLauncher(_ReportingLauncher):
    """Launcher of a SLURM job array, with a process for each device."""

    _EXECUTOR = "slurm"
    _GRACE = 60.0  # NFS may remember for so long that a file is missing

    def _process(self, job: Any) -> Process:
        return Process(slurm=job.job_id)

    def _gone(self, job: Any) -> str:
        state = slurm_state(job.job_id)
        return f"SLURM ended it ({state or 'it has left the queue'})" if state in OVER else ""

    def _interrupted(self, submitted: Sequence[Any]) -> None:
        # The number of the array (7 of job 7_2), with which scancel ends all of its jobs
        arrays = sorted({job.job_id.split("_")[0] for job in submitted})
        _say(f"interrupted; the jobs continue without this process (to end them: scancel {' '.join(arrays)})")


def _outcome(record: Job, job: Any) -> JobReturn | None:
    """Return a failure once one of a job's processes has failed, a result once all have one, else None."""
    # A change of the folder makes NFS look for new files
    with contextlib.suppress(OSError):
        job.paths.folder.chmod(job.paths.folder.stat().st_mode)
    # A task is one process of the job, on SLURM one for each device
    tasks = [job.task(index) for index in range(job.num_tasks)]
    results = [_result(record, task) for task in tasks if task.paths.result_pickle.exists()]
    # A failure does not wait for the other processes, which may hang in a collective operation
    for result in results:
        if result.status is JobStatus.FAILED:
            return result
    return results[0] if len(results) == len(tasks) else None


def _result(record: Job, task: Any) -> JobReturn:
    """Return the result of one process of a job."""
    error = task.exception()
    if error is None:
        return task.result()
    # The traceback of the process is between dashed lines; its last line names the error
    lines = [line for part in str(error).split("-" * 22)[1:2] for line in part.strip().splitlines()]
    return _failure(record, lines[-1] if lines else str(error))


def _failure(record: Job, reason: str) -> JobReturn:
    return JobReturn(overrides=list(record.overrides), status=JobStatus.FAILED, _return_value=JobError(reason))


def _conclude(record: Job, result: JobReturn, job: Any) -> Job:
    """Return the record of a job's end, which the job wrote itself unless it was killed."""
    own = Job.read(record.folder) or record
    if result.status is not JobStatus.FAILED:
        return dataclasses.replace(own, state="finished")
    # The job's own message is better than submitit's
    if own.state != "failed":
        own = dataclasses.replace(own, state="failed", error=str(result._return_value), log=str(job.paths.stdout))
        own.write()
    return own


def _say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)
