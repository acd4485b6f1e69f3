"""Introspection of mixers: what a mixer declares about its mixing matrix, and differentiating with it held constant."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from torch import Tensor


class MixingProperties(NamedTuple):
    """Where a mixer stands on the map of Han et al. 2022, by its mixing matrix M: y_i = g_i(sum_j M_ij(x) v(x_j)).

    What is done to a position alone, before (v) and after (g_i: projections, output gates), is not of M.
    sparse: M_ij = 0 outside a window of bounded size. shares_positions: M_ij depends on j - i alone, up to a factor for
    each i (a softmax over the positions that there are brings one). shares_channels: channels of a head have the same
    M. dynamic: M depends on x. linear: with M held, y is linear in x up to a constant.
    """

    sparse: bool
    shares_positions: bool
    shares_channels: bool
    dynamic: bool
    linear: bool


class _Held:
    """What one block of `freeze_mixing` has marked, or is given instead."""

    def __init__(self, given: Sequence[Tensor] | None) -> None:
        self.marked: list[Tensor] = []
        self.given = None if given is None else iter(given)

    def hold(self, weights: Tensor) -> Tensor:
        self.marked.append(weights.detach())
        return self.marked[-1] if self.given is None else next(self.given)


_held: _Held | None = None


def mark_mixing(weights: Tensor) -> Tensor:
    """Marks what decides how positions mix: weights, or what they are made of (queries, keys, logits); unchanged.

    Inside `freeze_mixing` no gradient passes, so that the Jacobian of a mixer is its mixing matrix.
    """
    return weights if _held is None else _held.hold(weights)


@contextmanager
def freeze_mixing(given: Sequence[Tensor] | None = None) -> Iterator[list[Tensor]]:
    """Differentiate mixers as if their mixing matrices were constants; yields the list of what they mark meanwhile.

    `given`, such a list, replaces what is marked, in order: another input then meets the mixing matrices of the first.
    """
    global _held
    before, _held = _held, _Held(given)
    try:
        yield _held.marked
    finally:
        _held = before
