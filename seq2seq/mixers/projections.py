"""Projections of mixers and their initialization, channels in heads, and gates."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from seq2seq.network.weight_blocks import in_blocks

# Gain of Xavier's rule for queries, keys and values; see `attention_inputs`.
INPUT_GAIN = 2**-0.5


def split(x: Tensor, heads: int) -> Tensor:
    """Divide channels into heads: (..., T, D) -> (..., H, T, D / H)."""
    return x.unflatten(-1, (heads, -1)).transpose(-2, -3)


def merge(x: Tensor) -> Tensor:
    """Join heads: (..., H, T, D / H) -> (..., T, D)."""
    return x.transpose(-2, -3).flatten(-2)


def projection(dim: int, *sizes: int, gain: float = 1.0, bias: bool = False) -> nn.Linear:
    """Make a linear layer of matrices of these output sizes side by side, each initialized separately; biases are 0."""
    layer = nn.Linear(dim, sum(sizes), bias=bias)
    if bias:
        nn.init.zeros_(layer.bias)
    # Xavier's scale depends on both widths, so several matrices initialized as one would start smaller
    for block in layer.weight.split(sizes):
        nn.init.xavier_uniform_(block, gain=gain)
    return in_blocks(layer, *sizes)


def attention_inputs(dim: int, *sizes: int, bias: bool = False) -> nn.Linear:
    """Make the matrices of queries, keys or values, initialized smaller by sqrt(2) than by Xavier's rule.

    Attention starts this way in fairseq and, where the three matrices have the same size, in torch's
    `MultiheadAttention`. Short runs learn faster from this start (docs/results.md, "The recipe").
    """
    layer = projection(dim, *sizes, gain=INPUT_GAIN, bias=bias)
    # Three are queries, keys and values
    return in_blocks(layer, *sizes, values=2) if len(sizes) == 3 else layer


def glu_input(dim: int, *, glu: bool, bias: bool = True) -> nn.Linear:
    """Make the projection before a convolution: (..., D) -> (..., 2 D), values and gates, or (..., D) without `glu`."""
    sizes = [dim, dim] if glu else [dim]
    return in_blocks(nn.Linear(dim, sum(sizes), bias=bias), *sizes, values=0, gates=1 if glu else None)


def add_bias(x: Tensor, bias: Tensor | None) -> Tensor:
    """Add a bias (D,) to x (..., D) in the type of x, which is narrower under autocast; None is no bias."""
    return x if bias is None else x + bias.to(x.dtype)


def gated(z: Tensor, glu: bool) -> Tensor:
    """Apply the gates to the output z of `glu_input`: (..., 2 D) -> (..., D); without `glu`, return z."""
    return F.glu(z, -1) if glu else z


def initialize(*layers: nn.Linear | None) -> None:
    """Draw weights by Xavier's rule, in this order, and set biases to zero; None is a layer that a mixer lacks."""
    for layer in layers:
        if layer is not None:
            nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def with_zero_gradient(y: Tensor, x: Tensor) -> Tensor:
    """Return y (B, T, D), which does not depend on x (B, T, D), with a zero gradient with respect to x.

    Training on several devices waits for a gradient of every parameter, such as the weight of a norm before the mixer.
    """
    return y + (0.0 * x).to(y.dtype)
