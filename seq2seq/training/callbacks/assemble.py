"""Make the callbacks of a run, in the order in which Lightning calls them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
from rich.console import Console

from seq2seq import distributed
from seq2seq.config.trainer import TrainerSettings
from seq2seq.experiments.folder import RunFolder
from seq2seq.training.callbacks.control import Control
from seq2seq.training.callbacks.ema import WeightAverage
from seq2seq.training.callbacks.keep_checkpoints import KeepBest, KeepLast, KeepResults
from seq2seq.training.callbacks.median_stopping import MedianStop
from seq2seq.training.callbacks.profiler import Profile
from seq2seq.training.callbacks.progress import ProgressLog
from seq2seq.training.run_state import RunState
from seq2seq.training.task import TranslationTask


def make_callbacks(
    *,
    state: RunState,
    task: TranslationTask,
    settings: TrainerSettings,
    folder: RunFolder,
    config_yaml: str,
    origin: dict[str, Any],
    job: Path | None = None,
) -> list[L.Callback]:
    """Make the callbacks of one run; what they learn about it is in `state`.

    Args:
        origin: Kept in training checkpoints: what a resumed run must agree with.
        job: The folder of this job of a sweep.
    """
    console = Console(quiet=not distributed.is_first_process())
    average = WeightAverage(task.model, settings.ema) if settings.ema else None
    control = Control(settings=settings, folder=folder, origin=origin, average=average)
    progress = ProgressLog(control=control, settings=settings, console=console)
    state.control = control
    state.progress = progress
    callbacks: list[L.Callback] = [KeepResults(folder=folder, config_yaml=config_yaml), progress]
    if settings.profile:
        callbacks.append(Profile(folder.path))
    if settings.keep_best:
        callbacks.append(KeepBest(folder=folder, count=settings.keep_best))
    callbacks.append(control)
    if settings.keep_last:
        callbacks.append(KeepLast(folder=folder, count=settings.keep_last))
    if job and settings.median_stop:
        # A budget of time alone makes equal times comparable, any other equal updates.
        axis = "step" if settings.max_steps or settings.max_epochs else "seconds"
        state.median = MedianStop(control=control, job=job, peers=settings.median_stop, axis=axis)
        callbacks.append(state.median)
    return callbacks
