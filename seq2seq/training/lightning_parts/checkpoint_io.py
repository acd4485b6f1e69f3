"""Write Lightning's checkpoints atomically: the state of the training, and checkpoints for translation."""

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
    """Write the part of Lightning's dictionary that translation needs to .safetensors files, and all to other files."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write `checkpoint` to `path`.

        Raises:
            TrainingFault: The weights are not finite, so neither translation nor training could use them.
        """
        path = Path(path)
        # Callbacks such as ModelCheckpoint leave this to the writer.
        path.parent.mkdir(parents=True, exist_ok=True)
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
        """Read the state of a training to the CPU, without `map_location`: Lightning moves the weights by itself."""
        return read_state(Path(path))

    def remove_checkpoint(self, path: Any) -> None:
        """Delete `path`."""
        Path(path).unlink(missing_ok=True)


def plugins() -> list[Any]:
    """Return Lightning's plugins for writing checkpoints and connecting processes.

    Lightning must not requeue a job: `Signals` alone handles the signals of a run (Lightning's issue 14610).
    """
    environment: list[Any] = []
    if ranks.launcher() == "srun":
        environment = [SLURMEnvironment(auto_requeue=False)]
    # In any other job of SLURM, Lightning would wrongly assume that SLURM has started its processes.
    elif "SLURM_NTASKS" in os.environ and not ranks.launcher():
        environment = [LightningEnvironment()]
    return [AtomicCheckpointIO(), *environment]
