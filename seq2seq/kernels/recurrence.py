"""A recurrence over positions: a loop, or one operator in an exported graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

State = TypeVar("State", bound=tuple[Tensor, ...])


def over_positions(
    update: Callable[[State, tuple[Tensor, ...]], tuple[State, Tensor]],
    state: State,
    inputs: tuple[Tensor, ...],
    *,
    dim: int,
) -> Tensor:
    """Compute (state, y_t) = update(state, inputs at t) for every position t, and return y stacked along `dim`.

    Args:
        state: State before the first position.
        inputs: Tensors whose axis `dim` is positions, all of the same length.
    """
    if not torch.compiler.is_exporting():
        outputs = []
        for t in range(inputs[0].shape[dim]):
            state, y = update(state, tuple(part.select(dim, t) for part in inputs))
            outputs.append(y)
        return torch.stack(outputs, dim)
    # A loop would fix the number of positions in the graph; torch's scan, a prototype, does not
    from torch._higher_order_ops import scan

    def combine(carry: State, now: tuple[Tensor, ...]) -> tuple[State, Tensor]:
        following, y = update(carry, now)
        # Outputs must not share memory
        return following, y.clone()

    # The operator stacks its outputs along the first axis
    _, outputs = scan(combine, state, tuple(part.movedim(dim, 0) for part in inputs))
    return outputs.movedim(0, dim)
