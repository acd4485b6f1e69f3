"""Operations that must choose their own precision."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor


def without_autocast(x: Tensor) -> Any:
    """Return a context in which operations on x's device keep their inputs' types; meta tensors have no autocast."""
    return contextlib.nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)
