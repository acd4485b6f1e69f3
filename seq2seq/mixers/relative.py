"""Attention that sees positions relative to each other (Dai et al. 2019), on a line or on a grid."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from seq2seq.kernels.attention import attention
from seq2seq.kernels.attention.weights import weigh
from seq2seq.kernels.precision import at_least_float32
from seq2seq.kernels.relative_positions import extents, offsets, require_axes, slot_offsets
from seq2seq.mixers.past import Past, attend_to_past
from seq2seq.mixers.projections import attention_inputs, merge, projection, split
from seq2seq.network.introspection import MixingProperties, mark_mixing
from seq2seq.network.mixer import SelfMixer, real_positions, require_divisible, require_positive, require_probability
from seq2seq.network.state import Cache, Device, DType

ENCODINGS = ("learned", "sinusoidal")


class Relative(SelfMixer[Past]):
    """Attention that sees positions relative to each other, on a line or a grid.

    M_qk = softmax_k(((x_q'W_q' + u')W_k x_k + (x_q'W_q' + v')W_r r_d) / sqrt(D / H)).

    d = k - q; u and v per head, r shared by the heads. M is dense, shared by the D / H channels of
    a head. Published without positions in the embeddings, which `model.positions` adds here.

    Without u and v, the scores of position i are (Theta_d + Theta) x_i, the dynamic and static weights of Han et al.:
    Theta_d has the rows x_k'W_k'W_q, as dot-product attention, and Theta the rows r_d'W_r'W_q, one for each offset, as
    dynamic convolution.

    Args:
        encoding: r, "learned", or "sinusoidal" as in Transformer-XL.
        max_offset: Learned up to this offset either way; farther offsets share its encoding.
        content: False drops the terms with x and leaves softmax(v'W_r r_d): static weights, the
            same for all positions.
        biases: False drops the terms with u and v and leaves (Theta_d + Theta) x_i.
        grid_width: Columns w of a grid, encoder only: position p lies at row p // w, column p % w,
            and r_d = [r_row; r_column], D / 2 numbers each.
        dropout: Probability of dropping an entry of M; without content, a causal batch shares M.

    Cost:
        5 D^2 + 2 D parameters (3 D^2 + D without content, 5 D^2 without biases), and D (2 max_offset + 1), when causal
        D (max_offset + 1), where learned; O(T^2 D + T D^2) time, O(T D) state.

    Reference:
        Dai et al. 2019, 'Transformer-XL', section 3.3; Cordonnier et al. 2020, section 4 (grid); Han et al. 2022,
        appendix C (without biases).
    """

    def __init__(
        self,
        *,
        dim: int,
        causal: bool,
        num_heads: int,
        encoding: str = "learned",
        max_offset: int = 64,
        content: bool = True,
        biases: bool = True,
        grid_width: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(dim=dim, causal=causal)
        self.head_dim = require_divisible(dim, num_heads)
        self.axes = require_axes(grid_width, causal=causal)
        if encoding not in ENCODINGS:
            raise ValueError(f"encoding is {encoding!r}; choose one of {', '.join(ENCODINGS)}")
        if not content and not biases:
            raise ValueError("biases=false and content=false leave no scores; set one of them to true")
        self.num_heads = num_heads
        self.content = content
        self.grid_width = grid_width
        self.encoding = encoding
        self.max_offset = require_positive(max_offset, "max_offset")
        self.dropout = require_probability(dropout, "attention dropout")
        self.properties = MixingProperties(
            shares_positions=not content, shares_channels=True, dynamic=content, linear=True
        )
        parts = self.axes * (2 if encoding == "sinusoidal" else 1)  # sines and cosines halve an axis's numbers
        if dim % parts:
            raise ValueError(f"dim {dim} is not divisible by {parts}, as {encoding} encodings need; change model.dim")
        self.inner = attention_inputs(dim, dim, dim, dim) if content else projection(dim, dim)
        self.place = attention_inputs(dim, dim)  # W_r: the keys of offsets
        self.out = projection(dim, dim)
        # Biases of the query: u for content, v for offsets
        self.u = nn.Parameter(torch.empty(num_heads, self.head_dim)) if content and biases else None
        self.v = nn.Parameter(torch.empty(num_heads, self.head_dim)) if biases else None
        for vector in (self.u, self.v):
            if vector is not None:
                nn.init.xavier_uniform_(vector)
        rows = max_offset + 1 if causal else 2 * max_offset + 1  # d = -max_offset .. 0, or .. max_offset
        self.r = nn.Parameter(torch.randn(self.axes, rows, dim // self.axes)) if encoding == "learned" else None

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend within x (B, T, D); a causal mixer needs no mask, since padding is on the right."""
        mask = real_positions(x, mask)
        *query_key, v = (split(part, self.num_heads) for part in self.inner(x).split(self.dim, -1))
        position = torch.arange(x.shape[1], device=x.device)
        offset = offsets(position, position, self.grid_width)  # (axes, T, T)
        extent = extents(x.shape[1], self.grid_width)  # largest |d| along each axis
        allowed = None if self.causal else mask[:, None, None, :]  # (B, 1, 1, T)
        return self.out(merge(self._attend([mark_mixing(part) for part in query_key], v, offset, extent, allowed)))

    @classmethod
    def grid_values(cls, values: Mapping[str, Any], columns: int) -> dict[str, Any]:
        """Fill in grid_width where the settings leave it null."""
        width = values.get("grid_width")
        return {**values, "grid_width": columns if width is None else width}

    def empty_state(self, batch_size: int, max_len: int, *, device: Device = None, dtype: DType = None) -> Past:
        """Return an empty cache of keys and values."""
        width = 2 * self.dim if self.content else self.dim
        return Past(Cache.empty(batch_size, max_len, width, device=device, dtype=dtype))

    def step(self, x: Tensor, state: Past, position: Tensor) -> tuple[Tensor, Past]:
        """Append this position's key and value, then attend to the hypothesis's own past."""
        query_key, v, visible = attend_to_past(state.past, self.inner(x), position, self.num_heads)
        _, beam, slots = visible.shape
        offset = slot_offsets(position, slots, beam)[:, :, None]  # (1, B, 1, beam, slots)
        y = self._attend(query_key, v, offset, extents(slots // beam), visible[:, None])
        return self.out(merge(y)).view(x.shape[0], -1), state

    def _attend(
        self, query_key: list[Tensor], v: Tensor, offset: Tensor, extent: tuple[int, ...], mask: Tensor | None
    ) -> Tensor:
        """Mix values (B, H, S, d) by content, if there are queries and keys, and by offset (axes, ..., T, S)."""
        dropout = self.dropout if self.training else 0.0
        causal = self.causal and mask is None  # a step has a mask
        if not query_key:
            assert self.v is not None
            scores = mark_mixing(self._scores(self.v[:, None], offset, extent))
            return weigh(scores, v, mask=mask, causal=causal, dropout=dropout)
        q, k = query_key  # (B, H, T, d), (B, H, S, d)
        scores = mark_mixing(self._scores(q if self.v is None else q + self.v[:, None], offset, extent))
        # SDPA scales the product of content; `_scores` scales the product of offsets
        if self.u is not None:
            q = (q + mark_mixing(self.u)[:, None]).to(k.dtype)
        return attention(q, k, v, bias=scores, mask=mask, causal=causal, dropout=dropout)

    def _scores(self, query: Tensor, offset: Tensor, extent: tuple[int, ...]) -> Tensor:
        """Compute query' W_r r_d / sqrt(D / H), summed over axes: query (..., H, T or 1, d) -> (..., H, T, S)."""
        query = query * self.head_dim**-0.5
        total = None
        # Products with each distinct offset, then a gather: T S encodings of width d would be too large
        for axis, (d, size) in enumerate(zip(offset, extent, strict=True)):
            every = query @ self._encodings(axis, size, query)  # (..., H, T or 1, offsets)
            # Column 0 is offset -size; the future of a causal mixer, masked later, reads the column of offset 0
            index = d.clamp(-size, 0 if self.causal else size) + size
            shape = torch.broadcast_shapes(every.shape[:-1], index.shape[:-1])
            scores = every.expand(*shape, -1).gather(-1, index.expand(*shape, -1))
            total = scores if total is None else total + scores
        assert total is not None
        return total

    def _encodings(self, axis: int, size: int, like: Tensor) -> Tensor:
        """Compute W_r r_d of each head for d = -size .. size of one axis (.. 0 where causal): (H, D / H, offsets)."""
        d = torch.arange(-size, 1 if self.causal else size + 1, device=like.device)  # (offsets,)
        if self.r is not None:
            r = self.r[axis][d.clamp(-self.max_offset, self.max_offset) + self.max_offset]
        else:
            r = _sinusoids(d, self.dim // self.axes, self.place.weight.dtype)
        # W_r [r_row; r_column] is a sum over axes: each axis has its own columns of W_r
        weight = self.place.weight.chunk(self.axes, 1)[axis]
        return nn.functional.linear(r, weight).to(like.dtype).unflatten(-1, (self.num_heads, -1)).permute(1, 2, 0)


def _sinusoids(position: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    """Compute [sin(p w_i); cos(p w_i)], w_i = 10000^(-2i/dim), of position (M,): (M, dim)."""
    exact = at_least_float32(dtype)
    rate = torch.arange(0, dim, 2, device=position.device, dtype=exact) * (-math.log(10000.0) / dim)  # log w
    angle = position[:, None] * rate.exp()  # (M, dim / 2)
    return torch.cat([angle.sin(), angle.cos()], -1).to(dtype)
