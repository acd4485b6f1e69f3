"""A depthwise convolution of a few taps: one multiply-add of the whole sequence per tap, without unfolding."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from seq2seq.kernels.band_matrix import left_padding


def shortconv(x: Tensor, weight: Tensor, *, causal: bool) -> Tensor:
    """Compute y_{t,c} = sum_k w_{h(c),k} x_{t+k-left,c}, zeros outside; left = K - 1 (causal) or K // 2.

    Channel c has kernel h = c // (C / H). Cost O(T K C).

    Shape:
        x (B, T, C), weight (H, K) with C divisible by H -> (B, T, C).
    """
    taps = weight.shape[1]
    length = x.shape[1]
    left = left_padding(taps, causal)
    padded = F.pad(x, (0, 0, left, taps - 1 - left))  # (B, T + K - 1, C)
    kernel = _per_channel(weight, x)  # (K, C)
    y = padded[:, :length] * kernel[0]
    # Tap k reads the sequence shifted by k, as a view
    for k in range(1, taps):
        y = y + padded[:, k : k + length] * kernel[k]
    return y


def shortconv_step(x: Tensor, recent: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Convolve one position with the K - 1 inputs before it.

    Shape:
        x (N, C), recent (N, K - 1, C), oldest first, weight (H, K) -> y (N, C) and the next `recent`.
    """
    window = torch.cat([recent, x.to(recent.dtype)[:, None]], 1)  # (N, K, C)
    y = (window.to(x.dtype) * _per_channel(weight, x)).sum(1)  # (N, C)
    return y, window[:, 1:]


def _per_channel(weight: Tensor, x: Tensor) -> Tensor:
    return weight.repeat_interleave(x.shape[-1] // weight.shape[0], 0).t().to(x.dtype)  # (K, C)
