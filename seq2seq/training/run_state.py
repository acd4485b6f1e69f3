"""The state of a run that its parts share, and what results.json reports of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import lightning as L

    from seq2seq.config.trainer import TrainerSettings
    from seq2seq.training.callbacks.control import Control
    from seq2seq.training.callbacks.median_stopping import MedianStop
    from seq2seq.training.callbacks.progress import ProgressLog


class RunState:
    """Clocks, budget and scores of a run."""

    control: Control
    progress: ProgressLog
    median: MedianStop | None = None

    def __init__(self, settings: TrainerSettings) -> None:
        self.settings = settings

    @property
    def best_bleu(self) -> float:
        """The best validation BLEU so far."""
        return self.control.best

    @property
    def ended_by(self) -> str | None:
        """The setting that ended the run."""
        return "median_stop" if self.median and self.median.stopped else self.control.ended_by

    def schedule_share(self, trainer: L.Trainer) -> float:
        """The used share of the budget that an annealed learning rate follows, 0 to 1."""
        return self.control.schedule_share(trainer)

    def report(self) -> dict[str, Any]:
        """Entries of results.json."""
        control, progress = self.control, self.progress
        limit = self.settings.max_time
        stopped = self.median.stopped if self.median else None
        return {
            "valid": control.best_scores,
            "best_step": control.best_step,
            "ended_by": self.ended_by,
            "epochs": round(progress.epochs, 3),
            "target_tokens_per_second": round(progress.tokens_per_second, 1),
            "training_seconds": round(progress.watch.seconds, 2),
            "seconds": round(control.elapsed, 2),
            "max_time": limit,
            "seconds_over_budget": round(max(0.0, control.elapsed - limit), 2) if limit else 0.0,
            "throughput": progress.meter.report(progress.watch.seconds) if progress.meter else None,
            **({"stopped": stopped} if stopped else {}),
        }
