"""Low-rank updates of linear layers (LoRA): W + B A in place of W, with W fixed."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

# Names of the fixed weight and of the factors in a state dict, after the layer's name.
_FIXED = ".parametrizations.weight.original"
_UP = ".parametrizations.weight.0.up"
_DOWN = ".parametrizations.weight.0.down"


class LowRank(nn.Module):
    """Low-rank update of a matrix: W (m, n) -> W + B A, with B (m, r) and A (r, n).

    B starts as zeros, so that the first update begins at W; A is drawn as the weight of a linear layer.

    Reference:
        Hu et al. 2021, LoRA: Low-Rank Adaptation of Large Language Models.
    """

    def __init__(self, *, weight: Tensor, rank: int) -> None:
        super().__init__()
        rows, columns = weight.shape
        self.up = nn.Parameter(weight.new_zeros(rows, rank))  # B
        self.down = nn.Parameter(weight.new_empty(rank, columns))  # A
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))

    def forward(self, weight: Tensor) -> Tensor:
        """Return W + B A."""
        return torch.addmm(weight, self.up, self.down)


def add_low_rank(layer: nn.Linear, rank: int) -> None:
    """Give a layer a low-rank update, in place: every use of `layer.weight` reads the sum."""
    # unsafe: the check of parametrize would compute the sum once more
    parametrize.register_parametrization(layer, "weight", LowRank(weight=layer.weight, rank=rank), unsafe=True)


def merge_low_rank(model: nn.Module) -> None:
    """Replace all weights with low-rank updates by their sums, in place; the names are the plain ones again."""
    for module in list(model.modules()):
        if parametrize.is_parametrized(module, "weight"):
            parametrize.remove_parametrizations(module, "weight", leave_parametrized=True)


def merged(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a state dict under the plain names of the model, with the sums of low-rank updates."""
    result: dict[str, Tensor] = {}
    for name, weight in weights.items():
        layer = name.removesuffix(_FIXED)
        if layer != name:
            result[f"{layer}.weight"] = torch.addmm(weight, weights[layer + _UP], weights[layer + _DOWN])
        elif not name.endswith((_UP, _DOWN)):
            result[name] = weight
    return result
