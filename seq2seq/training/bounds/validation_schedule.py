"""Decide when a run is validated, and when a validation would cost more than it tells."""

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

# The last validation comes at the end of the run: none is made within this share of `val_steps` before it.
_NEAR = 0.1
# Likewise within this share of a run that the clock ends.
_LEFT = 0.05


class ValidationSchedule:
    """Schedule of validations: every `val_steps` updates or `val_time` seconds, else every epoch.

    If updates or epochs end the run and define the interval, elapsed time has no influence, so that the run is
    reproducible. If time alone ends the run, or defines the interval, a validation that is due is postponed until all
    of them take at most `val_share` of the run's time, its start not counted, and skipped near the end: where a
    twentieth of the run would not be left after it.
    """

    def __init__(self, settings: TrainerSettings, budget: Budget) -> None:
        self.settings = settings
        self.budget = budget
        self._validated = 0.0  # second of the run's clock at which the last one ended
        self._waiting = False  # for its time, since an earlier update
        self._told = False

    def begin(self) -> None:
        """Start to measure a validation."""
        self.budget.begin_validation()

    def end(self) -> None:
        """Record the duration of a validation."""
        # The interval counts from here, so validations slower than it do not follow one another.
        self._validated = self.budget.clock.seconds
        self._waiting = False
        self.budget.end_validation()

    def is_due(self, trainer: L.Trainer) -> bool:
        """Return True if the run is to be validated after this update."""
        seconds = self.settings.val_time
        self.budget.validation_interval = self._interval(trainer)
        if self._is_counted(trainer) and not self._is_near_end(trainer):
            if not self.budget.by_clock_alone:
                return True
            self._waiting = True
        asked = seconds is not None and self.budget.clock.seconds - self._validated >= seconds
        return (self._waiting or asked) and self._is_worth_its_time(trainer)

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed run continues from."""
        return {"validated": self._validated, "waiting": self._waiting}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from an earlier part of the run."""
        self._validated = state["validated"]
        self._waiting = state["waiting"]

    def _interval(self, trainer: L.Trainer) -> float:
        """Return the seconds of training between two validations."""
        steps = self.settings.val_steps
        if steps is None and self.settings.val_time is None:
            steps = trainer.num_training_batches / trainer.accumulate_grad_batches
        counted = (steps or math.inf) * (self.budget.update_seconds or math.inf)
        return min(counted, self.settings.val_time or math.inf)

    def _is_counted(self, trainer: L.Trainer) -> bool:
        steps = self.settings.val_steps
        if steps is None and self.settings.val_time is None:
            # Neither interval: at the end of the epoch.
            return trainer.is_last_batch
        return steps is not None and trainer.global_step % steps == 0

    def _is_near_end(self, trainer: L.Trainer) -> bool:
        steps = self.settings.val_steps
        return steps is not None and self.budget.updates_left(trainer) < _NEAR * steps

    def _is_worth_its_time(self, trainer: L.Trainer) -> bool:
        passed = self.budget.clock.seconds
        took = self.budget.validation_seconds
        used = self.budget.used_share(trainer)
        total = passed / used if used else math.inf
        if took and total - passed < took + _LEFT * total:
            return False
        spent = self.budget.validations_spent + took
        if spent > self.settings.val_share * (self.budget.trained_seconds + spent) and took:
            if not self._told:
                log.info(
                    "a validation takes %.0f s: the next one waits until they take at most %g%% of the time "
                    "(trainer.val_share)",
                    took, 100 * self.settings.val_share,
                )  # fmt: skip
            self._told = True
            return False
        return True
