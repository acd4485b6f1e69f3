"""A convolution as a band matrix times values: the CPU path shared by lightconv and dynamicconv.

With weights w (..., T, K), y_t = sum_k w_{t,k} x_{t+k-left} is y = A x where A has row t's weights on the band
s - t + left = k. Blocks of `block` rows keep memory linear in T.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def left_padding(kernel_size: int, causal: bool) -> int:
    """Taps before the current position: K - 1 (causal) or K // 2 (same length)."""
    return kernel_size - 1 if causal else kernel_size // 2


def skew(weights: Tensor) -> Tensor:
    """Rows (..., T, K) -> band matrices (..., T, T + K - 1) with row t shifted right by t places."""
    rows, taps = weights.shape[-2:]
    flat = F.pad(weights, (0, rows)).flatten(-2)  # each row is followed by T zeros: T + K a row
    return flat[..., : rows * (rows + taps - 1)].unflatten(-1, (rows, rows + taps - 1))


def band_conv(x: Tensor, weights: Tensor, *, causal: bool, block: int = 64) -> Tensor:
    """x (B, T, H, R) with weights (B or 1, H, T, K) -> y (B, T, H, R); zeros outside the sequence."""
    length, taps = x.shape[1], weights.shape[-1]
    left = left_padding(taps, causal)
    values = x.transpose(1, 2)  # (B, H, T, R)
    if length <= 2 * block:
        band = skew(weights)[..., left : left + length]  # columns outside the sequence meet zeros only
        return (band.to(x.dtype) @ values).transpose(1, 2)
    blocks = -(-length // block)
    tail = blocks * block - length
    values = F.pad(values, (0, 0, left, taps - 1 - left + tail))
    windows = values.unfold(2, block + taps - 1, block).transpose(-1, -2)  # (B, H, blocks, block + K - 1, R)
    band = skew(F.pad(weights, (0, 0, 0, tail)).unflatten(2, (blocks, block)))
    return (band.to(x.dtype) @ windows).flatten(2, 3)[:, :, :length].transpose(1, 2)
