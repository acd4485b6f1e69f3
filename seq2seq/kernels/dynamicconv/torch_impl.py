"""DynamicConv in torch operations by band matrices, on any device, for any type and length."""

from __future__ import annotations

from torch import Tensor

from seq2seq.kernels.band_matrix import band_conv, left_padding
from seq2seq.kernels.dropconnect import drop_weights
from seq2seq.kernels.padding import within
from seq2seq.kernels.precision import at_least_float32


def convolve(
    x: Tensor,
    logits: Tensor,
    keep: Tensor | None,
    end: Tensor | None,
    causal: bool,
    scale: float,
    softmax: bool,
) -> Tensor:
    """Convolve x (B, T, C) by logits (B, T, H, K), differentiable; scale is 1 / keep probability."""
    heads, taps = logits.shape[2:]
    weights = logits.to(at_least_float32(logits.dtype))  # (B, T, H, K)
    weights = drop_weights(weights.softmax(-1) if softmax else weights, keep, 1 / scale).transpose(1, 2)  # (B, H, T, K)
    values = within(x, end).unflatten(-1, (heads, -1))  # (B, T, H, R)
    return band_conv(values, weights, left=left_padding(taps, causal)).flatten(-2)  # (B, T, C)
