"""How Lightning runs several processes: copies of the model (DDP), or one in parts (FSDP2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch.strategies import ModelParallelStrategy

from seq2seq.config.trainer import TrainerSettings
from seq2seq.training.fsdp import gathered, load_optimizer, load_weights


def make_strategy(settings: TrainerSettings) -> str | ShardedStrategy:
    """What `L.Trainer` is given as its strategy."""
    if settings.processes == 1:
        return "auto"
    return ShardedStrategy(processes=settings.processes) if settings.sharded else "ddp"


class ShardedStrategy(ModelParallelStrategy):
    """Lightning's strategy for sharded models, with checkpoints that are those of any other: one whole file.

    Lightning's own would write the tied table once for every name it has, and read past our `CheckpointIO`.
    """

    def __init__(self, *, processes: int) -> None:
        super().__init__(data_parallel_size=processes, tensor_parallel_size=1, save_distributed_checkpoint=False)

    @property
    def restore_checkpoint_after_setup(self) -> bool:
        """When other strategies restore."""
        return False

    @property
    def lightning_restore_optimizer(self) -> bool:
        """Through `load_optimizer_state_dict`."""
        return True

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """The whole weights on rank 0, nothing on the others."""
        assert self.lightning_module is not None
        whole = gathered(self.lightning_module.state_dict(keep_vars=True), keep=self.is_global_zero)
        return whole if self.is_global_zero else {}

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Every process takes its part of whole weights."""
        assert self.lightning_module is not None
        load_weights(self.lightning_module, checkpoint["state_dict"], strict=strict)

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """The whole state on rank 0, nothing on the others."""
        whole = gathered(optimizer.state_dict(), keep=self.is_global_zero)
        return whole if self.is_global_zero else {}

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Every process takes its part of a whole state."""
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            load_optimizer(optimizer, state)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """The file's dictionary, as our `CheckpointIO` reads it."""
        return self.checkpoint_io.load_checkpoint(checkpoint_path)
