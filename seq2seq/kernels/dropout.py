"""Dropout that draws eight elements' randomness from one number, since a CPU's generator is its slow part."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seq2seq.kernels.dropconnect import keep_probability, random_bytes


def dropout(x: Tensor, drop: float, *, training: bool = True) -> Tensor:
    """x where kept, scaled by 1 / keep, else 0 (Srivastava et al. 2014); torch's own off the CPU.

    On a CPU the keep probability is rounded to 1/256 and the scale is that of the rounded value, so the mean stays.
    """
    if not training or drop == 0.0:
        return x
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(x, drop)
    keep = keep_probability(drop)
    highest = int(keep * 256) - 1  # uint8 has no 256 to compare with
    mask = (random_bytes(x.shape) <= highest).to(x.dtype)
    return x * mask.mul_(1.0 / keep)


class Dropout(nn.Module):
    """`dropout` as a module: active in training only."""

    def __init__(self, drop: float) -> None:
        super().__init__()
        self.drop = drop

    def forward(self, x: Tensor) -> Tensor:
        """Drop elements of x (...)."""
        return dropout(x, self.drop, training=self.training)

    def extra_repr(self) -> str:
        """The drop probability."""
        return f"{self.drop}"
