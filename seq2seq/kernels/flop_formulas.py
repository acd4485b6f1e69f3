"""FLOP formulas of our operators for torch's `FlopCounterMode`: importing this module registers them.

They are separate from the operators because torch's counter loads Triton, which translation does not need. A formula
takes the shapes of an operator's inputs, and counts useful work alone.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.utils.flop_counter import register_flop_formula

# These imports register the operators, which must exist before their formulas
from seq2seq.kernels import dynamicconv as dynamicconv
from seq2seq.kernels import lightconv as lightconv


@register_flop_formula(torch.ops.seq2seq.dynamicconv)
def _dynamicconv(x: Any, logits: Any, *given: Any, **_: Any) -> int:
    """Count a multiply-add for each channel, position and tap."""
    batch_size, length, channels = x
    return 2 * batch_size * length * channels * logits[3]  # logits[3] is K


@register_flop_formula(torch.ops.seq2seq.dynamicconv_backward)
def _dynamicconv_backward(dy: Any, x: Any, logits: Any, *given: Any, **_: Any) -> int:
    """Count the forward pass twice: for the gradient of x and for the gradient of the weights."""
    return 2 * _dynamicconv(x, logits)


@register_flop_formula(torch.ops.seq2seq.lightconv)
def _lightconv(x: Any, weights: Any, *given: Any, out_shape: Any = None, **_: Any) -> int:
    """Count a multiply-add for each channel, position and tap."""
    batch_size, length, channels = out_shape
    return 2 * batch_size * length * channels * weights[1]


@register_flop_formula(torch.ops.seq2seq.lightconv_backward)
def _lightconv_backward(dy: Any, x: Any, weights: Any, *given: Any, **_: Any) -> int:
    """Count the forward pass twice: for the gradient of x and for the gradient of the weights."""
    batch_size, length, channels = dy
    return 4 * batch_size * length * channels * weights[1]  # two products, a multiply-add counted as two


@register_flop_formula(torch.ops.aten.linalg_solve_triangular)
def _solve_triangular(system: Any, target: Any, *given: Any, out_shape: Any = None, **_: Any) -> int:
    """Count a substitution: half of the system's entries multiply each target column; torch itself counts nothing."""
    return math.prod(target) * system[-1]
