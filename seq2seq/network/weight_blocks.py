"""Weights that hold several matrices, each of which Muon orthogonalizes alone."""

from __future__ import annotations

from torch import nn


def in_blocks(layer: nn.Linear, *sizes: int) -> nn.Linear:
    """Record that a layer's weight is several matrices, concatenated along outputs of these sizes; return the layer.

    Muon orthogonalizes each of them alone, so it makes no difference which matrices a mixer stores together.
    """
    layer.blocks = sizes  # type: ignore[assignment]
    return layer


def blocks_of(layer: nn.Linear) -> tuple[int, ...]:
    """Return the sizes that `in_blocks` has recorded; a layer without a record is one matrix."""
    return getattr(layer, "blocks", (layer.out_features,))
