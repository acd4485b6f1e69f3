"""Dropout that draws the masks of eight elements from one random number, because a CPU's generator is slow."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seq2seq.kernels.dropconnect import keep_probability, random_bytes


def dropout(x: Tensor, drop: float, *, training: bool = True) -> Tensor:
    """Set elements of x to 0 with probability `drop` and scale the others, so that the mean does not change.

    On a CPU the keep probability is rounded to 1/256; elsewhere this is torch's dropout.

    Reference:
        Srivastava et al. 2014.
    """
    if not training or drop == 0.0:
        return x
    # A GPU draws random numbers fast, and a compiled graph fuses the drawing with other operations
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(x, drop)
    keep = keep_probability(drop)
    highest = int(keep * 256) - 1  # uint8 cannot represent 256
    mask = (random_bytes(x.shape) <= highest).to(x.dtype)  # 1 with probability keep
    # A Python number is not rounded to the type of x
    return (x * mask).mul_(1.0 / keep)


class Dropout(nn.Module):
    """`dropout` as a module: active in training only.

    Args:
        drop: Probability of setting an element to 0.
    """

    def __init__(self, drop: float) -> None:
        super().__init__()
        self.drop = drop

    def forward(self, x: Tensor) -> Tensor:
        """Drop elements of x (...)."""
        return dropout(x, self.drop, training=self.training)

    def extra_repr(self) -> str:
        """Return the drop probability."""
        return f"{self.drop}"
