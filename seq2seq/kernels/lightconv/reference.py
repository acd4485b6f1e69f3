"""LightConv by its definition: slow and short, the reference for all other implementations."""

from __future__ import annotations

import torch
from torch import Tensor

from seq2seq.kernels.band_matrix import left_padding
from seq2seq.kernels.dropconnect import drop_weights


def lightconv_reference(
    x: Tensor, weights: Tensor, *, causal: bool, keep: Tensor | None = None, keep_prob: float = 1.0
) -> Tensor:
    """Compute y_{t,c} = sum_k weights_{h(c),k} x_{t+k-left,c}, one multiply per tap (Wu et al. 2019, eq. 2).

    x (B, T, C); weights (H, K), used as they are; keep: DropConnect words (H, ceil(K / 32)). Channel c belongs to
    head h = c // (C / H).
    """
    heads, taps = weights.shape
    weights = drop_weights(weights, keep, keep_prob)
    left = left_padding(taps, causal)
    length = x.shape[1]
    values = x.unflatten(-1, (heads, -1))  # (B, T, H, R)
    y = torch.zeros_like(values)
    for t in range(length):
        for k in range(max(0, left - t), min(taps, length + left - t)):  # taps inside the sequence
            y[:, t] = y[:, t] + weights[:, k, None] * values[:, t + k - left]
    return y.flatten(-2)
