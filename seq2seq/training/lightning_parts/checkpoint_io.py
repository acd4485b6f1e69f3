"""Checkpoints of Lightning, written atomically: the state of the training, and checkpoints for use."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from lightning.fabric.plugins import CheckpointIO
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment

from seq2seq import checkpoint as checkpoints
from seq2seq.metadata import KEY
from seq2seq.runs.training_state import model_weights, read_state, save_state
from seq2seq.system import ranks
from seq2seq.training.bounds.faults import TrainingFault


class AtomicCheckpointIO(CheckpointIO):
    """Write Lightning's dictionary: to a .safetensors file what translation needs, to any other file the whole."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write `checkpoint` to `path`.

        Raises:
            TrainingFault: Its weights are not finite: nothing could translate with it or continue from it.
        """
        # A callback such as ModelCheckpoint leaves it to the writer.
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        path = Path(path)
        try:
            if path.suffix == ".safetensors":
                meta = {**checkpoint[KEY], "step": checkpoint["global_step"]}
                checkpoints.save(path, checkpoints.Stored(meta, model_weights(checkpoint)))
            else:
                save_state(path, checkpoint)
        except checkpoints.NotFiniteWeightsError:
            raise TrainingFault(
                f"training has diverged: at update {checkpoint.get('global_step')} the weights are not finite, and "
                f"{path} is not written; lower optim.lr, lengthen its rise (optim.warmup_share or warmup_steps), or "
                "set optim.clip_norm=1"
            ) from None

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """Read the state of a training to the CPU."""
        # Always to the CPU, whatever `map_location` says: Lightning moves the weights itself.
        return read_state(Path(path))

    def remove_checkpoint(self, path: Any) -> None:
        """Delete `path`."""
        Path(path).unlink(missing_ok=True)


def plugins() -> list[Any]:
    """Return the plugins that Lightning writes checkpoints with, and by which its processes find each other.

    Requeueing is not left to it: a run has one owner of signals, `Signals` (Lightning's issue 14610).
    """
    environment: list[Any] = []
    if ranks.launcher() == "srun":
        environment = [SLURMEnvironment(auto_requeue=False)]
    # Lightning would take any other job of SLURM for one whose processes SLURM has started.
    elif "SLURM_NTASKS" in os.environ and not ranks.launcher():
        environment = [LightningEnvironment()]
    return [AtomicCheckpointIO(), *environment]
