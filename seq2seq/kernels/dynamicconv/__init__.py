"""DynamicConv: a convolution whose normalised kernel is predicted at every position."""

from __future__ import annotations

from torch import Tensor

from seq2seq.kernels.band import band_conv
from seq2seq.kernels.dropconnect import drop_weights


def dynamicconv(
    x: Tensor, logits: Tensor, *, causal: bool, keep: Tensor | None = None, keep_prob: float = 1.0
) -> Tensor:
    """y_{t,c} = sum_k softmax(logits_{t,h(c)})_k x_{t+k-left,c} (Wu et al. 2019, eq. 4); left = K - 1 or K // 2.

    x (B, T, C), zero at padding; logits (B, T, H, K); keep: DropConnect words (B, T, H, ceil(K / 32)) for the
    normalised weights, scaled by 1 / keep_prob. Returns (B, T, C).
    """
    weights = drop_weights(logits.softmax(-1), keep, keep_prob).transpose(1, 2)  # (B, H, T, K)
    values = x.unflatten(-1, (logits.shape[2], -1))
    return band_conv(values, weights, causal=causal).flatten(-2)


def dynamicconv_step(window: Tensor, logits: Tensor) -> Tensor:
    """One causal position: the last K inputs (N, K, C), oldest first, and logits (N, H, K) -> (N, C)."""
    size, taps = window.shape[0], window.shape[1]
    values = window.view(size, taps, logits.shape[1], -1).transpose(1, 2)  # (N, H, K, R)
    weights = logits.softmax(-1).to(window.dtype)
    return (weights[:, :, None] @ values).reshape(size, -1)
