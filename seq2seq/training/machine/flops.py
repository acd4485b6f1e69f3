"""Count the floating-point operations of a training step with a model on the meta device, which has no data.

Torch counts matrix products (2 m n k), so a new mixer needs no formula here. LightConv and DynamicConv count a
multiply-add per channel, position and tap (`seq2seq.kernels.band_matrix.windows_conv`); the additional work of a band
product is left out. Elementwise work is free, including convolutions computed tap by tap (`seq2seq.kernels.shortconv`,
the sums of `inhomogeneous_depthwise` and of a causal `dynamic_depthwise`, the prefix sums of `talk`): with few taps
they are 1% to 2% of a step.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, register_flop_formula

from seq2seq.network.build import build_model, max_positions, on_meta_device
from seq2seq.network.model import Seq2Seq
from seq2seq.settings.classes import packages_of
from seq2seq.system.errors import first_line

log = logging.getLogger(__name__)

# A backward pass multiplies the output's gradient by the weights and by the inputs: twice the forward pass. Forward
# passes that checkpointing repeats do not count.
_TRAINING = 3
# Rows, S and T of batches that check the polynomial. They exceed common windows, and the lengths from which mixers
# compute in blocks (`kernels.band_matrix`, windowed attention).
_OUTSIDE = ((3, 72, 68), (3, 272, 266))


@register_flop_formula(torch.ops.aten.linalg_solve_triangular)
def _solve_triangular(system: Any, target: Any, *given: Any, out_shape: Any = None, **_: Any) -> int:
    """Count a substitution: half of the system's entries multiply each target column; torch itself counts nothing."""
    return math.prod(target) * system[-1]


@torch.no_grad()
def forward_flops(model: Seq2Seq, rows: int, src_len: int, tgt_len: int) -> int:
    """Count a forward pass of a model without data, built under `seq2seq.network.build.on_meta_device`."""
    # Meta tensors have no data, so operations are counted and not computed.
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        src = torch.zeros(rows, src_len, dtype=torch.int64)  # (B, S)
        tgt = torch.zeros(rows, tgt_len, dtype=torch.int64)  # (B, T)
        model(src, src.bool(), tgt)
    return counter.get_total_flops()


class TrainingFlops:
    """Compute the FLOPs of a training step over a batch (B, S, T): three times the matrix products of a forward pass.

    Counting one shape takes 0.1 s, and an epoch has a hundred shapes, which would be a tenth of a short training on a
    CPU. But nearly every mixer's count is B times a polynomial of degree 2 in S and T. Six counts of tiny batches
    determine it exactly, and two larger batches check it; six more counts add products without rows, such as of
    positions and weights. Before a longer batch is predicted, further checks follow, each twice as long. If a check
    fails (windows, blocks), every new shape is counted.

    Args:
        model: As for `forward_flops`.
        longest: The most positions that its mixers take; None for any number.
    """

    def __init__(self, model: Seq2Seq, longest: int | None = None) -> None:
        self._model = model.eval()  # dropout is elementwise
        self._counted = cache(partial(forward_flops, self._model))
        self._longest = longest
        self._checked = _OUTSIDE[-1]
        # One table for one row, one for two; other numbers of rows are on the line through both.
        one = _newton(lambda s, t: self._counted(1, s, t))
        self._differences = [one, [2 * each for each in one]]
        if not self._checks():
            self._differences[1] = _newton(lambda s, t: self._counted(2, s, t))
        self.polynomial = self._checks()

    def __call__(self, rows: int, src_len: int, tgt_len: int) -> int:
        """Return the FLOPs of a batch of `rows` pairs, padded to these lengths."""
        while self.polynomial and (src_len > self._checked[1] or tgt_len > self._checked[2]):
            _, s, t = self._checked
            self._checked = 3, 2 * s, 2 * t
            self.polynomial = self._holds(*self._checked)
        if self.polynomial:
            return _TRAINING * self._predict(rows, src_len, tgt_len)
        # The count is linear in rows, so two counts of this shape determine it.
        one, two = (self._counted(count, src_len, tgt_len) for count in (1, 2))
        return _TRAINING * (one + (rows - 1) * (two - one))

    def _checks(self) -> bool:
        return all(self._holds(*check) for check in _OUTSIDE)

    def _holds(self, rows: int, src_len: int, tgt_len: int) -> bool:
        src_len, tgt_len = (min(length, self._longest or length) for length in (src_len, tgt_len))
        return self._predict(rows, src_len, tgt_len) == self._counted(rows, src_len, tgt_len)

    def _predict(self, rows: int, src_len: int, tgt_len: int) -> int:
        # The differences begin at (1, 1), so the offsets are S - 1 and T - 1.
        one, two = (_newton_value(differences, src_len - 1, tgt_len - 1) for differences in self._differences)
        return one + (rows - 1) * (two - one)


def training_flops(config: Mapping[str, Any]) -> TrainingFlops | None:
    """Return the counter for build_model's `config`; None, and a warning, if a mixer cannot run on the meta device."""
    # The cache needs a hashable key: a run asks for the same model several times.
    return _training_flops(json.dumps(config, sort_keys=True, default=str))


@cache
def _training_flops(text: str) -> TrainingFlops | None:
    config = json.loads(text)
    # A run has already built this model, so its packages are trusted
    trust = packages_of(config["mixer"])
    try:
        with on_meta_device():
            model = build_model(config, trust=trust)
        return TrainingFlops(model, longest=max_positions(config, trust=trust))
    except (NotImplementedError, RuntimeError) as error:
        log.warning("FLOPs and MFU are not logged: a layer does not run on the meta device (%s)", first_line(error))
        return None


def _newton(count: Callable[[int, int], int]) -> list[int]:
    """Return the forward differences of `count` at (1, 1), by s, t, ss, st and tt; they are integers, so exact."""
    # The six points that determine a polynomial of degree 2 in S and T.
    base = count(1, 1)
    s = count(2, 1)
    t = count(1, 2)
    ss = count(3, 1)
    tt = count(1, 3)
    st = count(2, 2)
    return [base, s - base, t - base, ss - 2 * s + base, st - s - t + base, tt - 2 * t + base]


def _newton_value(differences: Sequence[int], s: int, t: int) -> int:
    """Evaluate Newton's forward-difference formula at offset (s, t) from (1, 1)."""
    base, by_s, by_t, by_ss, by_st, by_tt = differences
    return base + by_s * s + by_t * t + by_ss * (s * (s - 1) // 2) + by_st * s * t + by_tt * (t * (t - 1) // 2)
