"""Hydra callback that records every job of a sweep, and prints how to follow and compare the jobs."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import itertools
import logging
import os
import shlex
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import CompactHydraException
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from seq2seq.sweeps.job_records import RECORD, SUBMITTED, Job, Process, read_jobs, write_sweep
from seq2seq.system.slurm import launched_by_slurm

log = logging.getLogger(__name__)


def job_folder() -> Path | None:
    """Return the folder `<sweep>/<number>` of the job in this process; None outside a sweep."""
    # Python callers of `train` do not use Hydra
    if not HydraConfig.initialized() or HydraConfig.get().mode is not RunMode.MULTIRUN:
        return None
    return Path(HydraConfig.get().runtime.output_dir)


def compare_command(sweep: Path, *options: str) -> str:
    """Return the command that compares the runs of a sweep."""
    return shlex.join(["python", "-m", "seq2seq.compare", str(sweep), *options])


def record_stop(status: Any) -> None:
    """Record that a signal stopped the job of this process, which exits with `status`."""
    names = {128 + number: number.name for number in signal.Signals}
    here = job_folder()
    # SLURM knows the state of its jobs, and may have requeued this one
    if here is None or status not in names or launched_by_slurm() or not _first_task():
        return
    if job := Job.read(here):
        dataclasses.replace(job, state="failed", error=f"stopped ({names[status]}); continue with resume=auto").write()


class JobError(CompactHydraException):
    """Failure of a job because of its settings, which Hydra shows without a traceback."""


class JobRecords(Callback):
    """Callback that keeps `<sweep>/<number>/job.json` up to date and reports failures at once."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Record that this process launches the jobs."""
        if OmegaConf.select(config, "hydra.sweeper.sampler._target_") == "optuna.samplers.GridSampler":
            end_grids_by_count()
        sweep = _claim_folder(config)
        # Jobs of an earlier sweep in this folder are not of this one
        for job in read_jobs(sweep):
            for name in (RECORD, SUBMITTED):
                (job.folder / name).unlink(missing_ok=True)
        write_sweep(sweep, ended=False)
        # Hydra does not call on_multirun_end if a failed job or a signal ends the sweep
        atexit.register(_end, sweep, *_split(config))
        print(f"follow the sweep with: {compare_command(sweep, '--watch')}", flush=True)

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Record that there will be no more jobs; exit with status 1 if one has failed."""
        atexit.unregister(_end)
        # A search ends like this although trials have failed; Hydra's own sweeper has raised the error of a job
        if _end(Path(config.hydra.sweep.dir), *_split(config)):
            sys.exit(1)

    def on_job_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Record that the job runs in this process."""
        # A single run has no record; the first process of a distributed job writes it
        if config.hydra.mode is RunMode.MULTIRUN and _first_task():
            self._job(config, state="running").write()

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:
        """Record how the job ended."""
        if "wandb" in sys.modules:
            # The next job of this process starts a new wandb run
            sys.modules["wandb"].finish()
        if config.hydra.mode is not RunMode.MULTIRUN or not _first_task():
            return
        job = self._job(config, state="finished")
        # `record_run` has recorded the run's folder
        if recorded := Job.read(job.folder):
            job = dataclasses.replace(job, run=recorded.run)
        if job_return.status is JobStatus.FAILED:
            # The property `return_value` would raise the exception
            error = job_return._return_value
            # The message of a JobError needs no type
            name = "" if isinstance(error, JobError) else f"{type(error).__name__}: "
            # One line, for `compare --watch`
            job = dataclasses.replace(job, state="failed", error=" ".join(f"{name}{error}".split()))
            print(f"train: {job.title()} FAILED: {job.error}", file=sys.stderr, flush=True)
            _clear_frames(error)
        job.write()

    def _job(self, config: DictConfig, *, state: str) -> Job:
        """Describe the job of this process."""
        return Job(
            folder=Path(config.hydra.runtime.output_dir),
            overrides=tuple(str(item) for item in config.hydra.overrides.task),
            state=state,
            log=_log_file(),
            process=Process.here(),
        )


def end_grids_by_count() -> None:
    """Let only the number of trials end a grid of Optuna.

    After the last trial its sampler would stop the study, an error that Hydra's sweeper expects of a trial with a value
    alone.
    """
    from optuna.samplers import BaseSampler, GridSampler

    GridSampler.after_trial = BaseSampler.after_trial


def _split(config: DictConfig) -> list[str]:
    """Return the option with which `compare` reads runs that score no test set."""
    return [] if OmegaConf.select(config, "trainer.test", default=True) else ["--split", "valid"]


def _end(sweep: Path, *options: str) -> int:
    """Record the end of a sweep, and print and return the number of failed jobs; print how to compare the others.

    Args:
        options: Options of `compare`.
    """
    write_sweep(sweep, ended=True)
    # `checked`, because no job starts any more
    jobs = [job.checked() for job in read_jobs(sweep)]
    failed = sum(job.state == "failed" for job in jobs)
    parts = [f"{failed} of {len(jobs)} jobs failed"] if failed else []
    if failed < len(jobs):
        parts.append(f"compare the {'others' if failed else 'runs'} with: {compare_command(sweep, *options)}")
    if parts:
        print("; ".join(parts), flush=True)
    return failed


def _claim_folder(config: DictConfig) -> Path:
    """Create a new folder for the sweep and return it; a folder from the command line is used as it is.

    Sweeps that start in the same second would otherwise overwrite each other's records.
    """
    default = Path(config.hydra.sweep.dir)
    if any(override.lstrip("+").startswith("hydra.sweep.dir=") for override in config.hydra.overrides.hydra):
        return default
    for number in itertools.count(1):
        sweep = default if number == 1 else default.with_name(f"{default.name}_{number}")
        with contextlib.suppress(FileExistsError):
            sweep.mkdir(parents=True)
            break
    if sweep != default:
        quoted = QuotedString(str(sweep), Quote.single).with_quotes()
        with open_dict(config), read_write(config):
            config.hydra.sweep.dir = str(sweep)
            # Hydra composes the configuration of each job with these overrides
            config.hydra.overrides.hydra.append(f"hydra.sweep.dir={quoted}")
    return sweep


def _clear_frames(error: BaseException | None) -> None:
    """Clear the local variables in the tracebacks of an error and its causes.

    Hydra keeps the error of a failed job, and so the job's tensors, until the sweep ends.
    """
    seen: set[int] = set()
    # An error may be its own cause
    while error and id(error) not in seen:
        seen.add(id(error))
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def _first_task() -> bool:
    """Return True in the first process of a job; submitit and SLURM start one for each device."""
    return os.environ.get("SLURM_PROCID", "0") == "0" and os.environ.get("SUBMITIT_LOCAL_GLOBALID", "0") == "0"


def _log_file() -> str:
    """Return the file that standard output is redirected to, or ""."""
    with contextlib.suppress(OSError, ValueError):
        # Linux only; terminals, pipes and captured streams are not files, or have no descriptor
        path = Path(f"/proc/self/fd/{sys.stdout.fileno()}").resolve()
        return str(path) if path.is_file() else ""
    return ""
