"""The state that the callbacks of a run share, and the entries of results.json that are made from it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from seq2seq.training.bounds.budget import Budget

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from seq2seq.settings.trainer import TrainerSettings
    from seq2seq.training.machine.throughput import Meter


class BestScore:
    """Best validation so far: by BLEU, then by the likelihood of the references, because early BLEU scores are 0."""

    def __init__(self) -> None:
        self.forget()
        self.improved = False  # by the last validation

    def add(self, step: int, bleu: float, report: Mapping[str, Any]) -> None:
        """Compare a validation with the best one; `report` has its `nll`."""
        # Before the first validation the likelihood is the worst possible.
        self.improved = (bleu, -report["nll"]) > (self.bleu, -self.report.get("nll", math.inf))
        if self.improved:
            self.bleu = bleu
            self.step = step
            self.report = dict(report)

    def forget(self) -> None:
        """Forget earlier validations, so that the next one is the best."""
        self.bleu = -1.0
        self.step = 0
        self.report: dict[str, Any] = {}


class RunState:
    """State that the callbacks of a run share; each value has one writer.

    Args:
        continued: Changes of settings during the run, as in `Resumed`.
    """

    def __init__(
        self,
        settings: TrainerSettings,
        callbacks: Mapping[str, Any] | None = None,
        continued: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        self.settings = settings
        self.continued = [dict(each) for each in continued or ()]
        self.budget = Budget(settings, callbacks)
        self.best = BestScore()
        # `ProgressLog` writes these four for the report.
        self.epochs = 0.0
        self.target_tokens = 0.0  # of all updates
        self.start_tokens = 0.0  # of the first update of each part of the run
        self.meter: Meter | None = None
        self.stopped: str | None = None  # the reason why median stopping ended the run
        self.signum = 0  # the signal that arrived when the test was nearly done; `Signals` sets it

    @property
    def ended_by(self) -> str | None:
        """The setting that ended the run."""
        return "median_stop" if self.stopped else self.budget.ended_by

    @property
    def cpu_seconds(self) -> float | None:
        """CPU seconds of training; None if several processes train or have trained."""
        seconds = self.budget.training.cpu_seconds
        return None if math.isnan(seconds) or self.settings.processes > 1 else round(seconds, 2)

    def report(self) -> dict[str, Any]:
        """Return the entries of results.json about scores, time and throughput."""
        seconds = self.budget.training.seconds
        elapsed = self.budget.clock.seconds
        limit = self.settings.max_time
        # The first update compiles and loads libraries; it is left out of the rate if there are others
        start = self.budget.start_seconds if self.target_tokens > self.start_tokens else 0.0
        tokens = self.target_tokens - (self.start_tokens if start else 0.0)
        rate = tokens / max(seconds - start, 1e-9)
        return {
            "valid": self.best.report,
            "best_step": self.best.step,
            "ended_by": self.ended_by,
            "epochs": round(self.epochs, 3),
            "target_tokens_per_second": round(rate, 1),
            "start_seconds": round(self.budget.start_seconds, 2),
            "training_seconds": round(seconds, 2),
            "training_cpu_seconds": self.cpu_seconds,
            "seconds": round(elapsed, 2),
            "max_time": limit,
            "seconds_over_budget": round(max(0.0, elapsed - limit), 2) if limit else 0.0,
            "throughput": self.meter.report(self.target_tokens / rate if rate else seconds) if self.meter else None,
            **({"stopped": self.stopped} if self.stopped else {}),
            **({"continued": self.continued} if self.continued else {}),
        }
