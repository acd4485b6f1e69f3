"""Decide when a run is validated."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import lightning as L

    from seq2seq.settings.trainer import TrainerSettings
    from seq2seq.training.bounds.budget import Budget

log = logging.getLogger(__name__)

# No validation is made shortly before the last one, at the end of the run: within this share of `val_steps` before it,
# and within this share of a run that the clock ends.
_NEAR = 0.1
_LEFT = 0.05


class ValidationSchedule:
    """Schedule of validations: every `val_steps` updates or `val_time` seconds, else every epoch.

    If updates or epochs end the run and define the interval, elapsed time has no influence, so that the run is
    reproducible. If time alone ends the run, or defines the interval, a validation that is due waits until all of them
    take at most `val_share` of the run's time, without its start. It is skipped if less than a twentieth of the run
    would be left after it.
    """

    def __init__(self, settings: TrainerSettings, budget: Budget) -> None:
        self.settings = settings
        self.budget = budget
        # Validate at the end of each epoch.
        self._by_epochs = settings.val_steps is None and settings.val_time is None
        self._validated = 0.0  # second of the run's clock at which the last one ended
        self._waiting = False  # one is due, and waits for its time
        self._told = False

    def end(self) -> None:
        """Record the duration of a validation."""
        # The interval counts from here, so that slow validations do not follow one another.
        self._validated = self.budget.clock.seconds
        self._waiting = False
        self.budget.end_validation()

    def is_due(self, trainer: L.Trainer) -> bool:
        """Return True if the run is to be validated after this update."""
        settings = self.settings
        steps = settings.val_steps
        if self._by_epochs:
            steps = trainer.num_training_batches / trainer.accumulate_grad_batches
        interval = (steps or math.inf) * (self.budget.update_seconds or math.inf)
        self.budget.validation_interval = min(interval, settings.val_time or math.inf)
        if self._is_counted(trainer):
            # The clock alone ends the run: the validation must be worth its time.
            self._waiting = bool(settings.max_time) and not (settings.max_steps or settings.max_epochs)
            if not self._waiting:
                return True
        seconds = settings.val_time
        asked = seconds is not None and self.budget.clock.seconds - self._validated >= seconds
        return (self._waiting or asked) and self._is_worth_its_time(trainer)

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed run continues from."""
        return {"validated": self._validated, "waiting": self._waiting}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from an earlier part of the run."""
        self._validated = state["validated"]
        self._waiting = state["waiting"]

    def _is_counted(self, trainer: L.Trainer) -> bool:
        """Return True if the number of updates or the end of an epoch asks for a validation."""
        steps = self.settings.val_steps
        if steps is None:
            return self._by_epochs and trainer.is_last_batch
        return trainer.global_step % steps == 0 and self.budget.updates_left(trainer) >= _NEAR * steps

    def _is_worth_its_time(self, trainer: L.Trainer) -> bool:
        took = self.budget.validation_seconds
        if not took:
            return True
        passed = self.budget.clock.seconds
        used = self.budget.used_share(trainer)
        total = passed / used if used else math.inf
        if total - passed < took + _LEFT * total:
            return False
        spent = self.budget.validations_spent + took
        if spent <= self.settings.val_share * (self.budget.trained_seconds + spent):
            return True
        if not self._told:
            log.info(
                "a validation takes %.0f s: the next one waits until they take at most %g%% of the time "
                "(trainer.val_share)",
                took, 100 * self.settings.val_share,
            )  # fmt: skip
        self._told = True
        return False
