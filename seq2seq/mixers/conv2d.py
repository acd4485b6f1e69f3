"""The full convolution on a grid: every output channel reads every input channel of a square window."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seq2seq.kernels.relative_positions import require_axes, to_grid
from seq2seq.network.introspection import MixingProperties
from seq2seq.network.mixer import SelfMixer, real_positions, require_positive
from seq2seq.network.state import NoState


class Conv2d(SelfMixer[NoState]):
    """Full convolution on a grid, encoder only: each output reads all channels of a K x K window.

    y_{i,j} = sum_{a,b} W_{a,b} x_{i+a-K//2, j+b-K//2} + b, each W_{a,b} of D x D, zeros outside the grid.

    Position p lies at row p // w, column p % w. It is the layer that attention with K^2 heads can represent
    (`quadratic` on a grid). As a matrix over positions it is Toeplitz in rows and columns. It mixes positions and
    channels at once, so it has no projections.

    Args:
        kernel_side: K taps each way.
        grid_width: Columns w; a source that is a grid replaces it by its own.

    Cost:
        K^2 D^2 + D parameters, O(T K^2 D^2) time.

    Reference:
        Cordonnier et al. 2020, 'On the Relationship between Self-Attention and Convolutional
        Layers', section 2.2.
    """

    # Neighbors at the ends of rows are not neighbors on the grid: on a line the matrix is not Toeplitz
    properties = MixingProperties(sparse=True, linear=True)

    def __init__(self, *, dim: int, causal: bool, kernel_side: int, grid_width: int) -> None:
        super().__init__(dim=dim, causal=causal)
        require_axes(grid_width, causal=causal)
        self.kernel_side = require_positive(kernel_side, "kernel_side")
        self.grid_width = grid_width
        self.weight = nn.Parameter(torch.empty(dim, dim, kernel_side, kernel_side))  # as conv2d has it
        self.bias = nn.Parameter(torch.zeros(dim))
        # Each output sums D K^2 products: variance 1 for inputs of variance 1
        nn.init.normal_(self.weight, std=dim**-0.5 / kernel_side)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Convolve x (B, T, D); padding counts as zero."""
        mask = real_positions(x, mask)
        grid = to_grid(x.masked_fill(~mask[:, :, None], 0.0), self.grid_width).permute(0, 3, 1, 2)  # (B, D, rows, w)
        before = self.kernel_side // 2
        after = self.kernel_side - 1 - before
        y = F.conv2d(F.pad(grid, (before, after, before, after)), self.weight, self.bias)
        return y.flatten(2).transpose(1, 2)[:, : x.shape[1]]  # (B, rows w, D), cut to T

    @classmethod
    def grid_values(cls, values: Mapping[str, Any], columns: int) -> dict[str, Any]:
        """Set grid_width to the columns of the source's grid."""
        return {**values, "grid_width": columns}
