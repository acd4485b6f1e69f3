"""Decide at the end of each gradient accumulation window what happens before the next one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import lightning as L

from seq2seq.system.ranks import Agreement
from seq2seq.training.bounds.budget import between_epochs

# Number of batches between validations, too large for Lightning to start one by itself.
NO_VALIDATION = 2**62


class Decider(Protocol):
    """Callback that acts between two accumulation windows on numbers that are the same on all ranks."""

    def votes(self, trainer: L.Trainer) -> Sequence[float]:
        """Return this rank's numbers, equally many at every call; `decide` gets the maximum of each over all ranks."""
        ...

    def decide(self, trainer: L.Trainer, agreed: Sequence[float]) -> None:
        """Act on the numbers that all ranks agreed on."""
        ...


class WindowEnd(L.Callback):
    """Callback that calls its `deciders` in order after each accumulation window, with one all-reduce for all of them.

    Only between two windows can a run be resumed exactly, so it is validated, saved and stopped only there.
    """

    def __init__(self, deciders: Sequence[Decider], agreement: Agreement) -> None:
        self.deciders = deciders
        self.agreement = agreement
        self._stop = False  # a callback of the user has requested it within a window

    def on_train_batch_start(self, trainer: L.Trainer, *_: Any) -> None:
        """Count the start of an epoch, which Lightning omits if the run was resumed at the end of the previous epoch.

        Otherwise the next checkpoint would seem to lie between two epochs, and a run resumed from it would begin
        another epoch.
        """
        if between_epochs(trainer):
            progress = trainer.fit_loop.epoch_progress
            progress.increment_ready()
            progress.increment_started()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Decide, if the window ends with this micro-batch."""
        # Lightning reads this number right after the hook; `Validation.decide` may change it below.
        trainer.val_check_batch = NO_VALIDATION
        # A stop must wait for the end of the window.
        self._stop |= trainer.should_stop
        ends = window_ends(trainer, batch_idx)
        trainer.should_stop = self._stop and ends
        if not ends:
            return
        # All votes travel in one message, and return to their owners.
        votes = [decider.votes(trainer) for decider in self.deciders]
        agreed = self.agreement.maxima([number for each in votes for number in each])
        for decider, own in zip(self.deciders, votes, strict=True):
            decider.decide(trainer, agreed[: len(own)])
            agreed = agreed[len(own) :]


def window_ends(trainer: L.Trainer, batch_idx: int) -> bool:
    """Return True if the micro-batch `batch_idx` of the epoch is the last one before an update."""
    return (batch_idx + 1) % trainer.accumulate_grad_batches == 0 or trainer.is_last_batch
