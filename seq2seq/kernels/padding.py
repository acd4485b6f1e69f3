"""Bounds of padded sentences: the first position, and the position after the last."""

from __future__ import annotations

import torch
from torch import Tensor


def within(x: Tensor, start: Tensor | None, end: Tensor | None) -> Tensor:
    """Set x (B, T, C) to zero outside [start, end), both (B,); None means no bound."""
    if start is None and end is None:
        return x
    position = torch.arange(x.shape[1], device=x.device)  # (T,)
    outside = torch.zeros((), dtype=torch.bool, device=x.device)  # (), then (B, T)
    if start is not None:
        outside = outside | (position < start[:, None])
    if end is not None:
        outside = outside | (position >= end[:, None])
    return x.masked_fill(outside[:, :, None], 0.0)


def check(x: Tensor, start: Tensor | None, end: Tensor | None) -> None:
    """Raise ValueError unless start and end are integer tensors (B,) on x's device."""
    for name, bound in (("start", start), ("end", end)):
        if bound is None:
            continue
        if bound.shape != x.shape[:1] or bound.is_floating_point() or bound.dtype == torch.bool:
            raise ValueError(f"{name} is {bound.dtype} of shape {tuple(bound.shape)}; give integers, one a sentence")
        if bound.device != x.device:
            raise ValueError(f"{name} is on {bound.device} but x on {x.device}; move it there")
