"""What decides when to validate, save and stop: budget, early stopping, best and last checkpoint, signals."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import lightning as L
from lightning.fabric.plugins import CheckpointIO
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment

from seq2seq import checkpoint
from seq2seq.config.trainer import TrainerSettings
from seq2seq.distributed import Agreement
from seq2seq.experiments.folder import ORIGIN, RunFolder
from seq2seq.training.callbacks.ema import WeightAverage
from seq2seq.training.task import TranslationTask

log = logging.getLogger(__name__)

_save = checkpoint.save

# As a number of batches between validations: only when `Control` says so.
NEVER = 2**62
# What may end a run; where several are met, the last one is named.
BOUNDS = ("max_time", "patience", "max_epochs", "max_steps")
# Ctrl-C and kill; and what clusters announce the end of a job's time, or its preemption, with.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


class TrainingInterrupt(Exception):  # noqa: N818 - like KeyboardInterrupt
    """A signal ended the run `where` it was."""

    def __init__(self, signum: int, where: str) -> None:
        super().__init__(f"{signal.Signals(signum).name} {where}")
        self.signum = signum


def _interrupt(signum: int, frame: Any) -> NoReturn:
    raise TrainingInterrupt(signum, "at once")


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """In this block SIGNALS raise TrainingInterrupt: Lightning exits with 1 on a KeyboardInterrupt."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    earlier = {signum: signal.signal(signum, _interrupt) for signum in SIGNALS}
    try:
        yield
    finally:
        for signum, handler in earlier.items():
            signal.signal(signum, handler)


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


def plugins() -> list[Any]:
    """What Lightning is given to write and read checkpoints with and, under SLURM, to find its peers with.

    Not its own handling of requeues: a run has one owner, `Control` (Lightning's issue 14610).
    """
    return [AtomicCheckpointIO(), *([SLURMEnvironment(auto_requeue=False)] if SLURMEnvironment.detect() else [])]


class Stopwatch:
    """Seconds of training alone: validation and saving are paused out, until the next micro-batch begins."""

    def __init__(self) -> None:
        self._total, self._mark = 0.0, time.monotonic()
        self._running = False

    @property
    def seconds(self) -> float:
        """Seconds counted so far."""
        return self._total + (time.monotonic() - self._mark if self._running else 0.0)

    def run(self, running: bool) -> None:
        """Start or stop."""
        self._total, self._mark, self._running = self.seconds, time.monotonic(), running

    def load(self, seconds: float) -> None:
        """Take up the seconds of an earlier part."""
        self._total = seconds


class Control(L.Callback):
    """Validates every `val_steps` updates or `val_time` seconds, always between two windows and once at the end.

    Time counts training and validation, over all parts of a run that was resumed. `origin` is kept in training
    checkpoints: what a resumed run must agree with. With an `average` of the weights, that is what is validated and
    what best.ckpt holds.
    """

    def __init__(
        self,
        *,
        settings: TrainerSettings,
        folder: RunFolder,
        origin: dict[str, Any],
        average: WeightAverage | None = None,
    ) -> None:
        self.settings, self.folder, self.origin = settings, folder, origin
        self.average, self._averaged = average, contextlib.ExitStack()
        self.best, self.best_step, self.bad_validations = -1.0, 0, 0
        self.best_scores: dict[str, Any] = {}
        self.validated_step, self._pending = -1, False  # pending: a validation is due, or under way, at this step
        self.ended_by: str | None = None  # one of BOUNDS
        self.watch = Stopwatch()
        self._starting = False
        self._earlier, self._started = 0.0, time.monotonic()
        self._validated, self._saved, self._validation_seconds = 0.0, 0.0, 0.0
        self._validation_started = 0.0
        self._signum = 0
        self._handlers: dict[int, Any] = {}
        self._agreement, self._agreed_share = Agreement(1), 0.0

    # Budget

    @property
    def elapsed(self) -> float:
        """Seconds of training and validation so far."""
        return self._earlier + time.monotonic() - self._started

    def share_done(self, trainer: L.Trainer) -> float:
        """The part of the budget that is used, 0 to 1: that of the bound which will be met first."""
        return min(1.0, max(self._counted_share(trainer), self._time_share()))

    def schedule_share(self, trainer: L.Trainer) -> float:
        """What an annealed rate follows: the share of updates or epochs if they bound the run, else that of time.

        So a run that is bounded by a count repeats bit for bit, whatever the clock says before it ends the run.
        """
        if self.settings.max_steps or self.settings.max_epochs:
            return min(1.0, self._counted_share(trainer))
        # Clocks differ: with several processes, what they agreed on at the last update.
        return self._agreed_share if trainer.world_size > 1 else min(1.0, self._time_share())

    def _counted_share(self, trainer: L.Trainer) -> float:
        steps, epochs = self.settings.max_steps, self.settings.max_epochs
        share = trainer.global_step / steps if steps else 0.0
        return max(share, epochs_done(trainer) / epochs if epochs else 0.0)

    def _time_share(self) -> float:
        limit = self.settings.max_time
        # Room for the last validation; one early in training takes longer, for its translations do not end.
        return (self.elapsed + min(self._validation_seconds, limit / 20)) / limit if limit else 0.0

    @property
    def _out_of_patience(self) -> bool:
        return bool(self.settings.patience) and self.bad_validations >= (self.settings.patience or 0)

    def _met(self, trainer: L.Trainer) -> int:
        """Which of BOUNDS is met, counted from 1; 0 for none."""
        steps, epochs = self.settings.max_steps, self.settings.max_epochs
        met = {
            "max_time": self._time_share() >= 1,
            "patience": self._out_of_patience,
            "max_epochs": bool(epochs) and epochs_done(trainer) >= (epochs or 0),
            "max_steps": bool(steps) and trainer.global_step >= (steps or 0),
        }
        return max((number for number, bound in enumerate(BOUNDS, 1) if met[bound]), default=0)

    def _end_at(self, number: int) -> None:
        """Note the bound that `_met` numbered, unless the run has ended before."""
        if number and not self.ended_by:
            self.ended_by = BOUNDS[number - 1]

    def _spent(self, trainer: L.Trainer) -> bool:
        self._end_at(int(self._agreement.of([self._met(trainer)])[0]))
        return self.ended_by is not None

    # Lightning's hooks

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start the clock, take the signals, make up for an unfinished validation, and stop if the budget is spent."""
        self._started = time.monotonic()
        self._saved = self.elapsed
        self._agreement = Agreement(trainer.world_size)
        self._take_signals()
        spent = self._spent(trainer)
        if self._pending or (spent and self.validated_step != trainer.global_step):
            self._validate_first(trainer)
            spent = self._spent(trainer)
        trainer.should_stop = spent

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """At the end of a window: obey signals, decide about validation and the end, save now and then."""
        trainer.val_check_batch = NEVER
        if not window_ends(trainer, batch_idx):
            return
        if self.average:
            self.average.update()
        every, share = self.settings.save_time, self.share_done(trainer)
        save = bool(every) and self.elapsed - self._saved >= (every or 0)
        wishes = (self._met(trainer), self._validation_due(trainer), save, self._signum, share)
        met, validate, save, signum, self._agreed_share = self._agreement.of(wishes)
        self._end_at(int(met))
        trainer.should_stop = trainer.should_stop or bool(met)
        self._pending = trainer.should_stop or bool(validate)
        self._obey(int(signum), trainer)
        # Lightning reads this right after the hook; it validates in any case when it is about to stop.
        if self._pending:
            trainer.val_check_batch = 1
        if save:
            self._save_last(trainer)

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Note the time, and put the averaged weights in place."""
        self._validation_started = self.elapsed
        if self.average and trainer.state.fn == "fit":
            self._averaged.enter_context(self.average.applied())

    def on_validation_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:  # fmt: skip
        """Do not make a signal wait for the whole validation."""
        self._obey(int(self._agreement.of([self._signum])[0]), trainer)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Keep the best, save the last, and stop when nothing got better for `patience` validations."""
        if trainer.state.fn != "fit":
            return
        assert isinstance(pl_module, TranslationTask)
        assert pl_module.evaluation is not None
        self._validated = self.elapsed
        self._validation_seconds = self._validated - self._validation_started
        self.validated_step, self._pending = trainer.global_step, False
        score, nll = pl_module.evaluation.bleu.value, pl_module.evaluation.nll
        # Early in training BLEU is 0 for long; then the likelier model is the better one.
        better = (score, -nll) > (self.best, -self.best_scores.get("nll", float("inf")))
        if better:
            self.best, self.best_step, self.bad_validations = score, trainer.global_step, 0
            self.best_scores = pl_module.evaluation.report()
        else:
            self.bad_validations += 1
        if self._out_of_patience:
            log.info("no better BLEU in %d validations: stopping early", self.bad_validations)
            self._end_at(self._met(trainer))
            trainer.should_stop = True
        if better:
            trainer.save_checkpoint(self.folder.best, weights_only=True)
        self._averaged.close()
        self._save_last(trainer)

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Give the weights and the signals back."""
        self._averaged.close()
        self._return_signals()

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Stop the clock and give the signals back; one that came after the last validation ends the run now."""
        self._earlier, self._started = self.elapsed, time.monotonic()
        self._return_signals()
        if signum := int(self._agreement.of([self._signum])[0]):
            raise TrainingInterrupt(signum, f"at step {trainer.global_step}")

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Add what a resumed run must agree with; Lightning does not call this for best.ckpt."""
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        checkpoint[ORIGIN] = {**self.origin, "max_tokens": data.max_tokens}

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run takes up."""
        return {
            "elapsed": self.elapsed,
            "best": self.best,
            "best_step": self.best_step,
            "best_scores": self.best_scores,
            "bad_validations": self.bad_validations,
            "validation_seconds": self._validation_seconds,
            "validated": self._validated,
            "validated_step": self.validated_step,
            "pending": self._pending,
            "ended": [self.ended_by, getattr(self.settings, self.ended_by)] if self.ended_by else None,
            **({"average": self.average.state_dict()} if self.average else {}),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up an earlier part of the run."""
        self._earlier = state_dict["elapsed"]
        self.best, self.best_step = state_dict["best"], state_dict["best_step"]
        self.best_scores, self.bad_validations = state_dict["best_scores"], state_dict["bad_validations"]
        self._validation_seconds, self._validated = state_dict["validation_seconds"], state_dict["validated"]
        self.validated_step, self._pending = state_dict["validated_step"], state_dict["pending"]
        # The clock may say otherwise: a last validation that is short leaves less time used than it was given.
        by, limit = state_dict.get("ended") or (None, None)
        self.ended_by = by if by and getattr(self.settings, by) == limit else None
        if self.average and "average" in state_dict:
            self.average.load_state_dict(state_dict["average"])

    # Parts

    def _validation_due(self, trainer: L.Trainer) -> bool:
        s = self.settings
        by_steps = s.val_steps is not None and trainer.global_step % s.val_steps == 0
        by_time = s.val_time is not None and self.elapsed - self._validated >= s.val_time
        by_epoch = s.val_steps is None and s.val_time is None and trainer.is_last_batch
        return by_steps or by_time or by_epoch

    def _validate_first(self, trainer: L.Trainer) -> None:
        """Validate before the first batch, as Lightning does between two."""
        loop = trainer.fit_loop.epoch_loop.val_loop
        self._starting = trainer.validating = True
        loop.restarting = False  # all of it, wherever an earlier part was stopped
        loop.run()
        # A restored loop at the end of its epoch must still ask for a batch to find that out, and does so only until
        # a validation has run.
        loop._has_run = False
        self._starting, trainer.training = False, True

    def _save_last(self, trainer: L.Trainer) -> None:
        self.watch.run(False)
        self._saved = self.elapsed
        if not self._starting:
            trainer.save_checkpoint(self.folder.last)
            return
        callbacks: list[L.Callback] = trainer.callbacks  # type: ignore[attr-defined]
        # On every process: parts of a sharded average come from all of them.
        states = {each.state_key: each.state_dict() for each in callbacks}
        if not trainer.is_global_zero:
            return
        # Lightning's loops are being set up; the state of training is still that of the checkpoint.
        assert trainer.ckpt_path is not None
        payload = checkpoint.read(trainer.ckpt_path)
        payload["callbacks"] |= {key: state for key, state in states.items() if state}
        _save(self.folder.last, payload)

    def _take_signals(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for signum in SIGNALS:
            self._handlers[signum] = signal.signal(signum, self._note_signal)

    def _note_signal(self, signum: int, frame: Any) -> None:
        self._signum = signum
        # A second Ctrl-C does not wait for the end of the window.
        signal.signal(signal.SIGINT, _interrupt)

    def _return_signals(self) -> None:
        for signum, handler in self._handlers.items():
            signal.signal(signum, handler)
        self._handlers = {}

    def _obey(self, signum: int, trainer: L.Trainer) -> None:
        if signum:
            self._signum = 0
            self._averaged.close()
            self._save_last(trainer)
            raise TrainingInterrupt(signum, f"at step {trainer.global_step}")


def window_ends(trainer: L.Trainer, batch_idx: int) -> bool:
    """Whether the micro-batch `batch_idx` of the epoch was the last before an update."""
    return (batch_idx + 1) % trainer.accumulate_grad_batches == 0 or trainer.is_last_batch


def epochs_done(trainer: L.Trainer) -> float:
    """Epochs passed, with the part of the current one."""
    batches = trainer.num_training_batches
    return trainer.current_epoch + ((trainer.fit_loop.epoch_loop.batch_idx + 1) / batches if batches else 0.0)
