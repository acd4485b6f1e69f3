"""Dropout, residual sum and layer norm of a sublayer, by definition, with a given mask."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def residual_norm_reference(
    x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, *, eps: float, kept: Tensor | None = None, keep: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Compute s = x + y where kept / keep, 0 elsewhere, and norm(s); all have the shape (..., D)."""
    y = y if kept is None else (y / keep).where(kept, 0.0)
    s = x + y
    return s, F.layer_norm(s, s.shape[-1:], weight, bias, eps)
