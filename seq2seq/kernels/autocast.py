"""Operations that must choose their own precision."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor


def without_autocast(x: Tensor) -> Any:
    """Return a context in which operations on x's device keep their inputs' types.

    Meta tensors have no autocast, and an exported graph is traced without one.
    """
    none = x.is_meta or torch.compiler.is_exporting()
    return contextlib.nullcontext() if none else torch.autocast(x.device.type, enabled=False)
