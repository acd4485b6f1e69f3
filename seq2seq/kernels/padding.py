"""Ends of padded sentences: the position after the last real one."""

from __future__ import annotations

import torch
from torch import Tensor


def within(x: Tensor, end: Tensor | None) -> Tensor:
    """Set x (B, T, C) to zero from position end (B,) on; None means no padding."""
    if end is None:
        return x
    outside = torch.arange(x.shape[1], device=x.device) >= end[:, None]  # (B, T)
    return x.masked_fill(outside[:, :, None], 0.0)


def check(x: Tensor, end: Tensor | None) -> None:
    """Raise ValueError unless end is an integer tensor (B,) on x's device, or None."""
    if end is None:
        return
    if end.shape != x.shape[:1] or end.is_floating_point() or end.dtype == torch.bool:
        raise ValueError(f"end is {end.dtype} of shape {tuple(end.shape)}; give integers, one a sentence")
    if end.device != x.device:
        raise ValueError(f"end is on {end.device} but x on {x.device}; move it there")
