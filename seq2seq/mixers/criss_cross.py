"""Attention to a position's row and column in a grid."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from seq2seq.kernels.attention import attention
from seq2seq.kernels.dropout import dropout
from seq2seq.kernels.relative_positions import coordinates, require_axes, seen_in_line, slot_offsets, to_grid
from seq2seq.mixers.past import Past, attend_to_past
from seq2seq.mixers.projections import attention_inputs, merge, projection, split
from seq2seq.network.introspection import MixingProperties, mark_mixing
from seq2seq.network.mixer import SelfMixer, real_positions, require_divisible, require_probability
from seq2seq.network.state import Cache, Device, DType


class CrissCross(SelfMixer[Past]):
    """Attention to the row and the column of a grid in which a position lies.

    M_qk = softmax over the k in q's row or column of x_q' W_q' W_k x_k / sqrt(D / H).

    y = M x W_v W_o. Position p lies at row p // w, column p % w: a row is a block of w positions, a column every w-th
    position. Two layers that are not causal connect all positions, through the corner where a row meets a column.
    Causal layers read the past of the row and the column; even a deep stack of them reads earlier rows only in the
    columns up to its own. M is sparse, dynamic, shared by the D / H channels of a head.

    Args:
        grid_width: Columns w; a source that is a grid replaces it by its own.

    Cost:
        4 D^2 parameters, O(T (w + T / w) D + T D^2) time, O(T D) state.

    Reference:
        Huang et al. 2019, 'CCNet: Criss-Cross Attention for Semantic Segmentation'; Child et al.
        2019, 'Generating Long Sequences with Sparse Transformers' (causal: columns as in their strided
        attention, rows as the blocks of their fixed one).
    """

    properties = MixingProperties(sparse=True, shares_channels=True, dynamic=True, linear=True)

    def __init__(self, *, dim: int, causal: bool, num_heads: int, grid_width: int, dropout: float = 0.0) -> None:
        super().__init__(dim=dim, causal=causal)
        require_divisible(dim, num_heads)
        require_axes(grid_width, causal=False)
        self.num_heads = num_heads
        self.grid_width = grid_width
        self.dropout = require_probability(dropout, "attention dropout")
        self.qkv = attention_inputs(dim, dim, dim, dim)
        self.out = projection(dim, dim)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend within x (B, T, D)."""
        mask = real_positions(x, mask)
        query, key, value = self.qkv(x).chunk(3, -1)
        parts = (to_grid(part, self.grid_width) for part in (mark_mixing(query), mark_mixing(key), value))
        q, k, v = (split(part, self.num_heads) for part in parts)  # (B, rows, H, w, d)
        real = to_grid(mask[:, :, None], self.grid_width)[..., 0]  # (B, rows, w)
        in_row = seen_in_line(real, causal=self.causal)[:, :, None]  # (B, rows, 1, w, w)
        in_column = seen_in_line(real.transpose(1, 2), causal=self.causal)  # (B, w, rows, rows)
        # A position counts itself once, in its row
        itself = torch.eye(in_column.shape[-1], dtype=torch.bool, device=x.device)
        in_column = (in_column & ~itself).transpose(1, 2)[:, :, None]  # (B, rows, 1, w, rows)
        q = q * q.shape[-1] ** -0.5
        across = (q @ k.transpose(-1, -2)).masked_fill(~in_row, float("-inf"))  # (B, rows, H, w, w)
        down = torch.einsum("brhcd,bshcd->brhcs", q, k).masked_fill(~in_column, float("-inf"))
        weights = torch.cat([across, down], -1).softmax(-1).to(v.dtype)  # one softmax over both
        weights = dropout(weights, self.dropout if self.training else 0.0)
        y = weights[..., : self.grid_width] @ v
        y = y + torch.einsum("brhcs,bshcd->brhcd", weights[..., self.grid_width :], v)
        return self.out(merge(y).flatten(1, 2)[:, : x.shape[1]])  # (B, rows w, D), cut to T

    @classmethod
    def grid_values(cls, values: Mapping[str, Any], columns: int) -> dict[str, Any]:
        """Set grid_width to the columns of the source's grid."""
        return {**values, "grid_width": columns}

    def empty_state(self, batch_size: int, max_len: int, *, device: Device = None, dtype: DType = None) -> Past:
        """Return an empty cache of keys and values."""
        return Past(Cache.empty(batch_size, max_len, 2 * self.dim, device=device, dtype=dtype))

    def step(self, x: Tensor, state: Past, position: Tensor) -> tuple[Tensor, Past]:
        """Append this position's key and value, then attend to its row and column in the hypothesis's past."""
        (q, k), v, visible = attend_to_past(state.past, self.qkv(x), position, self.num_heads)
        near = same_lines(position, self.grid_width, visible).any(0) & visible
        return self.out(merge(attention(q, k, v, mask=near[:, None]))).view(x.shape[0], -1), state


def same_lines(position: Tensor, grid_width: int, visible: Tensor) -> Tensor:
    """Return which slots lie in the row, and which in the column, of position (N,): (2, B, beam, slots)."""
    beam = visible.shape[1]
    query = position.view(-1, beam, 1)
    key = query + slot_offsets(position, visible.shape[2], beam)[0]  # (B, beam, slots)
    return coordinates(query, grid_width) == coordinates(key, grid_width)
