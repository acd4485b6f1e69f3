"""LightConv in torch operations, on any device, for any type and length.

It multiplies by band matrices, or uses torch's convolution if each channel has its own kernel and that is faster.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from seq2seq.kernels.band_matrix import BLOCK, band_conv, full_convolution, left_padding, skew
from seq2seq.kernels.padding import within


def convolve(x: Tensor, weights: Tensor, end: Tensor | None, causal: bool, glu: bool) -> Tensor:
    """Convolve x (B, T, C), or (B, T, 2 C) with glu, by weights (H, K), differentiable: y (B, T, C)."""
    inside = within(x, end)  # before the GLU, so that NaN in padding reaches no gradient
    values = F.glu(inside, -1) if glu else inside  # (B, T, C)
    (batch_size, length, channels), (heads, taps) = values.shape, weights.shape
    exporting = torch.compiler.is_exporting()
    # Faster than bands if each kernel has one channel, and bands are long or used once
    if not exporting and length and heads == channels and (batch_size == 1 or length > BLOCK):
        return full_convolution(values, weights[:, None].to(values.dtype), causal=causal, groups=heads)
    values = values.unflatten(-1, (heads, -1))  # (B, T, H, R)
    rows = weights[:, None].expand(-1, length, -1)  # (H, T, K): the same kernel at every position
    left = left_padding(taps, causal)
    # Long sentences are cut into blocks; otherwise one T x T band for each head serves the whole batch
    if not exporting and length > 2 * BLOCK:
        return band_conv(values, rows[None], left=left).flatten(-2)
    band = skew(rows)[..., left : left + length].to(values.dtype)  # (H, T, T)
    mixed = band @ values.permute(2, 1, 0, 3).flatten(2)  # (H, T, T) @ (H, T, B R)
    return mixed.view(heads, length, batch_size, channels // heads).permute(2, 1, 0, 3).flatten(-2)
