"""The output layer of some tokens alone, for decoding with lists of tokens.

Shapes: B sentences, N = B * beam hypotheses, D width, U tokens.
"""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn


class NarrowOutput:
    """Output layer of U tokens: (N, D) -> (N, U), -inf for tokens that are not in a sentence's own list.

    Args:
        project: From (N, D) to the logits of these tokens.
        allowed: Which of them are in the list of each sentence, (B, U).
    """

    def __init__(self, project: Callable[[Tensor], Tensor], allowed: Tensor) -> None:
        self.project = project
        self.forbidden = ~allowed[:, None]  # (B, 1, U)

    def __call__(self, x: Tensor) -> Tensor:
        """Project x (N, D), a sentence's hypotheses adjacent."""
        logits = self.project(x).unflatten(0, (len(self.forbidden), -1))  # (B, beam, U)
        return logits.masked_fill_(self.forbidden, float("-inf")).flatten(0, 1)


def rows_of(output: nn.Linear, ids: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the part of an output layer that computes the logits of the tokens ids (U,)."""
    weight = output.weight[ids]  # (U, D)
    bias = None if output.bias is None else output.bias[ids]
    return lambda x: F.linear(x, weight, bias)
