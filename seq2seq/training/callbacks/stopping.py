"""Stop a run when its budget is spent or its score has stopped improving."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import lightning as L

from seq2seq.training.bounds.budget import CALLBACKS
from seq2seq.training.lightning_parts.run_state import RunState

log = logging.getLogger(__name__)


class Stopping(L.Callback):
    """Callback that runs the clock of the budget, and stops training when one of its bounds is reached."""

    def __init__(self, state: RunState) -> None:
        self.budget = state.budget
        self.best = state.best

    def on_train_start(self, *_: Any) -> None:
        """Start the clock."""
        self.budget.begin()
        self.budget.clock.start()

    def votes(self, trainer: L.Trainer) -> Sequence[float]:
        """Return the bound that is reached and the used share of the time for training."""
        return self.budget.reached(trainer), self.budget.trained_share()

    def decide(self, trainer: L.Trainer, agreed: Sequence[float]) -> None:
        """Stop, after a last validation, if a bound is reached on any rank."""
        # The learning rate of the next updates follows this share, the greatest of all ranks.
        reached, self.budget.agreed_share = agreed
        self.budget.end_by(int(reached))
        # `should_stop` is not cleared here, because another callback may have set it.
        trainer.should_stop = trainer.should_stop or bool(reached)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Count validations without a better score, and stop when there are too many."""
        # `RecordScores`, which is called before, has compared the score.
        self.budget.bad_validations = 0 if self.best.improved else self.budget.bad_validations + 1
        if self.budget.out_of_patience:
            log.info("no better BLEU in %d validations: stopping early", self.budget.bad_validations)
        # The validation may have used the rest of the time. All ranks must ask, even if a callback requested a stop.
        spent = self.budget.is_spent(trainer)
        trainer.should_stop = trainer.should_stop or spent
        # If no bound ended the run, a user's callback, which was called before, has stopped it.
        if trainer.should_stop and not self.budget.ended_by:
            self.budget.ended_by = CALLBACKS

    def on_train_end(self, *_: Any) -> None:
        """Stop the clock: the final test is not part of the budget."""
        self.budget.clock.stop()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the budget."""
        return self.budget.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue with the budget of an earlier part of the run."""
        self.budget.load_state_dict(state_dict)
