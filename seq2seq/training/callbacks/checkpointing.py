"""Save the last checkpoint and further ones of a run, and set outdated results aside."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L
import torch

from seq2seq import checkpoint as checkpoints
from seq2seq.runs.averaging import step_checkpoints, update_of
from seq2seq.runs.folder import ORIGIN, RunFolder
from seq2seq.runs.training_state import save_state
from seq2seq.training.callbacks.ema import AverageWeights
from seq2seq.training.lightning_parts.run_state import RunState
from seq2seq.training.lightning_parts.task import TranslationTask


class SaveLast(L.Callback):
    """Callback that saves last.ckpt, from which the run is resumed: after a validation, or every `save_time` seconds.

    Args:
        origin: Settings and corpus, with which a resumed run must agree, its new weights, and the digest of its first
            checkpoint; kept in last.ckpt.

    Attributes:
        before_training: True while a resumed run repeats a validation; `save` then updates only callback states.
    """

    def __init__(
        self, folder: RunFolder, state: RunState, average: AverageWeights | None, origin: dict[str, Any]
    ) -> None:
        self.path = folder.last
        self.before_training = False
        self._average = average
        self._origin = origin
        self._state = state
        self._budget = state.budget
        self._saved = 0.0  # second of the run at which last.ckpt was written

    def save(self, trainer: L.Trainer) -> None:
        """Save the weights that training continues with, and all state; all ranks must call this together."""
        # During a validation the averages may be in place; training continues from the trained weights.
        if self._average:
            self._average.swap_out()
        # Saving is not training. `ProgressLog` restarts the watch with the next micro-batch.
        self._budget.training.stop()
        self._saved = self._budget.clock.seconds
        if not self.before_training:
            trainer.save_checkpoint(self.path)
            return
        # Replace the state of the callbacks in the checkpoint that the run was resumed from: Lightning would save
        # loops that are half set up. Every rank calls `state_dict`, because it has a shard of a sharded average.
        callbacks: list[L.Callback] = trainer.callbacks  # type: ignore[attr-defined]
        states = {each.state_key: each.state_dict() for each in callbacks}
        if trainer.is_global_zero:
            assert trainer.ckpt_path is not None
            payload = trainer.strategy.checkpoint_io.load_checkpoint(trainer.ckpt_path)
            payload["callbacks"] |= {key: state for key, state in states.items() if state}
            save_state(self.path, payload)
        # As Lightning does after its own save
        trainer.strategy.barrier()

    def on_train_start(self, *_: Any) -> None:
        """Count the time to the next save from here."""
        self._saved = self._budget.clock.seconds

    def votes(self, trainer: L.Trainer) -> Sequence[float]:
        """Return 1 if it is time to save."""
        every = self._state.settings.save_time
        return (float(every is not None and self._budget.clock.seconds - self._saved >= every),)

    def decide(self, trainer: L.Trainer, agreed: Sequence[float]) -> None:
        """Save if it is time on any rank."""
        if agreed[0]:
            self.save(trainer)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save, and count the time as part of the validation."""
        self.save(trainer)
        self._budget.end_validation()

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Add what a resumed run must agree with; Lightning does not call this for weights alone."""
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        checkpoint[ORIGIN] = {
            **self._origin,
            "max_tokens": data.max_tokens,
            # Known only here: Lightning divides the cores among several processes once they have started.
            "threads": torch.get_num_threads() if pl_module.device.type == "cpu" else None,
            "continued": self._state.continued,
        }


class KeepLast(L.Callback):
    """Callback that saves `step-<update>.safetensors`, for use, after each validation, and keeps the last `count`."""

    def __init__(self, folder: RunFolder, count: int) -> None:
        self.folder = folder.best.parent
        self.count = count

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save the weights, then delete the oldest checkpoints beyond `count`."""
        trainer.save_checkpoint(self.folder / f"step-{trainer.global_step}.safetensors", weights_only=True)
        if trainer.is_global_zero:
            # An earlier part of the run may have saved checkpoints of later updates, after its last.ckpt.
            paths = step_checkpoints(self.folder)
            kept = [path for path in paths if update_of(path) <= trainer.global_step][-self.count :]
            for path in set(paths) - set(kept):
                path.unlink(missing_ok=True)


class KeepBest(L.Callback):
    """Callback that saves `top-<update>.safetensors`, for use, of the `count` validations with the highest BLEU.

    Of two equal scores, the later one is kept.
    """

    def __init__(self, folder: RunFolder, count: int) -> None:
        self.folder = folder.best.parent
        self.count = count
        self.kept: list[tuple[float, int]] = []

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Forget scores of an earlier part whose files are missing: last.ckpt may have been copied alone."""
        there = [checkpoints.updates(self._path(step)) == step for _, step in self.kept]
        there = trainer.strategy.broadcast(there)  # every rank keeps the same
        self.kept = [each for each, found in zip(self.kept, there, strict=True) if found]

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save the weights if the score is among the best, then delete the other files."""
        assert isinstance(pl_module, TranslationTask)
        assert pl_module.evaluation is not None
        step = trainer.global_step
        # An interrupted validation is repeated, at the same update
        others = [one for one in self.kept if one[1] != step]
        # The later update comes first if scores are equal
        self.kept = sorted([*others, (pl_module.evaluation.bleu.value, step)], reverse=True)[: self.count]
        kept = {self._path(each) for _, each in self.kept}
        if self._path(step) in kept:
            # On every rank, as each has shards of the weights
            trainer.save_checkpoint(self._path(step), weights_only=True)
        # Also delete files that an earlier part saved after its last.ckpt
        if trainer.is_global_zero:
            for outdated in set(self.folder.glob("top-*.safetensors")) - kept:
                outdated.unlink(missing_ok=True)

    def _path(self, step: int) -> Path:
        return self.folder / f"top-{step}.safetensors"

    def state_dict(self) -> dict[str, Any]:
        """Return the scores and updates of the kept checkpoints."""
        return {"kept": [list(one) for one in self.kept]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from an earlier part of the run."""
        self.kept = [(score, step) for score, step in state_dict["kept"]]


class SetResultsAside(L.Callback):
    """Callback that sets results of an earlier part aside when training continues: an unfinished run has no results."""

    def __init__(self, folder: RunFolder, config_yaml: str) -> None:
        self.folder = folder
        self.config_yaml = config_yaml
        self._begun = False

    def on_train_batch_start(self, trainer: L.Trainer, *_: Any) -> None:
        """Set results aside before the first micro-batch: a run with nothing left to train keeps its results."""
        if not self._begun and trainer.is_global_zero:
            self.folder.train_from(trainer.global_step, self.config_yaml)
        self._begun = True
