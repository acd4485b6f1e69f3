"""The precision of operations that must choose their own."""

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


def at_least_float32(dtype: torch.dtype | None) -> torch.dtype:
    """Return the type in which numbers of `dtype` are added up or exponentiated; None stands for the default type."""
    return torch.promote_types(dtype or torch.get_default_dtype(), torch.float32)
