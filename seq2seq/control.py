"""What decides when to validate, save and stop: budget, early stopping, best and last checkpoint, signals."""

from __future__ import annotations

import logging
import signal
import threading
import time
from pathlib import Path
from typing import Any

import lightning as L
from lightning.fabric.plugins import CheckpointIO

from seq2seq import checkpoint
from seq2seq.run import RunFolder
from seq2seq.settings import TrainerSettings
from seq2seq.task import TranslationTask

log = logging.getLogger(__name__)

_save = checkpoint.save

# As a number of batches between validations: only when `Control` says so.
NEVER = 2**62


class TrainingInterrupt(Exception):  # noqa: N818 - like KeyboardInterrupt
    """A signal ended training; last.ckpt holds the state at `step`."""

    def __init__(self, signum: int, step: int) -> None:
        super().__init__(f"{signal.Signals(signum).name} at step {step}")
        self.signum, self.step = signum, step


class AtomicCheckpointIO(CheckpointIO):
    """Lightning's checkpoints through `checkpoint.save` and `checkpoint.read`: atomic, plain, checked."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write `checkpoint` to `path`."""
        _save(path, checkpoint)

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """Read `path` to the CPU."""
        return checkpoint.read(path)

    def remove_checkpoint(self, path: Any) -> None:
        """Delete `path`."""
        Path(path).unlink(missing_ok=True)


class Control(L.Callback):
    """Validates every `val_steps` updates or `val_time` seconds, always between two windows and once at the end.

    Time counts training and validation, over all parts of a run that was resumed.
    """

    def __init__(self, *, settings: TrainerSettings, folder: RunFolder) -> None:
        self.settings, self.folder = settings, folder
        self.best, self.best_step, self.bad_validations = -1.0, 0, 0
        self.best_scores: dict[str, float] = {}
        self._earlier, self._started = 0.0, time.monotonic()
        self._validated, self._saved, self._validation_seconds = 0.0, 0.0, 0.0
        self._validation_started = 0.0
        self._signum: int | None = None
        self._handlers: dict[int, Any] = {}

    # Budget

    @property
    def elapsed(self) -> float:
        """Seconds of training and validation so far."""
        return self._earlier + time.monotonic() - self._started

    def share_done(self, trainer: L.Trainer) -> float:
        """The part of the budget that is used, 0 to 1: that of the bound which will be met first."""
        s = self.settings
        shares = [0.0]
        if s.max_steps:
            shares.append(trainer.global_step / s.max_steps)
        if s.max_time:
            # Room for the last validation; one early in training takes longer, for its translations do not end.
            shares.append((self.elapsed + min(self._validation_seconds, s.max_time / 20)) / s.max_time)
        if s.max_epochs:
            shares.append(epochs_done(trainer) / s.max_epochs)
        return min(1.0, max(shares))

    # Lightning's hooks

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start the clock, take the signals, and stop at once if the budget is already spent."""
        self._started = time.monotonic()
        self._validated = self._saved = self.elapsed
        self._take_signals()
        trainer.should_stop = self.share_done(trainer) >= 1

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """At the end of a window: obey signals, decide about validation and the end, save now and then."""
        trainer.val_check_batch = NEVER
        if not window_ends(trainer, batch_idx):
            return
        self._obey_signal(trainer)
        trainer.should_stop = trainer.should_stop or self.share_done(trainer) >= 1
        # Lightning reads this right after the hook; it validates in any case when it is about to stop.
        if self._validation_due(trainer):
            trainer.val_check_batch = 1
        every = self.settings.save_time
        if every and self.elapsed - self._saved >= every:
            self._save_last(trainer)

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Note the time."""
        self._validation_started = self.elapsed

    def on_validation_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:  # fmt: skip
        """Do not make a signal wait for the whole validation."""
        self._obey_signal(trainer)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Keep the best, save the last, and stop when nothing got better for `patience` validations."""
        if trainer.state.fn != "fit":
            return
        assert isinstance(pl_module, TranslationTask)
        assert pl_module.evaluation is not None
        self._validated = self.elapsed
        self._validation_seconds = self._validated - self._validation_started
        score, nll = pl_module.evaluation.bleu.value, pl_module.evaluation.nll
        # Early in training BLEU is 0 for long; then the likelier model is the better one.
        better = (score, -nll) > (self.best, -self.best_scores.get("nll", float("inf")))
        if better:
            self.best, self.best_step, self.bad_validations = score, trainer.global_step, 0
            self.best_scores = pl_module.evaluation.numbers()
        else:
            self.bad_validations += 1
        if self.settings.patience and self.bad_validations >= self.settings.patience:
            log.info("no better BLEU in %d validations: stopping early", self.bad_validations)
            trainer.should_stop = True
        if better:
            trainer.save_checkpoint(self.folder.best, weights_only=True)
        self._save_last(trainer)

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Give the signals back."""
        self._return_signals()

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Stop the clock and give the signals back."""
        self._earlier, self._started = self.elapsed, time.monotonic()
        self._return_signals()

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run takes up."""
        return {
            "elapsed": self.elapsed,
            "best": self.best,
            "best_step": self.best_step,
            "best_scores": self.best_scores,
            "bad_validations": self.bad_validations,
            "validation_seconds": self._validation_seconds,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up an earlier part of the run."""
        self._earlier = state_dict["elapsed"]
        self.best, self.best_step = state_dict["best"], state_dict["best_step"]
        self.best_scores, self.bad_validations = state_dict["best_scores"], state_dict["bad_validations"]
        self._validation_seconds = state_dict["validation_seconds"]

    # Parts

    def _validation_due(self, trainer: L.Trainer) -> bool:
        s = self.settings
        by_steps = s.val_steps is not None and trainer.global_step % s.val_steps == 0
        by_time = s.val_time is not None and self.elapsed - self._validated >= s.val_time
        by_epoch = s.val_steps is None and s.val_time is None and trainer.is_last_batch
        return by_steps or by_time or by_epoch

    def _save_last(self, trainer: L.Trainer) -> None:
        self._saved = self.elapsed
        trainer.save_checkpoint(self.folder.last)

    def _take_signals(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for signum in (signal.SIGINT, signal.SIGTERM):
            self._handlers[signum] = signal.signal(signum, self._note_signal)

    def _note_signal(self, signum: int, frame: Any) -> None:
        self._signum = signum
        # A second Ctrl-C does not wait for the end of the window.
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def _return_signals(self) -> None:
        for signum, handler in self._handlers.items():
            signal.signal(signum, handler)
        self._handlers = {}

    def _obey_signal(self, trainer: L.Trainer) -> None:
        if self._signum is not None:
            signum, self._signum = self._signum, None
            self._save_last(trainer)
            raise TrainingInterrupt(signum, trainer.global_step)


def window_ends(trainer: L.Trainer, batch_idx: int) -> bool:
    """Whether the micro-batch `batch_idx` of the epoch was the last before an update."""
    return (batch_idx + 1) % trainer.accumulate_grad_batches == 0 or trainer.is_last_batch


def epochs_done(trainer: L.Trainer) -> float:
    """Epochs passed, with the part of the current one."""
    batches = trainer.num_training_batches
    return trainer.current_epoch + ((trainer.fit_loop.epoch_loop.batch_idx + 1) / batches if batches else 0.0)
