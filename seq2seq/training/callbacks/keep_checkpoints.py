"""Keep the weights of the last, or of the best, validations, for averaging; and results that training outdates."""

from __future__ import annotations

from typing import Any

import lightning as L

from seq2seq.experiments.averaging import step_checkpoints
from seq2seq.experiments.folder import RunFolder
from seq2seq.training.task import TranslationTask


class KeepResults(L.Callback):
    """Sets the results of an earlier part aside when training goes on, so that an unfinished run looks like one."""

    def __init__(self, *, folder: RunFolder, config_yaml: str) -> None:
        self.folder, self.config_yaml, self._begun = folder, config_yaml, False

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Before the first one."""
        if not self._begun and trainer.is_global_zero:
            self.folder.train_from(trainer.global_step, self.config_yaml)
        self._begun = True


class KeepLast(L.Callback):
    """Writes `checkpoints/step-<update>.ckpt` at every validation, weights alone, and keeps the last `count`."""

    def __init__(self, *, folder: RunFolder, count: int) -> None:
        self.folder, self.count = folder.best.parent, count

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save one, then delete the oldest beyond `count`."""
        if trainer.state.fn != "fit":
            return
        trainer.save_checkpoint(self.folder / f"step-{trainer.global_step}.ckpt", weights_only=True)
        if trainer.is_global_zero:
            for path in step_checkpoints(self.folder)[: -self.count]:
                path.unlink(missing_ok=True)


class KeepBest(L.Callback):
    """Writes `checkpoints/top-<update>.ckpt` for the `count` validations of the highest BLEU, weights alone.

    It comes before `Control` among the callbacks, so that what it writes is what was validated: with trainer.ema, the
    average. Of equal scores the later one stays.
    """

    def __init__(self, *, folder: RunFolder, count: int) -> None:
        self.folder, self.count = folder.best.parent, count
        self.kept: list[tuple[float, int]] = []

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save if among the best, then delete what no longer is."""
        if trainer.state.fn != "fit":
            return
        assert isinstance(pl_module, TranslationTask)
        assert pl_module.evaluation is not None
        step = trainer.global_step
        others = [one for one in self.kept if one[1] != step]  # a validation that is made up for comes again
        self.kept = sorted([*others, (pl_module.evaluation.bleu.value, step)], reverse=True)[: self.count]
        kept = {self.folder / f"top-{one}.ckpt" for _, one in self.kept}
        if self.folder / f"top-{step}.ckpt" in kept:
            trainer.save_checkpoint(self.folder / f"top-{step}.ckpt", weights_only=True)
        if trainer.is_global_zero:
            for path in set(self.folder.glob("top-*.ckpt")) - kept:
                path.unlink(missing_ok=True)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run takes up."""
        return {"kept": [list(one) for one in self.kept]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up an earlier part's list."""
        self.kept = [(score, step) for score, step in state_dict["kept"]]
