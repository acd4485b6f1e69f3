"""Keep the weights of the last validations, for averaging."""

from __future__ import annotations

import lightning as L

from seq2seq.average import step_checkpoints
from seq2seq.run import RunFolder


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
