"""Save the best, the last and further checkpoints of a run, and set outdated results aside."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import lightning as L
import torch

from seq2seq import checkpoint as checkpoints
from seq2seq.runs.averaging import step_checkpoints, update_of
from seq2seq.runs.folder import ORIGIN, RunFolder
from seq2seq.runs.training_state import save_state
from seq2seq.training.callbacks.ema import WeightAverage
from seq2seq.training.lightning_parts.run_state import RunState
from seq2seq.training.lightning_parts.task import TranslationTask


class LastCheckpoint:
    """Writer of last.ckpt, from which the run is resumed; shared by the callbacks that save."""

    def __init__(self, folder: RunFolder, state: RunState, average: WeightAverage | None) -> None:
        self.path = folder.last
        self.saved = 0.0  # the second of the run at which it was written
        self._average = average
        self._clock = state.budget.clock
        self._training_watch = state.budget.training
        self._before_training = False

    @contextlib.contextmanager
    def before_training(self) -> Iterator[None]:
        """Mark a block in which Lightning's loops are being set up: the state of training is still the checkpoint's."""
        self._before_training = True
        try:
            yield
        finally:
            self._before_training = False

    def save(self, trainer: L.Trainer) -> None:
        """Save the weights that training continues with, and all state; every rank calls it together."""
        # During a validation the averages may be in place; training continues from the trained weights.
        if self._average:
            self._average.swap_out()
        # Saving is not training; `ProgressLog` starts the watch again with the next micro-batch.
        self._training_watch.stop()
        self.saved = self._clock.seconds
        # Lightning's own save would write loops that are half set up.
        if self._before_training:
            self._update(trainer)
        else:
            trainer.save_checkpoint(self.path)

    def _update(self, trainer: L.Trainer) -> None:
        """Replace the state of the callbacks in the checkpoint that the run was resumed from."""
        callbacks: list[L.Callback] = trainer.callbacks  # type: ignore[attr-defined]
        # On every rank: parts of a sharded average come from all of them.
        states = {each.state_key: each.state_dict() for each in callbacks}
        if not trainer.is_global_zero:
            return
        # Only a resumed run validates before it trains, so there is such a file.
        assert trainer.ckpt_path is not None
        payload = trainer.strategy.checkpoint_io.load_checkpoint(trainer.ckpt_path)
        payload["callbacks"] |= {key: state for key, state in states.items() if state}
        save_state(self.path, payload)


class SaveLast(L.Callback):
    """Callback that saves last.ckpt after each validation and every `save_time` seconds.

    `origin` is kept in it: what a resumed run must agree with.
    """

    def __init__(self, last: LastCheckpoint, state: RunState, origin: dict[str, Any]) -> None:
        self.last = last
        self.origin = origin
        self._continued = state.continued
        self._every = state.settings.save_time
        self._budget = state.budget
        self._clock = state.budget.clock

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Count the time to the next save from here."""
        self.last.saved = self._clock.seconds

    def votes(self, trainer: L.Trainer) -> Sequence[float]:
        """Return 1 if it is time to save."""
        # A number for `Agreement`: ranks take the greatest.
        return (float(bool(self._every) and self._clock.seconds - self.last.saved >= (self._every or 0)),)

    def decide(self, trainer: L.Trainer, agreed: Sequence[float]) -> None:
        """Save if it is time on any rank."""
        if agreed[0]:
            self.last.save(trainer)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save, which belongs to the time of the validation."""
        if trainer.state.fn == "fit":
            self.last.save(trainer)
            self._budget.end_validation()

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Add what a resumed run must agree with; Lightning does not call this for weights alone."""
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        # Asked here: Lightning divides the cores among several processes, when they have started.
        threads = torch.get_num_threads() if pl_module.device.type == "cpu" else None
        found = {"max_tokens": data.max_tokens, "threads": threads, "continued": self._continued}
        checkpoint[ORIGIN] = {**self.origin, **found}


class SaveBest(L.Callback):
    """Callback that saves best.safetensors, for use, after each validation that is better than all before."""

    def __init__(self, folder: RunFolder, state: RunState) -> None:
        self.path = folder.best
        self.best = state.best

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save the validated weights."""
        if trainer.state.fn == "fit" and self.best.improved:
            trainer.save_checkpoint(self.path, weights_only=True)


class KeepLast(L.Callback):
    """Callback that saves `step-<update>.safetensors`, for use, after each validation, and keeps the last `count`."""

    def __init__(self, folder: RunFolder, count: int) -> None:
        self.folder = folder.best.parent
        self.count = count

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save, then delete the oldest beyond `count`."""
        if trainer.state.fn != "fit":
            return
        trainer.save_checkpoint(self.folder / f"step-{trainer.global_step}.safetensors", weights_only=True)
        if trainer.is_global_zero:
            # Ordered by update. Later ones are of a part that saved them after its last checkpoint.
            paths = step_checkpoints(self.folder)
            kept = [path for path in paths if update_of(path) <= trainer.global_step][-self.count :]
            for path in set(paths) - set(kept):
                path.unlink(missing_ok=True)


class KeepBest(L.Callback):
    """Callback that saves `top-<update>.safetensors`, for use, of the `count` validations with the highest BLEU.

    Of equal scores the later one stays.
    """

    def __init__(self, folder: RunFolder, count: int) -> None:
        self.folder = folder.best.parent
        self.count = count
        self.kept: list[tuple[float, int]] = []

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Forget those of an earlier part of the run whose files are not here: last.ckpt may have been copied alone."""
        there = [checkpoints.updates(self.folder / f"top-{step}.safetensors") == step for _, step in self.kept]
        there = trainer.strategy.broadcast(there)  # every rank keeps the same
        self.kept = [each for each, found in zip(self.kept, there, strict=True) if found]

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save if among the best, then delete the files of those that dropped out."""
        if trainer.state.fn != "fit":
            return
        assert isinstance(pl_module, TranslationTask)
        assert pl_module.evaluation is not None
        step = trainer.global_step
        # Compare with the validations of other updates, the later first among equal scores.
        others = [one for one in self.kept if one[1] != step]  # a validation that is made up for comes again
        self.kept = sorted([*others, (pl_module.evaluation.bleu.value, step)], reverse=True)[: self.count]
        kept = {self.folder / f"top-{each}.safetensors" for _, each in self.kept}
        path = self.folder / f"top-{step}.safetensors"
        if path in kept:
            # On every rank: the shards of the weights come from all of them.
            trainer.save_checkpoint(path, weights_only=True)
        # Also removes a file that an earlier part saved after its last checkpoint.
        if trainer.is_global_zero:
            for outdated in set(self.folder.glob("top-*.safetensors")) - kept:
                outdated.unlink(missing_ok=True)

    def state_dict(self) -> dict[str, Any]:
        """Return the list of what is kept."""
        return {"kept": [list(one) for one in self.kept]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue with the list of an earlier part of the run."""
        self.kept = [(score, step) for score, step in state_dict["kept"]]


class SetResultsAside(L.Callback):
    """Callback that moves the results of an earlier part away when training continues: an unfinished run has none."""

    def __init__(self, folder: RunFolder, config_yaml: str) -> None:
        self.folder = folder
        self.config_yaml = config_yaml
        self._begun = False

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Move them before the first micro-batch."""
        # Not in on_train_start: a run with nothing left to train keeps its results.
        if not self._begun and trainer.is_global_zero:
            self.folder.train_from(trainer.global_step, self.config_yaml)
        self._begun = True
