"""Attention at several resolutions side by side."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from seq2seq.kernels.attention import attention
from seq2seq.mixers.projections import attention_inputs, merge, projection, split
from seq2seq.network.introspection import MixingProperties, mark_mixing
from seq2seq.network.mixer import SelfMixer, real_positions, require_divisible, require_probability
from seq2seq.network.state import NoState


class Resolutions(SelfMixer[NoState]):
    """Attention at several resolutions side by side, encoder-only.

    M_h = U_r softmax(P_r Q_h (P_r K_h)' / sqrt(D / H)) P_r, r the resolution of head h.

    P_r takes the mean of each block of r positions, and U_r repeats a block's result for each of them; y = M x W_v W_o,
    so the resolutions exchange information in every layer. Heads are divided evenly among the resolutions. `pyramid`
    lowers the resolution of keys and values only. M is dense, dynamic, shared by the D / H channels of a head.

    Args:
        causal: Must be False: a block's mean would hold the future.
        resolutions: Positions r of a block, the first for the first heads; 1 is attention. Only the first H are used.
        dropout: Probability of dropping the weight of a block.

    Cost:
        4 D^2 parameters, O(T^2 D (sum of 1 / r^2) / S + T D^2) time for S resolutions.

    Reference:
        Wang et al. 2020, 'Deep High-Resolution Representation Learning for Visual Recognition'
        (HRNet: parallel resolutions); Yuan et al. 2021, 'HRFormer' (with attention).
    """

    properties = MixingProperties(shares_channels=True, dynamic=True, linear=True)

    def __init__(
        self, *, dim: int, causal: bool, num_heads: int, resolutions: Sequence[int], dropout: float = 0.0
    ) -> None:
        super().__init__(dim=dim, causal=causal)
        if causal:
            raise ValueError("Resolutions is encoder-only: a block's mean holds the future; choose another decoder")
        require_divisible(dim, num_heads)
        if not resolutions or min(resolutions) < 1:
            raise ValueError(f"resolutions is {list(resolutions)}; list one block size or more, each 1 or more")
        self.num_heads = num_heads
        self.resolutions = list(resolutions)
        self.dropout = require_probability(dropout, "attention dropout")
        self.qkv = attention_inputs(dim, dim, dim, dim)
        self.out = projection(dim, dim)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend within x (B, T, D) at each resolution."""
        mask = real_positions(x, mask)
        query, key, value = self.qkv(x).chunk(3, -1)
        heads = (split(part, self.num_heads) for part in (mark_mixing(query), mark_mixing(key), value))
        # Each resolution has some of the heads, (B, h, T, d), or no head if there are more resolutions than heads
        parts = zip(*(part.tensor_split(len(self.resolutions), 1) for part in heads), self.resolutions, strict=True)
        y = [self._attend(q, k, v, mask, size) for q, k, v, size in parts if q.shape[1]]
        return self.out(merge(torch.cat(y, 1)))

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, size: int) -> Tensor:
        """Attend with blocks of `size` positions of q, k, v (B, h, T, d), and repeat the results."""
        length = q.shape[2]
        real = _blocks(mask[:, None, :, None], size)  # (B, 1, blocks, size, 1)
        count = real.sum(3)  # (B, 1, blocks, 1)
        # A block that has only padding has the mean 0
        q, k, v = (_blocks(part, size).mul(real).sum(3) / count.clamp(min=1).to(part.dtype) for part in (q, k, v))
        dropout = self.dropout if self.training else 0.0
        y = attention(q, k, v, mask=(count > 0).transpose(-1, -2), dropout=dropout)  # (B, h, blocks, d)
        return y.repeat_interleave(size, 2)[:, :, :length]


def _blocks(x: Tensor, size: int) -> Tensor:
    """Cut (B, h, T, d) into blocks (B, h, blocks, size, d), zeros after the end."""
    return F.pad(x, (0, 0, 0, -x.shape[2] % size)).unflatten(2, (-1, size))
