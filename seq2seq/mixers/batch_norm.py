"""Batch normalization of real positions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from seq2seq.kernels.precision import at_least_float32


class BatchNorm(nn.Module):
    """Batch normalization over real positions: (..., D) -> (..., D).

    y = gamma (x - mean) / sqrt(variance + 1e-5) + beta, mean and variance of each channel over a batch in training, and
    over running means of batches otherwise.

    In training a sentence's output depends on the other sentences of its batch and, in a decoder, on its own future.
    The statistics are of one micro-batch on one device; rank 0 decides the running ones. An update therefore depends
    on `trainer.accumulate` and the number of devices, unlike with any other layer here. Recomputed activations would
    count a batch twice, and sharded ranks would have statistics of their own: both are refused.

    Reference:
        Ioffe & Szegedy 2015, 'Batch Normalization'.
    """

    # Its state changes with each forward pass in training
    counts_batches = True

    mean: Tensor
    variance: Tensor

    def __init__(self, *, dim: int, momentum: float = 0.1) -> None:
        super().__init__()
        self.momentum = momentum
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("variance", torch.ones(dim))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Normalize x (..., D); only positions where mask (...) is True count."""
        exact = at_least_float32(x.dtype)
        mean, variance = self.mean, self.variance
        if self.training:
            real = mask[..., None].to(exact)
            axes = tuple(range(x.dim() - 1))
            count = real.sum().clamp(min=1)
            mean = (x.to(exact) * real).sum(axes) / count  # (D,)
            variance = ((x.to(exact) - mean).square() * real).sum(axes) / count
            with torch.no_grad():
                # Without bias: of n numbers, n - 1 are free
                free = variance * count / (count - 1).clamp(min=1)
                for running, found in ((self.mean, mean), (self.variance, free)):
                    following = running.lerp(found.to(running.dtype), self.momentum)
                    # An update of a batch that is not finite is skipped, and so are its statistics
                    running.copy_(torch.where(following.isfinite(), following, running))
        scale = self.weight.to(exact) * (variance.to(exact) + 1e-5).rsqrt()
        return ((x.to(exact) - mean.to(exact)) * scale + self.bias.to(exact)).to(x.dtype)
