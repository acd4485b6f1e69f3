"""LightConv in torch operations: band matrices, on any device, in any type and length; gradients by formula."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from seq2seq.kernels.band_matrix import BLOCK, band_conv, band_conv_transposed, band_slopes, left_padding, skew, unskew
from seq2seq.kernels.padding import within


def convolve(x: Tensor, weights: Tensor, start: Tensor | None, end: Tensor | None, causal: bool, glu: bool) -> Tensor:
    """Convolve x (B, T, C), or (B, T, 2 C) with glu, by weights (H, K), differentiable: y (B, T, C)."""
    values = _values(x, start, end, glu).unflatten(-1, (weights.shape[0], -1))  # (B, T, H, R)
    left = left_padding(weights.shape[1], causal)
    # long sentences in blocks; of short ones, and in an exported graph, one T x T band a head serves the whole batch
    if not torch.compiler.is_exporting() and values.shape[1] > 2 * BLOCK:
        return band_conv(values, _rows(weights, values.shape[1])[None], left=left).flatten(-2)
    # (H, T, T) @ (H, T, B R)
    return _merged(_band(weights, values, left) @ _columns(values), values).flatten(-2)


def backward(
    dy: Tensor, x: Tensor, weights: Tensor, start: Tensor | None, end: Tensor | None, causal: bool, glu: bool
) -> tuple[Tensor, Tensor]:
    """Compute dx, as x, and dweights (H, K): dw_k is the sum over positions and channels of dy_t x_{t+k-left}."""
    heads, taps = weights.shape
    left = left_padding(taps, causal)
    length = dy.shape[1]
    # both (B, T, H, R)
    values, slopes = (part.unflatten(-1, (heads, -1)) for part in (_values(x, start, end, glu), dy))
    if length > 2 * BLOCK:
        dvalues = band_conv_transposed(slopes, _rows(weights, length)[None], left=left).flatten(-2)  # (B, T, C)
        dweights = band_slopes(slopes, values, taps, left=left).sum((0, 2))
    else:
        band = _band(weights, values, left)  # (H, T, T)
        columns = _columns(slopes)  # (H, T, B R)
        dvalues = _merged(band.transpose(-1, -2) @ columns, values).flatten(-2)  # (B, T, C)
        products = columns @ _columns(values).transpose(-1, -2)  # (H, T, T)
        # a tap's gradient is the sum of a diagonal: `unskew` stands diagonals upright, (H, T, K)
        dweights = unskew(F.pad(products.to(weights.dtype), (left, taps - 1 - left))).sum(-2)
    # padding was set to zero, so nothing flows back to it
    dvalues = within(dvalues, start, end)
    dx = torch.ops.aten.glu_backward(dvalues, within(x, start, end), -1) if glu else dvalues
    return dx, dweights.to(weights.dtype)


def _values(x: Tensor, start: Tensor | None, end: Tensor | None, glu: bool) -> Tensor:
    inside = within(x, start, end)  # before the GLU: what padding holds, NaN too, reaches no gradient
    return F.glu(inside, -1) if glu else inside


def _rows(weights: Tensor, length: int) -> Tensor:
    return weights[:, None].expand(-1, length, -1)  # (H, T, K): every position the same kernel


def _band(weights: Tensor, values: Tensor, left: int) -> Tensor:
    length = values.shape[1]
    return skew(_rows(weights, length))[..., left : left + length].to(values.dtype)  # (H, T, T)


def _columns(values: Tensor) -> Tensor:
    return values.permute(2, 1, 0, 3).flatten(2)  # (H, T, B R): one product per head serves the whole batch


def _merged(columns: Tensor, values: Tensor) -> Tensor:
    batch_size, length, heads, _ = values.shape
    return columns.view(heads, length, batch_size, -1).permute(2, 1, 0, 3)  # (B, T, H, R)
