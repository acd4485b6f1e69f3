"""Attention to the source by Gaussians of the position, without content."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from seq2seq.kernels.attention.weights import allow, weigh
from seq2seq.kernels.precision import at_least_float32
from seq2seq.mixers.memory import Values, shortened_rate
from seq2seq.mixers.projections import merge, projection, split, with_zero_gradient
from seq2seq.network.introspection import mark_mixing
from seq2seq.network.mixer import CrossMixer, require_divisible, require_probability
from seq2seq.network.state import NoState


class FixedGaussian(CrossMixer[Values, NoState]):
    """Attention to the source by a learned Gaussian per head, without content.

    M_ts = softmax_s(-a (s - r t - o)^2), y = M h W_v W_o, with rate r, center o and sharpness a per head.

    M depends on the length of a sentence only. It is the quadratic encoding by which attention is a convolution, along
    a line of slope r. Beyond the end of the source the last positions have all the weight. At first r is `rate`, o is
    -1, 0 or 1 in turns, and a falls geometrically from 1/2 for the first head to 1/512 for the last.
    Published with constant centers and widths (You et al. 2020), here learned.

    Args:
        rate: First value of r, positions of the source for each position of the target; an encoder whose stages
            shorten the source divides it.

    Cost:
        M D + D^2 + 3 H parameters, O(T S D) time, no state.

    Reference:
        You et al. 2020, 'Hard-Coded Gaussian Attention for Neural Machine Translation'; Cordonnier et al.
        2020, 'On the Relationship between Self-Attention and Convolutional Layers'.
    """

    def __init__(self, *, dim: int, memory_dim: int, num_heads: int, dropout: float = 0.0, rate: float = 1.0) -> None:
        super().__init__(dim=dim, memory_dim=memory_dim)
        require_divisible(dim, num_heads)
        if rate <= 0:
            raise ValueError(f"rate is {rate}; choose a number above 0, the source positions per target position")
        self.num_heads = num_heads
        self.dropout = require_probability(dropout, "attention dropout")
        self.value = projection(memory_dim, dim)
        self.out = projection(dim, dim)
        self.rate = rate
        # r - rate: bfloat16 has no number between 1 and 1.008, and t multiplies the error
        self.rate_offsets = nn.Parameter(torch.zeros(num_heads))
        self.centers = nn.Parameter(torch.arange(num_heads) % 3 - 1.0)  # o
        self.log_sharpness = nn.Parameter(-math.log(2.0) * torch.linspace(1.0, 9.0, num_heads))  # log a

    shortened_values = staticmethod(shortened_rate)

    def project(self, memory: Tensor, memory_mask: Tensor) -> Values:
        """Compute values of memory (B, S, M)."""
        return Values(split(self.value(memory), self.num_heads), memory_mask)

    def forward(self, x: Tensor, context: Values) -> Tensor:
        """Read the source at each position of x (B, T, D), whose content is not read."""
        y = self._read(torch.arange(x.shape[1], device=x.device)[None], context)
        return with_zero_gradient(y, x)

    def introspect(self, x: Tensor, context: Values) -> dict[str, Tensor]:
        """Return each head's center, counted from r t, its sharpness and its rate, (H,) each."""
        return {"centers": self.centers, "sharpness": self.log_sharpness.exp(), "rates": self.rate + self.rate_offsets}

    def read_weights(self, x: Tensor, context: Values) -> Tensor:
        """Return M of each sentence, (B, H, T, S)."""
        position = torch.arange(x.shape[1], device=x.device)[None]
        return allow(self._scores(position, context.mask.shape[1]), context.mask[:, None, None], False).softmax(-1)

    def step(self, x: Tensor, context: Values, state: NoState, position: Tensor) -> tuple[Tensor, NoState]:
        """Read the source at one position (N,); a sentence's hypotheses are its queries."""
        return self._read(position.view(context.mask.shape[0], -1), context).flatten(0, 1), NoState()

    def _read(self, position: Tensor, context: Values) -> Tensor:
        """Read the source at position (B or 1, n): (B, n, D)."""
        scores = mark_mixing(self._scores(position, context.mask.shape[1]))
        dropout = self.dropout if self.training else 0.0
        return self.out(merge(weigh(scores, context.value, mask=context.mask[:, None, None], dropout=dropout)))

    def _scores(self, position: Tensor, length: int) -> Tensor:
        """Compute -a (s - r t - o)^2 of t = position (B or 1, n), (B or 1, H, n, S), in float32 at least."""
        dtype = at_least_float32(self.centers.dtype)
        offsets, centers, log_sharpness = (
            part.to(dtype)[:, None, None] for part in (self.rate_offsets, self.centers, self.log_sharpness)
        )  # (H, 1, 1) each
        source = torch.arange(length, device=position.device)  # (S,)
        # A number times integers would have the default type, which may be bfloat16
        rows = position[:, None, :, None].to(dtype)
        # A difference of whole numbers or halves is exact, so it is taken before adding the offsets
        return -log_sharpness.exp() * ((source - self.rate * rows) - offsets * rows - centers).square()
