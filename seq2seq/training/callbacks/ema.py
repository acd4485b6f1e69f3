"""The exponential moving average of the weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from seq2seq.distributed import is_first_process
from seq2seq.training.fsdp import gathered, part_like


class WeightAverage:
    """w' = d w' + (1 - d) w after every update, with d = min(decay, (1 + n) / (10 + n)) at update n.

    The first updates count little, so that the average is no memory of the random start (TensorFlow's warm-up of its
    moving averages). Averages are float32 whatever the weights are.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay, self.updates = decay, 0
        self._module, self._weights = module, _trained(module)
        self._averages = [weight.detach().float().clone() for weight in self._weights]

    @torch.no_grad()
    def update(self) -> None:
        """Take in the weights as they are after an update."""
        self._bind()
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        self.updates += 1
        now: list[Tensor] = [weight.float() for weight in self._weights]
        torch._foreach_lerp_(self._averages, now, 1 - decay)  # pyright: ignore[reportPrivateImportUsage]

    @contextmanager
    def applied(self) -> Iterator[None]:
        """In this block the module has the averages for weights."""
        self._bind()
        own = [weight.detach().clone() for weight in self._weights]
        self._copy(self._averages)
        try:
            yield
        finally:
            self._copy(own)

    def state_dict(self) -> dict[str, Any]:
        """Averages, whole, and count; where the weights are sharded, all processes call it together, for rank 0."""
        return {"averages": gathered(self._averages, keep=is_first_process()), "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up averages and count."""
        self.updates = state["updates"]
        for average, given in zip(self._averages, state["averages"], strict=True):
            average.copy_(part_like(given, average))

    def _bind(self) -> None:
        """Follow the weights to their device and, where the strategy has sharded them since, into parts."""
        self._weights = _trained(self._module)
        pairs = zip(self._averages, self._weights, strict=True)
        self._averages = [part_like(average, weight).to(weight.device) for average, weight in pairs]

    @torch.no_grad()
    def _copy(self, values: list[Tensor]) -> None:
        for weight, value in zip(self._weights, values, strict=True):
            weight.copy_(value)


def _trained(module: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]
