"""LightConv: a depthwise convolution whose kernels are normalised and shared by the channels of a head."""

from __future__ import annotations

from torch import Tensor

from seq2seq.kernels.band import band_conv, left_padding, skew
from seq2seq.kernels.dropconnect import drop_weights

BLOCK = 64


def lightconv(
    x: Tensor, weights: Tensor, *, causal: bool, keep: Tensor | None = None, keep_prob: float = 1.0
) -> Tensor:
    """y_{t,c} = sum_k weights_{h(c),k} x_{t+k-left,c} (Wu et al. 2019, eq. 2); left = K - 1 (causal) or K // 2.

    x (B, T, C), zero at padding; weights (H, K), normalised; keep: their DropConnect words (H, ceil(K / 32)), scaled by
    1 / keep_prob. Returns (B, T, C).
    """
    weights = drop_weights(weights, keep, keep_prob)
    length = x.shape[1]
    values = x.unflatten(-1, (weights.shape[0], -1))  # (B, T, H, R)
    rows = weights[:, None].expand(-1, length, -1)  # (H, T, K): every position the same kernel
    if length > 2 * BLOCK:
        return band_conv(values, rows[None], causal=causal, block=BLOCK).flatten(-2)
    left = left_padding(weights.shape[1], causal)
    band = skew(rows)[..., left : left + length].to(x.dtype)  # (H, T, T)
    columns = values.permute(2, 1, 0, 3)  # (H, T, B, R): one product per head serves the whole batch
    return (band @ columns.flatten(2)).view(columns.shape).permute(2, 1, 0, 3).flatten(-2)


def lightconv_step(window: Tensor, weights: Tensor) -> Tensor:
    """One causal position: the last K inputs (N, K, C), oldest first, and weights (H, K) -> (N, C)."""
    size, taps = window.shape[0], window.shape[1]
    values = window.view(size, taps, weights.shape[0], -1).transpose(1, 2)  # (N, H, K, R)
    return (weights[:, None].to(window.dtype) @ values).reshape(size, -1)
