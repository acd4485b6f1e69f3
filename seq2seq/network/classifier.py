"""A decoder without layers, for targets of one token: a linear classifier of the mean of the encoder's output."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from seq2seq.kernels.precision import at_least_float32
from seq2seq.network.mixer import CrossMixer
from seq2seq.network.model import Decoder, DecoderLayer, EmptySlot, Sublayer
from seq2seq.network.state import NoState


class Pooled(NamedTuple):
    """The mean over the source's real positions, (B, M)."""

    mean: Tensor


class MeanPooling(CrossMixer[Pooled, NoState]):
    """Mean of the memory at the first position, and a learned vector at all later ones.

    y_0 = mean_s h_s, y_t = e for t > 0. The output layer is a linear classifier of y_0, and learns from e that the end
    of the sequence follows a class. Inputs are not read.

    Args:
        dim: Width M of the memory.

    Reference:
        Cordonnier et al. 2020, 'On the Relationship between Self-Attention and Convolutional Layers', section 4.
    """

    def __init__(self, *, dim: int) -> None:
        super().__init__(dim=dim, memory_dim=dim)
        self.end = nn.Parameter(torch.zeros(dim))

    def project(self, memory: Tensor, memory_mask: Tensor) -> Pooled:
        """Average memory (B, S, M) over the real positions of memory_mask (B, S)."""
        real = memory_mask[:, :, None]
        total = memory.masked_fill(~real, 0.0).sum(1, dtype=at_least_float32(memory.dtype))
        return Pooled((total / real.sum(1)).to(memory.dtype))

    def forward(self, x: Tensor, context: Pooled) -> Tensor:
        """Return the outputs of all positions of x (B, T, ...): (B, T, M)."""
        first = torch.arange(x.shape[1], device=x.device) == 0  # (T,)
        return torch.where(first[:, None], context.mean[:, None], self.end)

    def step(self, x: Tensor, context: Pooled, state: NoState, position: Tensor) -> tuple[Tensor, NoState]:
        """Return the outputs of the hypotheses, (N, M), at position (N,)."""
        first = position.view(len(context.mean), -1, 1) == 0  # (B, beam, 1)
        return torch.where(first, context.mean[:, None], self.end).flatten(0, 1), state


class NoEmbedding(nn.Module):
    """Stand-in for the embedding of a decoder that does not read its tokens: one zero for each."""

    def forward(self, tokens: Tensor) -> Tensor:
        """Return zeros (B, T, 1) for tokens (B, T)."""
        return torch.zeros_like(tokens[..., None], dtype=torch.get_default_dtype())

    def step(self, tokens: Tensor, position: Tensor) -> Tensor:
        """Return zeros (N, 1) for tokens (N,)."""
        return self(tokens)


def class_decoder(dim: int) -> Decoder:
    """Build the decoder of a classifier on an encoder of width `dim`: one layer that pools, without an embedding."""
    read = Sublayer(f=MeanPooling(dim=dim), dim=1, out_dim=dim, norm="none", dropout=0.0, residual=False)
    layer = DecoderLayer(mix=EmptySlot(dim=1), read=read, transform=EmptySlot(dim=dim))  # type: ignore[arg-type]
    return Decoder(embedding=NoEmbedding(), layers=[layer], final_norm=False)  # type: ignore[arg-type]
