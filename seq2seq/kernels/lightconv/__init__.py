"""LightConv: a depthwise convolution whose kernels are normalised and shared by the channels of a head."""

from __future__ import annotations

from torch import Tensor

from seq2seq.kernels.band import band_conv

BLOCK = 64


def lightconv(x: Tensor, weights: Tensor, *, causal: bool) -> Tensor:
    """y_{t,c} = sum_k weights_{h(c),k} x_{t+k-left,c} (Wu et al. 2019, eq. 2); left = K - 1 (causal) or K // 2.

    x (B, T, C), zero at padding; weights (H, K), normalised and with any DropConnect applied. Returns (B, T, C).
    """
    values = x.unflatten(-1, (weights.shape[0], -1))
    rows = weights[None, :, None].expand(1, -1, x.shape[1], -1)  # (1, H, T, K): every position the same kernel
    return band_conv(values, rows, causal=causal, block=BLOCK).flatten(-2)


def lightconv_step(window: Tensor, weights: Tensor) -> Tensor:
    """One causal position: the last K inputs (N, K, C), oldest first, and weights (H, K) -> (N, C)."""
    size, taps = window.shape[0], window.shape[1]
    values = window.view(size, taps, weights.shape[0], -1).transpose(1, 2)  # (N, H, K, R)
    return (weights[:, None].to(window.dtype) @ values).reshape(size, -1)
