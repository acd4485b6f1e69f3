"""Layer norm that keeps the type of its input under autocast."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from seq2seq.kernels.precision import without_autocast


class LayerNorm(nn.LayerNorm):
    """Layer norm in the type of x, where autocast on a GPU would return float32; mean and variance are in float32.

    Reference: Ba et al. 2016.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Normalize x (..., D)."""
        if x.dtype == self.weight.dtype:
            return super().forward(x)
        with without_autocast(x):
            return F.layer_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.bias.to(x.dtype), self.eps)
