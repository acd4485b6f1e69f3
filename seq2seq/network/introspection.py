"""Introspection of mixers: what they declare of their mixing matrix, and differentiating with that matrix frozen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import torch
from torch import Tensor


class MixingProperties(NamedTuple):
    """Properties of a mixer's mixing matrix M: y_i = g_i(sum_j M_ij(x) v(x_j)).

    M excludes the maps of single positions before mixing (v) and after it (g_i: projections, output gates).

    Attributes:
        sparse: M_ij = 0 for all but few j: those of a window, or of the lines of a grid that meet in i.
        shares_positions: M_ij depends on j - i alone, up to a factor for each i (such as a softmax over the
            positions that exist).
        shares_channels: All channels of a head have the same M.
        dynamic: M depends on x.
        linear: With M frozen, y is linear in x up to a constant.

    Reference: Han et al. 2022, 'On the Connection between Local Attention and Dynamic Depth-wise Convolution'.
    """

    sparse: bool = False
    shares_positions: bool = False
    shares_channels: bool = False
    dynamic: bool = False
    linear: bool = False


class _Frozen:
    """Tensors recorded by `freeze_mixing`, or replayed in their place."""

    def __init__(self, replay: Sequence[Tensor] | None) -> None:
        self.marked: list[Tensor] = []
        self.replay = None if replay is None else iter(replay)

    # The order of calls identifies a tensor, so replaying needs the same forward pass.
    def freeze(self, weights: Tensor) -> Tensor:
        self.marked.append(weights.detach())
        return self.marked[-1] if self.replay is None else next(self.replay)


# A context variable rather than an attribute of mixers: threads do not see each other's.
_frozen: ContextVar[_Frozen | None] = ContextVar("frozen", default=None)


def mark_mixing(weights: Tensor) -> Tensor:
    """Mark what decides how positions mix, and return it unchanged, except inside `freeze_mixing`.

    Args:
        weights: Mixing weights, or what they are made of: queries, keys, logits.
    """
    # A compiled graph is for training and decoding, which freeze nothing
    if torch.compiler.is_compiling():
        return weights
    frozen = _frozen.get()
    return weights if frozen is None else frozen.freeze(weights)


@contextmanager
def freeze_mixing(replay: Sequence[Tensor] | None = None) -> Iterator[list[Tensor]]:
    """Stop gradients at what mixers mark, so that the Jacobian of a mixer is its mixing matrix.

    Args:
        replay: What an earlier block yielded, to be used in place of what is marked, in order: another input then
            meets the mixing matrices of the first.

    Yields:
        The list of what has been marked.
    """
    frozen = _Frozen(replay)
    token = _frozen.set(frozen)  # blocks may be nested
    try:
        yield frozen.marked
    finally:
        _frozen.reset(token)
