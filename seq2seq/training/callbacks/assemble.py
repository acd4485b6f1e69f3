"""Make the callbacks of a run, in the order in which Lightning calls them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
from rich.console import Console

from seq2seq import distributed
from seq2seq.experiments.folder import RunFolder
from seq2seq.settings.trainer import TrainerSettings
from seq2seq.training.callbacks.batch_growth import BatchGrowth
from seq2seq.training.callbacks.checkpointing import (
    KeepBest,
    KeepLast,
    LastCheckpoint,
    SaveBest,
    SaveLast,
    SetResultsAside,
)
from seq2seq.training.callbacks.ema import AverageWeights, WeightAverage
from seq2seq.training.callbacks.median_stopping import MedianStop
from seq2seq.training.callbacks.profiler import Profile
from seq2seq.training.callbacks.progress import ProgressLog
from seq2seq.training.callbacks.samples import LogSamples
from seq2seq.training.callbacks.signals import Signals
from seq2seq.training.callbacks.stopping import Stopping
from seq2seq.training.callbacks.validation import RecordScores, Validation
from seq2seq.training.callbacks.warm_up import WarmUp
from seq2seq.training.callbacks.window_end import WindowEnd
from seq2seq.training.run_state import RunState
from seq2seq.training.task import TranslationTask

# Lightning calls callbacks in the order of the list, in every hook. The user's own come before all of these: their
# state after a hook is in the checkpoints of that hook, and an average is still in place. Lightning itself moves a
# Checkpoint, such as ModelCheckpoint, to the end. For each of these, what must have happened before it:
_ORDER = (
    SetResultsAside,
    WarmUp,  # no clock runs yet
    ProgressLog,  # its row about this update is in the checkpoints that those below write
    LogSamples,
    Profile,
    RecordScores,
    KeepBest,  # the average is still in place: what is saved is what was validated
    SaveBest,  # so too; and the score is compared
    AverageWeights,  # the best are saved, the last is not
    Stopping,  # the score is compared, and whether the run has ended stands in last.ckpt
    Signals,  # the clock runs, or has stopped
    Validation,  # begins with the one to make up for: clock, progress and signals are ready
    MedianStop,  # the score is compared
    KeepLast,  # before last.ckpt says that this validation is done
    SaveLast,  # all states are those after the validation
    WindowEnd,  # the average has this update's weights, progress its row
)


# Names under which callbacks of a run save their states.
STATE_KEYS = frozenset(callback.__qualname__ for callback in _ORDER)


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
    """Make the callbacks of a run; they share their results through `state`.

    Args:
        origin: Kept in last.ckpt: what a resumed run must agree with.
        job: The folder of this job of a sweep.
    """
    # Shared by several callbacks: the average, last.ckpt's writer and the agreement of the ranks.
    average = WeightAverage(task.model, settings.ema) if settings.ema else None
    last = LastCheckpoint(folder, state, average)
    agreement = state.budget.agreement
    stopping = Stopping(state)
    validation = Validation(state, settings, last)
    signals = Signals(state, last, agreement)
    save_last = SaveLast(last, state, origin)
    growth = [BatchGrowth(settings, state.budget)] if settings.accumulate_start else []
    # Those of every run.
    callbacks: list[L.Callback] = [
        SetResultsAside(folder, config_yaml),
        WarmUp(state.budget),
        ProgressLog(state=state, settings=settings, console=Console(quiet=not distributed.is_first_process())),
        LogSamples(settings.samples),
        RecordScores(folder, state),
        SaveBest(folder, state),
        stopping,
        signals,
        validation,
        save_last,
        # A signal is obeyed after the decision to validate, so that a resumed run makes up for the validation.
        # The batch grows before anything is saved, so that a resumed run goes on with the same.
        WindowEnd([*growth, stopping, validation, signals, save_last], agreement),
    ]
    # Those that settings ask for.
    if average:
        callbacks.append(AverageWeights(average))
    if settings.profile:
        callbacks.append(Profile(folder.path, updates=settings.max_steps))
    if settings.keep_best:
        callbacks.append(KeepBest(folder, settings.keep_best))
    if settings.keep_last:
        callbacks.append(KeepLast(folder, settings.keep_last))
    if job and settings.median_stop:
        # A budget of time alone makes equal times comparable, any other equal updates.
        axis = "step" if settings.max_steps or settings.max_epochs else "train/seconds_after_start"
        callbacks.append(MedianStop(state=state, job=job, peers=settings.median_stop, axis=axis))
    # The order above is made here, whatever the order of the lines that added them.
    return sorted(callbacks, key=lambda callback: _ORDER.index(type(callback)))
