"""Introspection of mixers: declared properties of the mixing matrix, and gradients with the matrix frozen."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True)
class MixingProperties:
    """Properties of a mixer's mixing matrix M: y_i = g_i(sum_j M_ij(x) v(x_j)).

    M excludes the position-wise maps before mixing (v) and after it (g_i), such as projections and output gates.

    Attributes:
        sparse: M_ij = 0 for most j, such as j outside a window, or outside the row and column of i on a grid.
        shares_positions: M_ij depends on j - i only, up to a factor for each i (such as a softmax's denominator).
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


# The tensors that `record_mixing` or `freeze_mixing` has recorded; if they are frozen, the tensors still to replay.
# A context variable, so that threads do not see each other's tensors.
_marked: ContextVar[tuple[list[Tensor], bool, Iterator[Tensor] | None] | None] = ContextVar("marked", default=None)


def mark_mixing(weights: Tensor) -> Tensor:
    """Mark mixing weights, or the queries, keys or logits behind them, and return them unchanged.

    Inside `freeze_mixing` they are detached or replayed.
    """
    # Compiled graphs serve training and decoding, where nothing is recorded
    if torch.compiler.is_compiling() or (recording := _marked.get()) is None:
        return weights
    marked, frozen, replay = recording
    marked.append(weights.detach() if frozen else weights)
    # Tensors are identified by the order of calls, so a replay needs the same forward pass
    return marked[-1] if replay is None else next(replay)


@contextmanager
def _recorded(*, frozen: bool, replay: Sequence[Tensor] | None = None) -> Iterator[list[Tensor]]:
    marked: list[Tensor] = []
    # Blocks may be nested
    token = _marked.set((marked, frozen, None if replay is None else iter(replay)))
    try:
        yield marked
    finally:
        _marked.reset(token)


def record_mixing() -> AbstractContextManager[list[Tensor]]:
    """Return a context that yields the list of the tensors that are marked in it, with their gradients."""
    return _recorded(frozen=False)


def freeze_mixing(replay: Sequence[Tensor] | None = None) -> AbstractContextManager[list[Tensor]]:
    """Stop gradients at marked tensors, so that the Jacobian of a mixer is its mixing matrix.

    Args:
        replay: Tensors marked in an earlier block, to apply its mixing matrices to another input.

    Returns:
        A context that yields the list of marked tensors.
    """
    return _recorded(frozen=True, replay=replay)
