"""Weights that hold several matrices, which Muon orthogonalizes separately."""

from __future__ import annotations

from torch import nn


def in_blocks(layer: nn.Linear, *sizes: int) -> nn.Linear:
    """Record that a layer's weight concatenates matrices with these output sizes; return the layer."""
    layer.blocks = sizes  # type: ignore[assignment]
    return layer


def blocks_of(layer: nn.Linear) -> tuple[int, ...]:
    """Return the output sizes of the matrices in a layer's weight, recorded by `in_blocks`; one matrix by default."""
    return getattr(layer, "blocks", (layer.out_features,))
