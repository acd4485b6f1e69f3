"""DynamicConv in torch operations by band matrices, on any device, for any type and length; gradients by formula."""

from __future__ import annotations

import math

from torch import Tensor

from seq2seq.kernels.band_matrix import band_conv, band_conv_transposed, band_weight_gradient, left_padding
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
    weights = _wide(logits).softmax(-1) if softmax else _wide(logits)  # (B, T, H, K)
    weights = drop_weights(weights, keep, 1 / scale).transpose(1, 2)  # (B, H, T, K)
    values = _heads(within(x, end), logits)  # (B, T, H, R)
    return band_conv(values, weights, left=left_padding(logits.shape[-1], causal)).flatten(-2)  # (B, T, C)


def log_sum_exp(logits: Tensor) -> Tensor:
    """Compute log2 sum_k exp(logits_k), (B, T, H), from which the backward pass computes the weights."""
    return _wide(logits).logsumexp(-1) / math.log(2)


def backward(
    dy: Tensor,
    x: Tensor,
    logits: Tensor,
    lse: Tensor,
    keep: Tensor | None,
    end: Tensor | None,
    causal: bool,
    scale: float,
    softmax: bool,
) -> tuple[Tensor, Tensor]:
    """Compute dx (B, T, C) and dlogits (B, T, H, K).

    With g the gradient of the weights w, dlogits = w (g - sum_k w g); without softmax dlogits = g.
    """
    taps = logits.shape[-1]
    left = left_padding(logits.shape[-1], causal)
    weights = (_wide(logits) - lse[..., None] * math.log(2)).exp_() if softmax else _wide(logits)  # (B, T, H, K)
    grads = _heads(dy, logits).transpose(1, 2).contiguous().transpose(1, 2)  # contiguous for two products
    values = _heads(within(x, end), logits)
    dropped = drop_weights(weights, keep, 1 / scale).transpose(1, 2)  # (B, H, T, K)
    dx = band_conv_transposed(grads, dropped, left=left).flatten(-2)  # (B, T, C)
    g = band_weight_gradient(grads, values, taps, left=left).transpose(1, 2).to(weights.dtype)  # (B, T, H, K)
    # DropConnect's mask and scale apply to g, too
    dlogits = drop_weights(g, keep, 1 / scale)
    if softmax:
        share = dlogits.mul(weights)
        dlogits = share - weights * share.sum(-1, keepdim=True)
    # Padding was set to zero, so nothing flows back to it
    return within(dx, end), dlogits.to(logits.dtype)


def _wide(logits: Tensor) -> Tensor:
    return logits.to(at_least_float32(logits.dtype))


def _heads(x: Tensor, logits: Tensor) -> Tensor:
    return x.unflatten(-1, (logits.shape[2], -1))  # (B, T, C) -> (B, T, H, R)
