"""Count the floating-point operations of a training step of a model on the meta device, which has no data.

A count, not formulas per mixer: torch knows what a matrix product costs (2 m n k), an operator of ours says what its
useful work costs (`seq2seq.kernels.flop_formulas`), and so a new mixer is right without a line here.
Convolutions by operators of ours count a multiply-add per channel, position and tap, whatever the band product does
beside that. Those that are computed elementwise, tap by tap (`seq2seq.kernels.shortconv`, the sums of
`inhomogeneous_depthwise` and of a causal `dynamic_depthwise`, the prefix sums of `talk`), are free as other elementwise
work is: with few taps, 1% to 2% of a step.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from seq2seq.kernels import flop_formulas as flop_formulas  # which registers them
from seq2seq.network.build import build_model, max_positions, on_meta_device
from seq2seq.network.model import Seq2Seq
from seq2seq.settings.classes import packages_of
from seq2seq.system.errors import first_line

log = logging.getLogger(__name__)

# Backward passes multiply the output's gradient by the weights and by the inputs: twice the forward pass. What is
# computed again (checkpointing) is not work of the model's.
_TRAINING = 3
# Lengths that decide a polynomial of degree 2 in S and T.
_SIZES = (1, 2, 3)
# Rows, S and T of batches that check it: beyond common windows, and beyond the lengths from which on mixers compute in
# blocks (`kernels.band_matrix`, windowed attention).
_OUTSIDE = ((3, 72, 68), (3, 272, 266))


class TrainingFlops:
    """FLOPs of forward and backward pass over a batch (B, S, T): three times the forward pass, elementwise work free.

    A count takes a tenth of a second, and an epoch has a hundred shapes, which would be a tenth of a short training on
    a CPU. But nearly every mixer's count is a polynomial of degree 2 in S and T and of degree 1 in B (what is done with
    weights alone does not grow with B): 12 counts of tiny batches decide it exactly, and two far outside check it, as
    do further ones, twice as far each time, before a longer batch is predicted. If it does not hold (windows, blocks),
    every new shape is counted.

    Args:
        model: Without data, built under `seq2seq.network.build.on_meta_device`.
        longest: The most positions that its mixers take; None for any number.
    """

    def __init__(self, model: Seq2Seq, longest: int | None = None) -> None:
        if not next(model.parameters()).is_meta:
            raise ValueError(
                "FLOPs are counted on the meta device: build the model under seq2seq.network.build.on_meta_device"
            )
        self._model = model.eval()  # dropout is elementwise
        self._counted = cache(self._count)
        # One table for one row, one for two; every other number of rows is a line through them.
        self._differences = [_newton(lambda s, t, rows=rows: self._counted(rows, s, t)) for rows in (1, 2)]
        self._longest = longest
        self.polynomial = all(self._holds(*check) for check in _OUTSIDE)
        self._checked = _OUTSIDE[-1]

    def __call__(self, rows: int, src_len: int, tgt_len: int) -> int:
        """Return the FLOPs of a batch of `rows` pairs, padded to these lengths."""
        while self.polynomial and (src_len > self._checked[1] or tgt_len > self._checked[2]):
            _, s, t = self._checked
            self._checked = 3, 2 * s, 2 * t
            self.polynomial = self._holds(*self._checked)
        if self.polynomial:
            return _TRAINING * self._predict(rows, src_len, tgt_len)
        # Not a polynomial in S and T, but linear in rows: two counts of this shape decide it.
        one, two = (self._counted(count, src_len, tgt_len) for count in (1, 2))
        return _TRAINING * (one + (rows - 1) * (two - one))

    def _holds(self, rows: int, src_len: int, tgt_len: int) -> bool:
        # Within the positions that the model has.
        src_len, tgt_len = (min(length, self._longest or length) for length in (src_len, tgt_len))
        return self._predict(rows, src_len, tgt_len) == self._counted(rows, src_len, tgt_len)

    def _predict(self, rows: int, src_len: int, tgt_len: int) -> int:
        # Binomials of S - 1 and T - 1, as the differences begin at (1, 1).
        one, two = (_newton_value(differences, src_len - 1, tgt_len - 1) for differences in self._differences)
        return one + (rows - 1) * (two - one)

    @torch.no_grad()
    def _count(self, rows: int, src_len: int, tgt_len: int) -> int:
        # Meta tensors have shapes alone: nothing is computed, only counted.
        with torch.device("meta"), FlopCounterMode(display=False) as counter:
            src = torch.zeros(rows, src_len, dtype=torch.int64)  # (B, S)
            tgt = torch.zeros(rows, tgt_len, dtype=torch.int64)  # (B, T)
            self._model(src, src.bool(), tgt)
        return counter.get_total_flops()


def training_flops(config: Mapping[str, Any]) -> TrainingFlops | None:
    """Return the count for build_model's `config`; None, and a warning, if a mixer cannot run on the meta device."""
    # As text, which is hashable: a run asks for the same model several times.
    return _training_flops(json.dumps(config, sort_keys=True, default=str))


@cache
def _training_flops(text: str) -> TrainingFlops | None:
    config = json.loads(text)
    # A run counts what it has built already
    trust = packages_of(config["mixer"])
    try:
        with on_meta_device():
            model = build_model(config, trust=trust)
        return TrainingFlops(model, longest=max_positions(config, trust=trust))
    except (NotImplementedError, RuntimeError) as error:
        log.warning("FLOPs and MFU are not logged: a layer does not run on the meta device (%s)", first_line(error))
        return None


def _newton(count: Callable[[int, int], int]) -> tuple[int, ...]:
    """Return the forward differences at (1, 1): of S, of T, twice of S, of both, twice of T; integers, so exact."""
    one, two, three = _SIZES
    # (S, T) on the six points that a polynomial of degree 2 needs.
    base = count(one, one)
    s = count(two, one)
    t = count(one, two)
    ss = count(three, one)
    tt = count(one, three)
    st = count(two, two)
    return base, s - base, t - base, ss - 2 * s + base, st - s - t + base, tt - 2 * t + base


def _newton_value(differences: tuple[int, ...], s: int, t: int) -> int:
    """Evaluate Newton's forward-difference formula at offset (s, t) from (1, 1)."""
    base, by_s, by_t, by_ss, by_st, by_tt = differences
    return base + by_s * s + by_t * t + by_ss * (s * (s - 1) // 2) + by_st * s * t + by_tt * (t * (t - 1) // 2)
