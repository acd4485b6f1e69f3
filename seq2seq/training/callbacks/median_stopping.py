"""Stop a job of a sweep that is worse than the median of the others at the same point."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import lightning as L

from seq2seq.runs.results import read_curve
from seq2seq.sweeps.job_records import read_jobs
from seq2seq.training.lightning_parts.run_state import RunState

log = logging.getLogger(__name__)


class MedianStop(L.Callback):
    """Callback that stops a job whose best BLEU so far is below the median of the other jobs at this point.

    Only jobs that have reached the point are counted, and no job is stopped before `trainer.median_stop` others have
    reached it. The point is an update, or seconds of training after the start if time alone bounds the run, whichever
    the learning rate follows. A job needs only the sweep's folder, so this works with every launcher and sweeper.

    Reference:
        Golovin et al. 2017, Google Vizier: median stopping, here with maxima instead of running means.
    """

    def __init__(self, state: RunState, job: Path) -> None:
        self.state = state
        self.job = job

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Train no further if an earlier part was stopped."""
        if self.state.stopped:
            trainer.should_stop = True

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Compare the best score so far."""
        if trainer.should_stop:
            return
        settings = self.state.settings
        assert settings.median_stop
        axis, point = "step", float(trainer.global_step)
        if not (settings.max_steps or settings.max_epochs):
            axis, point = "train/seconds_after_start", self.state.budget.trained_seconds
        # The records are read at each validation; a job that still runs counts up to its latest validation.
        # A set, as a search may repeat a point, whose job reports the run of the first.
        others = {job.run for job in read_jobs(self.job.parent) if job.number != int(self.job.name) and job.run}
        curves = [read_curve(run / "metrics.csv", axis) for run in others]
        median = median_at(point, curves, peers=settings.median_stop)
        median = trainer.strategy.broadcast(median)  # clocks and files may differ between processes
        best = self.state.best.bleu
        # Strictly below, so that equal jobs all continue.
        if median is not None and best < median:
            self.state.stopped = f"BLEU {best:.2f} is below the other jobs' median, {median:.2f}, at this point"
            log.info("stopping early: %s", self.state.stopped)
            trainer.should_stop = True

    def state_dict(self) -> dict[str, Any]:
        """Return why the job was stopped."""
        return {"stopped": self.state.stopped}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from an earlier part of the run."""
        self.state.stopped = state_dict["stopped"]


def median_at(point: float, curves: Iterable[Sequence[tuple[float, float]]], *, peers: int) -> float | None:
    """Return the median, over all curves that reach `point`, of the best score up to it; None for fewer than `peers`.

    Args:
        curves: (point, score) of each validation, in order.
    """
    # A curve that begins later has no score up to `point`.
    reached = [curve for curve in curves if curve and curve[0][0] <= point <= curve[-1][0]]
    if len(reached) < peers:
        return None
    return statistics.median(max(score for place, score in curve if place <= point) for curve in reached)
