"""The exponential moving average of the weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


class WeightAverage:
    """w' = d w' + (1 - d) w after every update, with d = min(decay, (1 + n) / (10 + n)) at update n.

    The first updates count little, so that the average is no memory of the random start (TensorFlow's warm-up of its
    moving averages). Averages are float32 whatever the weights are.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay, self.updates = decay, 0
        self._weights = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._averages = [weight.detach().float().clone() for weight in self._weights]

    @torch.no_grad()
    def update(self) -> None:
        """Take in the weights as they are after an update."""
        self._to_device()
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        self.updates += 1
        now: list[Tensor] = [weight.float() for weight in self._weights]
        torch._foreach_lerp_(self._averages, now, 1 - decay)  # pyright: ignore[reportPrivateImportUsage]

    @contextmanager
    def applied(self) -> Iterator[None]:
        """In this block the module has the averages for weights."""
        own = [weight.detach().clone() for weight in self._weights]
        self._to_device()
        self._copy(self._averages)
        try:
            yield
        finally:
            self._copy(own)

    def state_dict(self) -> dict[str, Any]:
        """Averages and count."""
        return {"averages": self._averages, "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up averages and count."""
        self.updates = state["updates"]
        for average, given in zip(self._averages, state["averages"], strict=True):
            average.copy_(given)

    def _to_device(self) -> None:
        pairs = zip(self._averages, self._weights, strict=True)
        self._averages = [average.to(weight.device) for average, weight in pairs]

    @torch.no_grad()
    def _copy(self, values: list[Tensor]) -> None:
        for weight, value in zip(self._weights, values, strict=True):
            weight.copy_(value)
