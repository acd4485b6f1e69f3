"""Keep an exponential moving average of the weights."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from torch import Tensor, nn

from seq2seq.system.ranks import is_first_process
from seq2seq.training.callbacks.window_end import window_ends
from seq2seq.training.machine.fsdp import gathered, part_like


class AverageWeights(L.Callback):
    """Callback that averages the weights after each update; the average is validated, and saved in best.safetensors.

    w' = d w' + (1 - d) w after update n = 1, 2, ..., with d = min(decay, n / (n + 9)). The first updates count little,
    so the average forgets the initialization (the warm-up of TensorFlow's moving averages). Averages are always
    float32. Lightning's own callback does not support sharded models.

    Args:
        module: The model; all of its parameters have an average, since a callback may freeze some later.
        decay: d in the long run.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay = decay
        self.updates = 0
        self._module = module
        self._weights = list(module.parameters())
        self._averages = [weight.detach().float().clone() for weight in self._weights]
        self._own: list[Tensor] | None = None  # the trained weights, while the averages are in their place

    @torch.no_grad()
    def on_train_start(self, *_: Any) -> None:
        """Begin with the weights as they are, unless updates have been averaged already."""
        self._bind()
        if not self.updates:
            for average, weight in zip(self._averages, self._weights, strict=True):
                average.copy_(weight)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Add the weights, after an update."""
        if window_ends(trainer, batch_idx):
            self.update()

    def on_validation_start(self, *_: Any) -> None:
        """Validate the average."""
        self.swap_in()

    def on_validation_end(self, *_: Any) -> None:
        """Continue training with the trained weights."""
        self.swap_out()

    def on_exception(self, *_: Any) -> None:
        """Leave the trained weights in the model."""
        self.swap_out()

    def state_dict(self) -> dict[str, Any]:
        """Return the averages and the count; all ranks must call this, and sharded averages are gathered on rank 0."""
        averages = gathered(self._averages, keep=is_first_process())
        return {"average": {"averages": averages, "updates": self.updates}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue with the averages of an earlier part of the run."""
        self.updates = state_dict["average"]["updates"]
        # The file has whole tensors. `_bind` takes this rank's shards.
        self._averages = state_dict["average"]["averages"]

    @torch.no_grad()
    def update(self) -> None:
        """Add the weights as they are after an update."""
        self._bind()
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        self.updates += 1
        # Compute w' + (1 - d) (w - w') for all weights in one launch.
        now: list[Tensor] = [weight.float() for weight in self._weights]
        torch._foreach_lerp_(self._averages, now, 1 - decay)  # pyright: ignore[reportPrivateImportUsage]

    def swap_in(self) -> None:
        """Put the averages in place of the weights, which are kept aside."""
        assert self._own is None
        self._bind()
        self._own = [weight.detach().clone() for weight in self._weights]
        self._copy(self._averages)

    def swap_out(self) -> None:
        """Put the trained weights back, if the averages are in their place."""
        if self._own is not None:
            self._copy(self._own)
        self._own = None

    def _bind(self) -> None:
        """Move the averages to the device of the weights, and shard them if the strategy has sharded the weights."""
        # Sharding replaces the parameters by new objects, so they are looked up again.
        self._weights = list(self._module.parameters())
        pairs = zip(self._averages, self._weights, strict=True)
        self._averages = [part_like(average, weight).to(weight.device) for average, weight in pairs]

    @torch.no_grad()
    def _copy(self, values: list[Tensor]) -> None:
        for weight, value in zip(self._weights, values, strict=True):
            weight.copy_(value)
