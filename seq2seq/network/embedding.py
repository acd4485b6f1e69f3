"""Token embedding and positions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seq2seq.kernels.dropout import Dropout
from seq2seq.settings.tokenizer import parts_of_patch


class Embedding(nn.Module):
    """Token embedding plus position, with dropout: dropout(scale * E[token] + P[position]).

    Shape:
        tokens (B, T) -> (B, T, dim), or (B, T / parts, dim) if a position has several ids, as patches in color do.

    Args:
        table: E, which source, target and output layer may share, its sum with factors, or the projection of patches.
        positions: P, or None.
        dropout: Probability of dropping a number.
        scale: Multiply E by sqrt(dim) (Vaswani et al. 2017, section 3.4).
    """

    def __init__(
        self,
        *,
        table: nn.Embedding | FactorTable | PatchProjection,
        positions: nn.Module | None,
        dropout: float = 0.0,
        scale: bool = True,
    ) -> None:
        super().__init__()
        self.table = table
        self.positions = positions
        self.dropout = Dropout(dropout)
        self.scale = math.sqrt(table.embedding_dim) if scale else 1.0
        self.parts: int = getattr(table, "parts", 1)  # ids of a position

    def forward(self, tokens: Tensor) -> Tensor:
        """Embed tokens (B, T) at positions 0 .. T-1."""
        # The shape is known on the host; reading positions would wait for a GPU
        length = -(-tokens.shape[1] // self.parts)
        self._require(length)
        return self._embed(tokens, torch.arange(length, device=tokens.device))

    def step(self, tokens: Tensor, position: Tensor) -> Tensor:
        """Embed tokens (N,) at position (N,); on a GPU the caller checks the limit (`max_positions`)."""
        # An exported graph cannot read positions
        readable = position.device.type == "cpu" and not torch.compiler.is_exporting()
        if readable and position.numel() and isinstance(self.positions, LearnedPositions):
            self._require(int(position.max()) + 1)
        return self._embed(tokens, position)

    def _require(self, length: int) -> None:
        if isinstance(self.positions, LearnedPositions):
            self.positions.require(length)

    def _embed(self, tokens: Tensor, position: Tensor) -> Tensor:
        x = self.table(tokens) * self.scale  # (..., dim)
        if self.positions is not None:
            x = x + self.positions(position).to(x.dtype)  # (T, dim) broadcasts over sentences
        return self.dropout(x)


class FactorTable(nn.Module):
    """Table of words with factors: E[piece] + sum_f F_f[v_f], F_f[0] = 0.

    token = piece + V (v_1 + (n_1 + 1) (v_2 + (n_2 + 1) ...)) for E (V, dim) and factors of n_f values, see `Tokenizer`.

    Shape:
        tokens (...) -> (..., dim).
    """

    def __init__(self, *, pieces: nn.Embedding, sizes: Sequence[int]) -> None:
        super().__init__()
        self.embedding_dim = pieces.embedding_dim
        self.pieces = pieces
        # The row of 0, then the rows of all F_f
        self.factors = make_table(1 + sum(sizes), self.embedding_dim, 0)
        radixes = [pieces.num_embeddings, *(size + 1 for size in sizes)]
        units = [math.prod(radixes[:place]) for place in range(1, len(radixes))]
        offsets = [sum(sizes[:place]) for place in range(len(sizes))]
        # Not persistent, since they follow from the settings
        self.register_buffer("digits", torch.tensor([units, radixes[1:], offsets]), persistent=False)  # (3, factors)
        self.digits: Tensor

    def forward(self, tokens: Tensor) -> Tensor:
        """Embed tokens (...), int64."""
        units, radixes, offsets = self.digits
        values = tokens[..., None] // units % radixes  # (..., factors)
        rows = values + offsets * (values > 0)
        return self.pieces(tokens % self.pieces.num_embeddings) + self.factors(rows).sum(-2)


class PatchProjection(nn.Module):
    """Embedding of patches: E[token] = W p + b, where a token packs the size^2 * channels values p of a patch.

    token = sum_i level_i 2^(bits i) over the values i of the patch, p_i = 2 level_i / (2^bits - 1) - 1: black is -1,
    white is 1. The embedding equals Conv2d(channels, dim, size, stride=size) over the whole image. A patch of more than
    62 bits has several tokens, `parts`, one after the other.

    Shape:
        tokens (...) -> (..., dim), or (..., T) -> (..., T / parts, dim) with several parts, T rounded up.

    Args:
        dim: Width of the embedding.
        size: Pixels on a patch's side.
        bits: Bits of a level.
        channels: Values of a pixel, 1 for gray, 3 for colors.
    """

    def __init__(self, *, dim: int, size: int, bits: int, channels: int = 1) -> None:
        super().__init__()
        self.embedding_dim = dim
        self.levels = 1 << bits
        self.values = size * size * channels
        self.proj = nn.Linear(self.values, dim)
        self.parts, room = parts_of_patch(self.values, bits)
        # Not persistent, since it follows from the settings
        self.register_buffer("units", 1 << bits * torch.arange(room), persistent=False)
        self.units: Tensor

    def forward(self, tokens: Tensor) -> Tensor:
        """Embed tokens (...), int64."""
        # Quotients, since ONNX has no shift of signed integers
        levels = tokens[..., None] // self.units % self.levels  # (..., values of an id)
        if self.parts > 1:
            # The artificial batches of a rehearsal may end within a patch
            levels = F.pad(levels, (0, 0, 0, -tokens.shape[-1] % self.parts))
            levels = levels.unflatten(-2, (-1, self.parts)).flatten(-2)[..., : self.values]  # (..., T / parts, values)
        return self.proj(levels.to(self.proj.weight.dtype) * (2 / (self.levels - 1)) - 1)


class SinusoidalPositions(nn.Module):
    """Sinusoidal positions, without a limit: P[p, 2i] = sin(p / 10000^(2i/D)), P[p, 2i+1] = cos(p / 10000^(2i/D)).

    With `fairseq`, as in fairseq, M2M-100 and NLLB: P[p, i] = sin((p + 2) r^i), P[p, D/2 + i] = cos((p + 2) r^i) with
    r = 10000^(-1 / (D/2 - 1)).

    Reference:
        Vaswani et al. 2017, section 3.5.
    """

    def __init__(self, *, dim: int, fairseq: bool = False) -> None:
        super().__init__()
        if dim % 2:
            raise ValueError(f"sinusoidal positions need an even dim, not {dim}; or set model.positions=learned")
        self.fairseq = fairseq
        half = dim // 2
        exponents = [i / max(half - 1, 1) if fairseq else 2 * i / dim for i in range(half)]
        # (D / 2,), in float32 even if torch's default is narrower
        rate = torch.tensor([10000.0**-exponent for exponent in exponents], dtype=torch.float32)
        self.register_buffer("rate", rate, persistent=False)
        self.rate: Tensor

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """Move with the model, but keep the rates exact if its weights become bfloat16."""
        rate = self.rate
        super()._apply(fn, recurse)
        if self.rate.dtype in (torch.bfloat16, torch.float16):
            self.rate = rate.to(self.rate.device)
        return self

    def forward(self, position: Tensor) -> Tensor:
        """Encode position (...) -> (..., dim)."""
        if self.fairseq:
            # There the first position is after the id of padding, 1
            angle = (position[..., None] + 2).float() * self.rate
            return torch.cat([angle.sin(), angle.cos()], dim=-1)
        # (..., D / 2), in float32: bfloat16 cannot tell large positions apart
        angle = position[..., None].float() * self.rate
        return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)  # sine and cosine alternate


class GridPositions(nn.Module):
    """Positions on a grid that is read row by row: [P_row; P_column], each sinusoidal with half of dim.

    Args:
        dim: Width of the embedding; must be divisible by 4.
        width: Columns of the grid.
    """

    def __init__(self, *, dim: int, width: int) -> None:
        super().__init__()
        if dim % 4:
            raise ValueError(f"positions on a grid need a dim divisible by 4, not {dim}; change model.dim")
        self.axis = SinusoidalPositions(dim=dim // 2)
        self.width = width

    def forward(self, position: Tensor) -> Tensor:
        """Encode position (...) = row * width + column -> (..., dim)."""
        row = position // self.width
        column = position % self.width
        return torch.cat([self.axis(row), self.axis(column)], -1)


class LearnedPositions(nn.Module):
    """Learned positions: P[p], for p < `max_len`, is a parameter."""

    def __init__(self, *, dim: int, max_len: int) -> None:
        super().__init__()
        self.table = nn.Embedding(max_len, dim)
        nn.init.normal_(self.table.weight, std=dim**-0.5)

    def forward(self, position: Tensor) -> Tensor:
        """Encode position (...) -> (..., dim)."""
        return self.table(position)

    def require(self, length: int) -> None:
        """Raise ValueError if there are fewer than `length` positions, since a GPU gives no useful error."""
        if length > self.table.num_embeddings:
            raise ValueError(
                f"a sequence of {length} tokens exceeds the {self.table.num_embeddings} learned positions; raise "
                "model.max_len, shorten the input, or train with model.positions=sinusoidal"
            )


def make_positions(kind: str, *, dim: int, max_len: int) -> nn.Module | None:
    """Make a "sinusoidal", "fairseq" or "learned" position encoding, or None for "none"."""
    if kind == "none":
        return None
    if kind == "learned":
        return LearnedPositions(dim=dim, max_len=max_len)
    return SinusoidalPositions(dim=dim, fairseq=kind == "fairseq")


def make_table(vocab_size: int, dim: int, pad_id: int) -> nn.Embedding:
    """Draw a token table (vocab_size, dim) from N(0, 1/dim), zero at padding."""
    table = nn.Embedding(vocab_size, dim, padding_idx=pad_id)
    # Entries scaled by sqrt(dim), and logits of a tied output layer, have variance 1
    nn.init.normal_(table.weight, std=dim**-0.5)
    with torch.no_grad():
        table.weight[pad_id].zero_()
    return table
