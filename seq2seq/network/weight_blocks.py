"""Weights that hold several matrices: Muon orthogonalizes them separately, and one may be a mixer's values."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def in_blocks(layer: nn.Linear, *sizes: int, values: int | None = None, gates: int | None = None) -> nn.Linear:
    """Record that a layer's weight concatenates matrices with these output sizes; return the layer.

    Args:
        values: The number of the matrix that computes what a mixer moves between positions.
        gates: The number of the matrix that computes gates of the values, or weights that the softmax normalizes.
    """
    layer.blocks = sizes  # type: ignore[assignment]
    layer.values, layer.gates = values, gates  # type: ignore[assignment]
    return layer


def blocks_of(layer: nn.Linear) -> tuple[int, ...]:
    """Return the output sizes of the matrices in a layer's weight, recorded by `in_blocks`; one matrix by default."""
    return getattr(layer, "blocks", (layer.out_features,))


def value_layer(mixer: nn.Module) -> Any:
    """Return the layer of a mixer that computes values, recorded by `in_blocks`; None unless there is exactly one."""
    found = [each for each in mixer.modules() if getattr(each, "values", None) is not None]
    return found[0] if len(found) == 1 else None


@torch.no_grad()
def take_values(mixer: nn.Module, old: nn.Module) -> Tensor | None:
    """Give a mixer the matrix of values of another, and return it; None if either lacks it, or their sizes differ.

    Gates begin as zeros, half open, so that gated values are doubled; predicted weights begin equal.
    """
    before, own = value_layer(old), value_layer(mixer)
    if before is None or own is None:
        return None
    source, target = (each.weight.split(blocks_of(each))[each.values] for each in (before, own))
    if source.shape != target.shape:
        return None
    target.copy_(source * (0.5 if before.gates is not None else 1) * (2 if own.gates is not None else 1))
    for layer in mixer.modules():
        if isinstance(layer, nn.Linear) and (gates := getattr(layer, "gates", None)) is not None:
            layer.weight.split(blocks_of(layer))[gates].zero_()
    return target
