"""The output layer of some tokens alone, for decoding with lists of tokens.

Shapes: B sentences, N = B * beam hypotheses, D width, U tokens.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class NarrowOutput:
    """Output layer of U tokens: (N, D) -> (N, U), -inf for tokens that are not in a sentence's own list.

    Args:
        output: Of the whole vocabulary.
        ids: The tokens, (U,).
        allowed: Which of them are in the list of each sentence, (B, U).
    """

    def __init__(self, output: nn.Linear, ids: Tensor, allowed: Tensor) -> None:
        self.weight = output.weight[ids]  # (U, D)
        self.bias = None if output.bias is None else output.bias[ids]
        self.forbidden = ~allowed[:, None]  # (B, 1, U)

    def __call__(self, x: Tensor) -> Tensor:
        """Project x (N, D), a sentence's hypotheses adjacent."""
        logits = F.linear(x, self.weight, self.bias).unflatten(0, (len(self.forbidden), -1))  # (B, beam, U)
        return logits.masked_fill_(self.forbidden, float("-inf")).flatten(0, 1)
