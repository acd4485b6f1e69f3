"""Schedule validations, record their scores and save the best checkpoint."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any

import lightning as L

from seq2seq.checkpoint import updates
from seq2seq.runs.folder import RunFolder
from seq2seq.training.callbacks.checkpointing import SaveLast
from seq2seq.training.callbacks.window_end import NO_VALIDATION
from seq2seq.training.lightning_parts.run_state import RunState
from seq2seq.training.lightning_parts.task import TranslationTask

log = logging.getLogger(__name__)

# The run validates at its end, so a validation shortly before the end is skipped: one by `val_steps` if fewer than
# _NEAR * `val_steps` updates are left, one that time bounds if less than _LEFT of the run would be left after it.
_NEAR = 0.1
_LEFT = 0.05
# Attributes of `Validation` that a resumed run continues from.
_KEPT = ("validated", "waiting", "validated_step", "pending")


class RecordScores(L.Callback):
    """Callback that compares each validation with the best one before, and saves the best as best.safetensors."""

    def __init__(self, folder: RunFolder, state: RunState) -> None:
        self.path = folder.best
        self.best = state.best

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Forget the best score of an earlier part of the run if best.safetensors does not have its weights."""
        # last.ckpt may have been copied alone, or the run may have been killed after it wrote only one of both files.
        # Rank 0 decides.
        if self.best.step and trainer.strategy.broadcast(updates(self.path)) != self.best.step:
            log.info(
                "%s does not have the weights of update %d, the best so far: the best later validation will be saved",
                self.path,
                self.best.step,
            )
            self.best.forget()

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Record the score, and save the validated weights if it is the best."""
        assert isinstance(pl_module, TranslationTask)
        assert pl_module.evaluation is not None
        evaluation = pl_module.evaluation
        self.best.add(trainer.global_step, evaluation.bleu.value, evaluation.report())
        if self.best.improved:
            trainer.save_checkpoint(self.path, weights_only=True)

    def state_dict(self) -> dict[str, Any]:
        """Return the best score."""
        return {"best": self.best.bleu, "best_step": self.best.step, "best_scores": self.best.report}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue with the best score of an earlier part of the run."""
        self.best.bleu = state_dict["best"]
        self.best.step = state_dict["best_step"]
        self.best.report = state_dict["best_scores"]


class Validation(L.Callback):
    """Callback that validates every `val_steps` updates or `val_time` seconds, else every epoch, and once at the end.

    If updates or epochs end the run and define the interval, elapsed time has no influence, so that the run is
    reproducible. If time alone ends the run, or defines the interval, a validation that is due waits until all
    validations, including this one, take at most `val_share` of the run's time after its start. The validation is
    skipped if less than a twentieth of the run would be left after it.

    A resumed run first repeats a validation that a signal or a kill interrupted.
    """

    def __init__(self, state: RunState, last: SaveLast) -> None:
        self.settings = state.settings
        self.best = state.best
        self.budget = state.budget
        self.last = last
        self.validated_step = -1
        self.pending = False  # a validation is due, or under way, at this update
        self.validated = 0.0  # second of the run's clock at which the last validation ended
        self.waiting = False  # a validation is due, and waits until it is worth its time
        self._told = False

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Repeat an interrupted validation, and do not train at all if the budget is spent."""
        # A resumed run may have ended already, or been stopped during its last validation.
        spent = self.budget.is_spent(trainer)
        unscored = self.validated_step != trainer.global_step or not self.best.step
        if self.pending or (spent and unscored):
            self._validate_first(trainer)
            spent = self.budget.is_spent(trainer)
        # A callback of the user may also have requested a stop.
        trainer.should_stop = trainer.should_stop or spent

    def votes(self, trainer: L.Trainer) -> Sequence[float]:
        """Return 1 if a validation is due."""
        return (float(self.is_due(trainer)),)

    def decide(self, trainer: L.Trainer, agreed: Sequence[float]) -> None:
        """Let Lightning validate right after this hook if a validation is due or the run stops."""
        self.pending = trainer.should_stop or bool(agreed[0])
        # Lightning validates if the number of the batch is a multiple of `val_check_batch`.
        trainer.val_check_batch = 1 if self.pending else NO_VALIDATION

    def on_validation_start(self, *_: Any) -> None:
        """Start to measure how long a validation takes."""
        self.budget.begin_validation()

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Record that this update is validated."""
        # The interval counts from here, so that slow validations do not follow one another.
        self.validated = self.budget.clock.seconds
        self.waiting = False
        self.budget.end_validation()
        self.validated_step = trainer.global_step
        # `SaveLast` is called later, so last.ckpt says that the validation is done.
        self.pending = False

    def is_due(self, trainer: L.Trainer) -> bool:
        """Return True if the run is to be validated after this update."""
        settings = self.settings
        steps, counted = math.inf, False
        if settings.val_steps:
            steps = settings.val_steps
            counted = trainer.global_step % steps == 0 and self.budget.updates_left(trainer) >= _NEAR * steps
        elif not settings.val_time:
            # At the end of each epoch.
            steps = trainer.num_training_batches / trainer.accumulate_grad_batches
            counted = trainer.is_last_batch
        interval = steps * (self.budget.update_seconds or math.inf)
        self.budget.validation_interval = min(interval, settings.val_time or math.inf)
        if counted:
            # If the clock alone ends the run, the validation must be worth its time.
            self.waiting = bool(settings.max_time) and not (settings.max_steps or settings.max_epochs)
            if not self.waiting:
                return True
        seconds = settings.val_time
        asked = seconds is not None and self.budget.clock.seconds - self.validated >= seconds
        return (self.waiting or asked) and self._is_worth_its_time(trainer)

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed run continues from."""
        return {name: getattr(self, name) for name in _KEPT}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from an earlier part of the run."""
        for name in _KEPT:
            setattr(self, name, state_dict[name])

    def _validate_first(self, trainer: L.Trainer) -> None:
        """Validate before the first batch, as Lightning does between two batches."""
        loop = trainer.fit_loop.epoch_loop.val_loop
        trainer.validating = True
        loop.restarting = False  # from the first batch, even if an earlier part stopped in its middle
        self.last.before_training = True
        loop.run()
        self.last.before_training = False
        # Lightning finds that a restored epoch is at its end by asking for one more batch. It asks only if `_has_run`
        # is False.
        loop._has_run = False
        trainer.training = True

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
