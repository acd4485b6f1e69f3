"""The precision of operations, where autocast must not choose it."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor


def without_autocast(x: Tensor) -> Any:
    """Return a context without autocast on x's device; meta tensors and exported graphs have no autocast anyway."""
    none = x.is_meta or torch.compiler.is_exporting()
    return contextlib.nullcontext() if none else torch.autocast(x.device.type, enabled=False)


def at_least_float32(dtype: torch.dtype | None) -> torch.dtype:
    """Return the type in which numbers of `dtype` are summed or exponentiated; None is the default type."""
    return torch.promote_types(dtype or torch.get_default_dtype(), torch.float32)
