"""Where an operation must choose its own precision."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor


def without_autocast(x: Tensor) -> Any:
    """A context in which operations on x's device keep their inputs' types; tensors without data know no autocast."""
    return contextlib.nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)
