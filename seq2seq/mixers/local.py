"""Attention within a window: cost linear in the length, state of constant size."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seq2seq.kernels.attention import attention
from seq2seq.kernels.relative_positions import offsets
from seq2seq.mixers.projections import attention_inputs, projection
from seq2seq.network.introspection import MixingProperties, mark_mixing
from seq2seq.network.mixer import SelfMixer, real_positions, require_divisible, require_positive, require_probability
from seq2seq.network.state import Device, DType


class Local(SelfMixer):
    """Attention within a sliding window or a block.

    M_qk = softmax over the k that q sees of x_q' W_q' W_k x_k / sqrt(D / H) [+ b_{h,k-q}].

    y = M x W_v W_o. The bias b of each offset (`relative_bias`) starts at zero.

    Sliding: q sees |k - q| <= w // 2, or the last w positions when causal, its own included. Blocks: q sees its own
    block (p + shift) // w, or its past in that block when causal; Swin alternates shift between 0 and w / 2. M is
    sparse, dynamic, and shared by the D / H channels of a head.

    Args:
        window: w positions; a sliding window of even w that is not causal has w + 1.
        blocks: Attend within blocks instead of sliding windows.
        shift: Positions by which blocks are shifted, 0 up to window - 1.
        relative_bias: Add a learned bias b for each head and offset to the scores.

    Cost:
        4 D^2 parameters, and H for each offset with relative_bias; O(T w D + T D^2) time, 2 w D
        numbers of state: the last w keys and values.

    Reference:
        Luong et al. 2015; Ramachandran et al. 2019; Beltagy et al. 2020 (sliding); Liu et al. 2021,
        'Swin Transformer' (blocks, relative bias); Han et al. 2022 (blocks against depthwise convolution).
    """

    state_growth = "constant"
    properties = MixingProperties(sparse=True, shares_channels=True, dynamic=True, linear=True)

    def __init__(
        self,
        *,
        dim: int,
        causal: bool,
        num_heads: int,
        window: int,
        blocks: bool = False,
        shift: int = 0,
        relative_bias: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(dim=dim, causal=causal)
        require_divisible(dim, num_heads)
        require_positive(window, "window")
        if not 0 <= shift < (window if blocks else 1):
            raise ValueError(f"shift is {shift}; choose 0 up to window - 1, {window - 1}, and blocks=true, or 0")
        self.num_heads = num_heads
        self.window = window
        self.blocks = blocks
        self.shift = shift
        self.dropout = require_probability(dropout, "attention dropout")
        self.qkv = attention_inputs(dim, dim, dim, dim)
        self.out = projection(dim, dim)
        # (offsets, H), the most negative offset first; zeros: plain attention at first
        before, after = (window - 1, 0 if causal else window - 1) if blocks else self._reach()
        self.first_offset = -before
        self.bias = nn.Parameter(torch.zeros(before + 1 + after, num_heads)) if relative_bias else None

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend within x (B, T, D), block by block if x is longer than the keys of one block."""
        mask = real_positions(x, mask)
        q, k, v = (part.unflatten(-1, (self.num_heads, -1)) for part in self.qkv(x).chunk(3, -1))  # (B, T, H, D / H)
        # Cutting pays only for sentences longer than the keys of one block; an exported graph has no branch
        before, after = self._reach()
        whole = torch.compiler.is_exporting() or x.shape[1] <= before + self.window + after
        mix = self._whole if whole else self._blocked
        return self.out(mix(mark_mixing(q), mark_mixing(k), v, mask).flatten(2))  # (B, T, H, d) -> (B, T, D)

    def _whole(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """Attend with all queries (B, T, H, d) to all keys, which costs T^2."""
        position = torch.arange(q.shape[1], device=q.device)
        allowed = self._allowed(position, position, mask[:, None])  # (B, T, T)
        return self._attend(q, k, v, allowed, self._bias(offsets(position, position)[0]))

    def _blocked(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """Attend with each block of w queries (B, T, H, d) to the span of keys that any of them sees."""
        batch_size = q.shape[0]
        length = q.shape[1]
        window = self.window
        before, after = self._reach()
        span = before + window + after  # keys of a block
        count = -(-(length + self.shift) // window)  # blocks, the first of which may begin before the sentence
        rest = count * window - self.shift - length  # after the last position
        sides = (self.shift + before, rest + after)
        # Pairs of F.pad go from the last axis backwards: d, H, then T
        q = F.pad(q, (0, 0, 0, 0, self.shift, rest)).reshape(-1, window, *q.shape[2:])  # (B blocks, w, H, d)
        k, v = (F.pad(part, (0, 0, 0, 0, *sides)).unfold(1, span, window) for part in (k, v))  # (B, blocks, H, d, span)
        k, v = (part.permute(0, 1, 4, 2, 3).flatten(0, 1) for part in (k, v))
        # Positions of queries and keys; those outside the sentence are masked
        first = torch.arange(count, device=q.device)[:, None] * window - self.shift
        query = first + torch.arange(window, device=q.device)  # (blocks, w)
        key = first + torch.arange(-before, window + after, device=q.device)  # (blocks, span)
        allowed = self._allowed(query, key, F.pad(mask, sides).unfold(1, span, window)[:, :, None]).flatten(0, 1)
        bias = self._bias(offsets(query[0], key[0])[0])  # the same for every block, (H, w, span)
        y = self._attend(q, k, v, allowed, bias).reshape(batch_size, -1, *q.shape[2:])  # (B, blocks w, H, d)
        return y[:, self.shift : self.shift + length]  # without the padding of either side

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, allowed: Tensor, bias: Tensor | None) -> Tensor:
        """Attend with q (B, Q, H, d) to k and v (B, K, H, d) where allowed (B, Q, K), under bias (..., H, Q, K)."""
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))  # (B, H, Q or K, d)
        dropout = self.dropout if self.training else 0.0
        y = attention(q, k, v, bias=bias, mask=allowed[:, None], dropout=dropout)  # (B, H, Q, d)
        return y.transpose(1, 2)

    def _bias(self, offset: Tensor) -> Tensor | None:
        """Look up b of offset (..., Q, K): (..., H, Q, K); offsets outside the window are masked later."""
        if self.bias is None:
            return None
        index = (offset - self.first_offset).clamp(0, len(self.bias) - 1)
        return F.embedding(index, mark_mixing(self.bias)).movedim(-1, -3)

    class State(NamedTuple):
        """A ring of the last w keys and values side by side, (N, w, 2 D): position p is at (p + shift) mod w."""

        past: Tensor

    def empty_state(self, batch_size: int, max_len: int, *, device: Device = None, dtype: DType = None) -> State:
        """Return an empty ring."""
        return self.State(torch.zeros(batch_size, self.window, 2 * self.dim, device=device, dtype=dtype))

    def step(self, x: Tensor, state: State, position: Tensor) -> tuple[Tensor, State]:
        """Overwrite the oldest key and value with this position's, then attend to the visible part of the ring."""
        query, key_value = self.qkv(x).split([self.dim, 2 * self.dim], -1)
        slot = (position + self.shift) % self.window  # (N,)
        ring = torch.arange(self.window, device=x.device)
        here = (ring == slot[:, None])[:, :, None]  # (N, w, 1)
        past = torch.where(here, key_value[:, None].to(state.past.dtype), state.past)
        time = position[:, None] - (slot[:, None] - ring) % self.window  # (N, w): position of each slot
        # (N, w); slots not yet written have negative times
        visible = (time >= 0) & self._sees(position[:, None], time)
        q, k, v = (
            part.unflatten(-1, (self.num_heads, -1)) for part in (query[:, None], *past.to(query.dtype).chunk(2, -1))
        )
        bias = self._bias((time - position[:, None])[:, None])  # (N, H, 1, w)
        return self.out(self._attend(q, k, v, visible[:, None], bias).flatten(1)), self.State(past)

    def _reach(self) -> tuple[int, int]:
        """Return how many positions before and after a block of w its queries see."""
        if self.blocks:
            return 0, 0
        return (self.window - 1, 0) if self.causal else (self.window // 2, self.window // 2)

    def _sees(self, query: Tensor, key: Tensor) -> Tensor:
        """Return True where the query's position sees the key's, broadcast."""
        if self.blocks:
            near = (query + self.shift) // self.window == (key + self.shift) // self.window
            return near & (key <= query) if self.causal else near
        before, after = self._reach()
        return (key >= query - before) & (key <= query + after)

    def _allowed(self, query: Tensor, key: Tensor, real: Tensor) -> Tensor:
        """Return a mask (B, ..., Q, K): True for real keys in the window, and for a position's own key."""
        query = query[..., :, None]
        key = key[..., None, :]
        # A row of padding without any key would be NaN after the softmax
        return (self._sees(query, key) & real) | (query == key)
