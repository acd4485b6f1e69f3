"""Give updates more micro-batches once a share of the budget is used: `trainer.accumulate_start`."""

from __future__ import annotations

from collections.abc import Sequence

import lightning as L

from seq2seq.settings.trainer import TrainerSettings
from seq2seq.training.bounds.budget import Budget


class BatchGrowth:
    """Decider that gives updates `trainer.accumulate` micro-batches once a share of the budget is used.

    The share is `trainer.accumulate_share`. Small batches learn more from the first tokens. Larger batches lower the
    noise of the gradient, as a lower learning rate does.

    Reference:
        Smith et al. 2018, Don't Decay the Learning Rate, Increase the Batch Size.
    """

    def __init__(self, settings: TrainerSettings, budget: Budget) -> None:
        self.settings = settings
        self.budget = budget

    def votes(self, trainer: L.Trainer) -> Sequence[float]:
        """Return nothing: the share of the schedule is the same on all ranks."""
        return ()

    def decide(self, trainer: L.Trainer, agreed: Sequence[float]) -> None:
        """Grow the batch where a window of the larger size may begin: at a multiple of its size in the epoch."""
        full = self.settings.accumulate
        begins = trainer.is_last_batch or (trainer.fit_loop.epoch_loop.batch_idx + 1) % full == 0
        if begins and self.budget.schedule_share(trainer) >= self.settings.accumulate_share:
            trainer.accumulate_grad_batches = full
