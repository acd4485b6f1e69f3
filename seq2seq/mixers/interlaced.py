"""Attention within columns, then within rows of a grid: a dense mixing matrix as the product of two sparse ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from seq2seq.kernels.attention import attention
from seq2seq.kernels.relative_positions import require_axes, seen_in_line, to_grid
from seq2seq.mixers.criss_cross import same_lines
from seq2seq.mixers.past import attend_to_past
from seq2seq.mixers.projections import attention_inputs, merge, projection, split
from seq2seq.network.introspection import MixingProperties, mark_mixing
from seq2seq.network.mixer import SelfMixer, real_positions, require_divisible, require_probability
from seq2seq.network.state import Cache, Device, DType


class Interlaced(SelfMixer):
    """Attention within the columns of a grid, then within its rows.

    M = R C, R_qk = softmax over k in q's row, C_qk over k in q's column of x_q' W_q' W_k x_k / sqrt(D / H).

    y = M x W_v W_o; R and C have queries and keys of their own. Position p lies at row p // w, column p % w: a row is a
    block of w positions, a column every w-th position. R and C are sparse, and Kronecker products with an identity if
    lines share their weights; M is dense, dynamic, shared by the D / H channels of a head. Causal layers read the past
    of both lines: position t reads all rows up to its own, in the columns up to its own.

    Args:
        grid_width: Columns w; a source that is a grid replaces it by its own.
        dropout: Probability of dropping an attention weight, of R and of C.

    Cost:
        6 D^2 parameters, O(T (w + T / w) D + T D^2) time, O(T D) state.

    Reference:
        Huang et al. 2019, 'Interlaced Sparse Self-Attention for Semantic Segmentation'; Ho et al.
        2019, 'Axial Attention in Multidimensional Transformers'; Han et al. 2022 (Kronecker
        products).
    """

    properties = MixingProperties(shares_channels=True, dynamic=True, linear=True)

    def __init__(self, *, dim: int, causal: bool, num_heads: int, grid_width: int, dropout: float = 0.0) -> None:
        super().__init__(dim=dim, causal=causal)
        require_divisible(dim, num_heads)
        require_axes(grid_width, causal=False)
        self.num_heads = num_heads
        self.grid_width = grid_width
        self.dropout = require_probability(dropout, "attention dropout")
        # Queries and keys of the columns, of the rows, and values
        self.inner = attention_inputs(dim, *[dim] * 5)
        self.out = projection(dim, dim)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend within x (B, T, D)."""
        mask = real_positions(x, mask)
        *routing, value = (to_grid(part, self.grid_width) for part in self.inner(x).chunk(5, -1))  # (B, rows, w, D)
        query, key, row_query, row_key = (mark_mixing(part) for part in routing)
        real = to_grid(mask[:, :, None], self.grid_width)[..., 0]  # (B, rows, w)
        # Each line of the grid is a separate sequence; columns come first, (B, w, rows, D)
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        value = self._attend(query, key, value, real.transpose(1, 2)).transpose(1, 2)
        y = self._attend(row_query, row_key, value, real)  # (B, rows, w, D)
        return self.out(y.flatten(1, 2)[:, : x.shape[1]])  # cut to T

    @classmethod
    def grid_values(cls, values: Mapping[str, Any], columns: int) -> dict[str, Any]:
        """Set grid_width to the columns of the source's grid."""
        return {**values, "grid_width": columns}

    class State(NamedTuple):
        """Keys and values of the past, side by side, for columns and for rows, 2 D numbers per slot each."""

        columns: Cache
        rows: Cache

    def empty_state(self, batch_size: int, max_len: int, *, device: Device = None, dtype: DType = None) -> State:
        """Return two empty caches."""
        columns, rows = (Cache.empty(batch_size, max_len, 2 * self.dim, device=device, dtype=dtype) for _ in range(2))
        return self.State(columns, rows)

    def step(self, x: Tensor, state: State, position: Tensor) -> tuple[Tensor, State]:
        """Attend to the past of the column, then, with the result as the newest value, to the past of the row."""
        query, key, row_query, row_key, value = self.inner(x).chunk(5, -1)
        value = self._read(state.columns, 1, query, key, value, position)
        return self.out(self._read(state.rows, 0, row_query, row_key, value, position)), state

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, real: Tensor) -> Tensor:
        """Attend within each line of (B, lines, n, D); real (B, lines, n) is False at padding."""
        seen = seen_in_line(real, causal=self.causal)[:, :, None]  # (B, lines, 1, n, n)
        q, k, v = (split(part, self.num_heads) for part in (q, k, v))  # (B, lines, H, n, d)
        return merge(attention(q, k, v, mask=seen, dropout=self.dropout if self.training else 0.0))

    def _read(self, past: Cache, axis: int, q: Tensor, k: Tensor, v: Tensor, position: Tensor) -> Tensor:
        """Append k and v (N, D), then attend from q (N, D) to the past of its row (axis 0) or column (1)."""
        inner = torch.cat([q, k, v], -1)  # (N, 3 D)
        (queries, keys), values, visible = attend_to_past(past, inner, position, self.num_heads)
        near = same_lines(position, self.grid_width, visible)[axis] & visible
        return merge(attention(queries, keys, values, mask=near[:, None])).view(q.shape)
