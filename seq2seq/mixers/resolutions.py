"""Attention or convolution at several resolutions side by side."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seq2seq.kernels.attention import attention
from seq2seq.kernels.band_matrix import full_convolution
from seq2seq.mixers.projections import attention_inputs, merge, projection, split
from seq2seq.network.introspection import MixingProperties, mark_mixing
from seq2seq.network.mixer import (
    SelfMixer,
    real_positions,
    require_divisible,
    require_positive,
    require_probability,
)
from seq2seq.network.state import NoState


class Resolutions(SelfMixer[NoState]):
    """Attention or convolution at several resolutions side by side, encoder-only.

    M_h = U_r softmax(P_r Q_h (P_r K_h)' / sqrt(D / H)) P_r, r the resolution of head h.

    P_r takes the mean of each block of r positions, and U_r repeats a block's result for each of them; y = M x W_v W_o,
    so the resolutions exchange information in every layer. Heads are divided evenly among the resolutions, unless
    `widths` says how many channels each has. `pyramid` lowers the resolution of keys and values only. M is dense,
    dynamic, shared by the D / H channels of a head.

    With `kernel_size` each resolution has a full convolution in place of attention, y = W_o [U_r Conv_r(P_r W_r x)]_r,
    which is static: the parallel convolutions of HRNet.

    Args:
        causal: Must be False: a block's mean would hold the future.
        resolutions: Positions r of a block, the first for the first heads; 1 is attention. Only the first H are used.
        widths: Channels of each resolution, for attention multiples of D / H; their sum E may differ from D.
        kernel_size: K taps of each convolution; None is attention.
        dropout: Probability of dropping the weight of a block, of attention.

    Cost:
        4 D E parameters (E = D without widths), O(T^2 D (sum of 1 / r^2) / S + T D^2) time for S resolutions. As
        convolutions 2 D E + K (sum of E_r^2) parameters, O(T K (sum of E_r^2 / r) + T D E) time.

    Reference:
        Wang et al. 2020, 'Deep High-Resolution Representation Learning for Visual Recognition'
        (HRNet: parallel resolutions); Yuan et al. 2021, 'HRFormer' (with attention).
    """

    def __init__(
        self,
        *,
        dim: int,
        causal: bool,
        num_heads: int,
        resolutions: Sequence[int],
        widths: Sequence[int] | None = None,
        kernel_size: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(dim=dim, causal=causal)
        if causal:
            raise ValueError("Resolutions is encoder-only: a block's mean holds the future; choose another decoder")
        head_dim = require_divisible(dim, num_heads)
        if not resolutions or min(resolutions) < 1:
            raise ValueError(f"resolutions is {list(resolutions)}; list one block size or more, each 1 or more")
        self.head_dim = head_dim
        self.resolutions = list(resolutions)
        convolves = kernel_size is not None
        rate = require_probability(dropout, "attention dropout")
        self.dropout = 0.0 if convolves else rate
        self.widths = _widths(dim, 1 if convolves else head_dim, len(self.resolutions), widths)
        total = sum(self.widths)  # E
        self.properties = MixingProperties(
            sparse=convolves, shares_channels=not convolves, dynamic=not convolves, linear=True
        )
        self.qkv = None if convolves else attention_inputs(dim, total, total, total)
        self.inner = projection(dim, total) if convolves else None
        self.out = projection(total, dim)
        self.weights = nn.ParameterList()
        if kernel_size is not None:
            taps = require_positive(kernel_size, "kernel_size")
            if 0 in self.widths:
                raise ValueError(f"dim {dim} is less than {len(resolutions)} resolutions; list fewer resolutions")
            for width in self.widths:
                self.weights.append(nn.Parameter(torch.randn(width, width, taps) * (width * taps) ** -0.5))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Mix x (B, T, D) at each resolution."""
        mask = real_positions(x, mask)
        if self.qkv is None:
            assert self.inner is not None
            parts = zip(self.inner(x).split(self.widths, -1), self.weights, self.resolutions, strict=True)
            return self.out(torch.cat([_convolve(z, weight, mask, size) for z, weight, size in parts], -1))
        query, key, value = self.qkv(x).chunk(3, -1)
        heads = [width // self.head_dim for width in self.widths]
        divided = (split(part, sum(heads)).split(heads, 1) for part in (mark_mixing(query), mark_mixing(key), value))
        # Each resolution has some of the heads, (B, h, T, d), or no head if there are more resolutions than heads
        parts = zip(*divided, self.resolutions, strict=True)
        y = [self._attend(q, k, v, mask, size) for q, k, v, size in parts if q.shape[1]]
        return self.out(merge(torch.cat(y, 1)))

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, size: int) -> Tensor:
        """Attend with blocks of `size` positions of q, k, v (B, h, T, d), and repeat the results."""
        real = _blocks(mask[:, None, :, None], size)  # (B, 1, blocks, size, 1)
        q, k, v = (_means(part, real) for part in (q, k, v))
        dropout = self.dropout if self.training else 0.0
        y = attention(q, k, v, mask=real.any(3).transpose(-1, -2), dropout=dropout)  # (B, h, blocks, d)
        return y.repeat_interleave(size, 2)[:, :, : mask.shape[1]]


def _widths(dim: int, unit: int, count: int, widths: Sequence[int] | None) -> list[int]:
    """Return the channels of each of `count` resolutions, multiples of `unit`; as even as can be without `widths`."""
    if widths is None:
        return [unit * len(part) for part in torch.arange(dim // unit).tensor_split(count)]
    if len(widths) != count or min(widths) < 1 or any(width % unit for width in widths):
        multiple = f"a multiple of dim / num_heads = {unit}" if unit > 1 else "1 or more"
        raise ValueError(f"widths is {list(widths)}; list {count} numbers, one for each resolution, each {multiple}")
    return list(widths)


def _convolve(z: Tensor, weight: Tensor, mask: Tensor, size: int) -> Tensor:
    """Convolve the means of blocks of `size` positions of z (B, T, C), and repeat the results."""
    means = _means(z[:, None], _blocks(mask[:, None, :, None], size))[:, 0]  # (B, blocks, C)
    y = full_convolution(means, weight, causal=False)
    return y.repeat_interleave(size, 1)[:, : z.shape[1]]


def _means(x: Tensor, real: Tensor) -> Tensor:
    """Average the real positions of each block of x (B, h, T, d); without any, 0. Real (B, 1, blocks, size, 1)."""
    count = real.sum(3)  # (B, 1, blocks, 1)
    return _blocks(x, real.shape[3]).mul(real).sum(3) / count.clamp(min=1).to(x.dtype)


def _blocks(x: Tensor, size: int) -> Tensor:
    """Cut (B, h, T, d) into blocks (B, h, blocks, size, d), zeros after the end."""
    return F.pad(x, (0, 0, 0, -x.shape[2] % size)).unflatten(2, (-1, size))
