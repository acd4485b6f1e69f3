"""DynamicConv by its definition: slow and short, the reference for all other implementations."""

from __future__ import annotations

import torch
from torch import Tensor

from seq2seq.kernels.band_matrix import left_padding
from seq2seq.kernels.dropconnect import drop_weights


def dynamicconv_reference(
    x: Tensor,
    logits: Tensor,
    *,
    causal: bool,
    keep: Tensor | None = None,
    keep_prob: float = 1.0,
    softmax: bool = True,
) -> Tensor:
    """Compute y_{t,c} = sum_k softmax(logits_{t,h(c)})_k x_{t+k-left,c}, one multiply per tap (Wu et al. 2019, eq. 4).

    x (B, T, C), logits (B, T, H, K), keep: DropConnect words (B, T, H, ceil(K / 32)); channel c belongs to head
    h = c // (C / H). The softmax is over all K taps, including taps outside the sequence, where x is 0. With
    softmax=False the logits are the weights.
    """
    batch_size, length, heads, taps = logits.shape
    # (B, T, H, K); DropConnect comes after the softmax, and weights are not normalized again
    weights = drop_weights(logits.softmax(-1) if softmax else logits, keep, keep_prob)
    left = left_padding(taps, causal)
    values = x.view(batch_size, length, heads, -1)  # (B, T, H, R)
    y = torch.zeros_like(values)
    for t in range(length):
        for k in range(max(0, left - t), min(taps, length + left - t)):  # taps inside the sequence
            y[:, t] = y[:, t] + weights[:, t, :, k, None] * values[:, t + k - left]
    return y.view_as(x)
