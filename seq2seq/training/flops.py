"""Floating-point operations of a training step, counted on a model without data.

A count, not formulas per mixer: torch knows what a matrix product costs (2 m n k), an operator of ours says what its
useful work costs where it is registered (`register_flop_formula`), and so a new mixer is right without a line here.
Convolutions count a multiply-add per channel, position and tap, whatever the band product does beside that.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from seq2seq.build import build_model, max_positions
from seq2seq.model import Seq2Seq

log = logging.getLogger(__name__)

# Backward passes multiply the output's gradient by the weights and by the inputs: twice the forward pass. What is
# computed again (checkpointing) is no work of the model's.
_TRAINING = 3
# Points that decide a polynomial of degree 2 in S and T, and one outside, beyond common windows, that checks it.
_SIZES, _OUTSIDE = (1, 2, 3), (3, 72, 68)


class TrainingFlops:
    """FLOPs of forward and backward pass over a batch (B, S, T): three times the forward pass, elementwise work free.

    Nearly every mixer's count is a polynomial of degree 2 in S and T and of degree 1 in B (what is done with weights
    alone does not grow with B), which 12 counts of tiny batches decide exactly; one count far outside tells whether
    it holds. If it does not (windows, blocks), every new shape is counted: a tenth of a second each.
    """

    def __init__(self, model: Seq2Seq, longest: int | None = None) -> None:
        """Count `model`, whose mixers take at most `longest` positions (None: any number)."""
        if not next(model.parameters()).is_meta:
            raise ValueError("FLOPs are counted on a model without data; build it under torch.device('meta')")
        self._model = model.eval()  # dropout is elementwise
        self._counted = cache(self._count)
        self._steps = [_newton(lambda s, t, b=b: self._counted(b, s, t)) for b in (1, 2)]
        outside = (_OUTSIDE[0], *(min(length, longest or length) for length in _OUTSIDE[1:]))
        self.polynomial = self._predict(*outside) == self._counted(*outside)

    def __call__(self, rows: int, src_len: int, tgt_len: int) -> int:
        """FLOPs of a batch of `rows` pairs, padded to these lengths."""
        if self.polynomial:
            return _TRAINING * self._predict(rows, src_len, tgt_len)
        one, two = (self._counted(b, src_len, tgt_len) for b in (1, 2))
        return _TRAINING * (one + (rows - 1) * (two - one))

    def _predict(self, rows: int, src_len: int, tgt_len: int) -> int:
        one, two = (_newton_value(steps, src_len - 1, tgt_len - 1) for steps in self._steps)
        return one + (rows - 1) * (two - one)

    @torch.no_grad()
    def _count(self, rows: int, src_len: int, tgt_len: int) -> int:
        with torch.device("meta"):
            src, tgt = (torch.zeros(rows, length, dtype=torch.int64) for length in (src_len, tgt_len))
            with _Counter() as counter:
                self._model(src, src.bool(), tgt)
        return counter.total


def training_flops(config: Mapping[str, Any]) -> TrainingFlops | None:
    """The count for build_model's `config`; None, and a warning, where a mixer cannot run without data."""
    return _training_flops(json.dumps(config, sort_keys=True, default=str))


@cache
def _training_flops(text: str) -> TrainingFlops | None:
    config = json.loads(text)
    try:
        with torch.device("meta"):
            model = build_model(config)
        return TrainingFlops(model, longest=max_positions(config))
    except (NotImplementedError, RuntimeError) as error:
        log.warning("FLOPs and MFU are not logged: a layer does not run without data (%s)", str(error).split("\n")[0])
        return None


class _Counter(TorchDispatchMode):
    """Adds up what torch's FlopCounterMode would, without its account by module, which takes longer than the count."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            self.total += int(formula(*args, **(kwargs or {}), out_val=out))
        return out


def _newton(count: Any) -> tuple[int, ...]:
    """Forward differences at (1, 1): of S, of T, twice of S, of both, twice of T; integers, so nothing is rounded."""
    one, two, three = _SIZES
    base, s, t = count(one, one), count(two, one), count(one, two)
    ss, tt, st = count(three, one), count(one, three), count(two, two)
    return base, s - base, t - base, ss - 2 * s + base, st - s - t + base, tt - 2 * t + base


def _newton_value(steps: tuple[int, ...], s: int, t: int) -> int:
    base, by_s, by_t, by_ss, by_st, by_tt = steps
    return base + by_s * s + by_t * t + by_ss * (s * (s - 1) // 2) + by_st * s * t + by_tt * (t * (t - 1) // 2)
