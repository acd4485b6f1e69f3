"""LightConv in torch operations, on any device, for any type and length; gradients by formula.

It multiplies by band matrices, or uses torch's convolution if each channel has its own kernel and that is faster.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from seq2seq.kernels.band_matrix import (
    BLOCK,
    band_conv,
    band_conv_transposed,
    band_weight_gradient,
    left_padding,
    skew,
    unskew,
)
from seq2seq.kernels.padding import within


def convolve(x: Tensor, weights: Tensor, end: Tensor | None, causal: bool, glu: bool) -> Tensor:
    """Convolve x (B, T, C), or (B, T, 2 C) with glu, by weights (H, K), differentiable: y (B, T, C)."""
    values = _values(x, end, glu)  # (B, T, C)
    left = left_padding(weights.shape[1], causal)
    if not torch.compiler.is_exporting() and _is_grouped(values, weights):
        kernels = weights[:, None].to(values.dtype)  # (C, 1, K)
        return F.conv1d(_padded(values, weights, left), kernels, groups=len(weights)).transpose(1, 2)
    values = values.unflatten(-1, (weights.shape[0], -1))  # (B, T, H, R)
    # Long sentences are cut into blocks; otherwise one T x T band for each head serves the whole batch
    if not torch.compiler.is_exporting() and values.shape[1] > 2 * BLOCK:
        return band_conv(values, _rows(weights, values.shape[1])[None], left=left).flatten(-2)
    # (H, T, T) @ (H, T, B R)
    return _merged(_band(weights, values, left) @ _columns(values), values).flatten(-2)


def backward(
    dy: Tensor, x: Tensor, weights: Tensor, end: Tensor | None, causal: bool, glu: bool
) -> tuple[Tensor, Tensor]:
    """Compute dx, shaped like x, and dweights (H, K): dw_k sums dy_t x_{t+k-left} over positions and channels."""
    heads, taps = weights.shape
    left = left_padding(taps, causal)
    length = dy.shape[1]
    # Both (B, T, H, R)
    values, grads = (part.unflatten(-1, (heads, -1)) for part in (_values(x, end, glu), dy))
    if _is_grouped(dy, weights):
        dvalues, dweights = _grouped_backward(dy, values.flatten(-2), weights, left)
    elif length > 2 * BLOCK:
        dvalues = band_conv_transposed(grads, _rows(weights, length)[None], left=left).flatten(-2)  # (B, T, C)
        dweights = band_weight_gradient(grads, values, taps, left=left).sum((0, 2))
    else:
        band = _band(weights, values, left)  # (H, T, T)
        columns = _columns(grads)  # (H, T, B R)
        dvalues = _merged(band.transpose(-1, -2) @ columns, values).flatten(-2)  # (B, T, C)
        products = columns @ _columns(values).transpose(-1, -2)  # (H, T, T)
        # A tap's gradient is the sum of a diagonal: `unskew` turns diagonals into columns, (H, T, K)
        dweights = unskew(F.pad(products.to(weights.dtype), (left, taps - 1 - left))).sum(-2)
    # Padding was set to zero, so nothing flows back to it
    dvalues = within(dvalues, end)
    dx = torch.ops.aten.glu_backward(dvalues, within(x, end), -1) if glu else dvalues
    return dx, dweights.to(weights.dtype)


def _is_grouped(values: Tensor, weights: Tensor) -> bool:
    """Return True if torch's convolution of values (B, T, C) by weights (H, K) is faster than band matrices.

    This holds if each kernel has one channel, and bands are long or used once.
    """
    return len(weights) == values.shape[2] and (len(values) == 1 or values.shape[1] > BLOCK)


def _padded(values: Tensor, weights: Tensor, left: int) -> Tensor:
    return F.pad(values.transpose(1, 2), (left, weights.shape[1] - 1 - left))  # (B, C, T + K - 1)


def _grouped_backward(dy: Tensor, values: Tensor, weights: Tensor, left: int) -> tuple[Tensor, Tensor]:
    """Compute dvalues (B, T, C) and dweights (C, K) of torch's convolution of values (B, T, C)."""
    channels, taps = weights.shape
    padded, kernels = _padded(values, weights, left), weights[:, None].to(values.dtype)
    sizes = [1], [0], [1], False, [0], channels  # stride, padding, dilation, transposed, output padding, groups
    wanted = [True, True, False]
    dpadded, dweights, _ = torch.ops.aten.convolution_backward(
        dy.transpose(1, 2), padded, kernels, None, *sizes, wanted
    )
    return dpadded[..., left : dpadded.shape[2] - (taps - 1 - left)].transpose(1, 2), dweights[:, 0]


def _values(x: Tensor, end: Tensor | None, glu: bool) -> Tensor:
    inside = within(x, end)  # before the GLU, so that NaN in padding reaches no gradient
    return F.glu(inside, -1) if glu else inside


def _rows(weights: Tensor, length: int) -> Tensor:
    return weights[:, None].expand(-1, length, -1)  # (H, T, K): the same kernel at every position


def _band(weights: Tensor, values: Tensor, left: int) -> Tensor:
    length = values.shape[1]
    return skew(_rows(weights, length))[..., left : left + length].to(values.dtype)  # (H, T, T)


def _columns(values: Tensor) -> Tensor:
    return values.permute(2, 1, 0, 3).flatten(2)  # (H, T, B R): one product per head serves the whole batch


def _merged(columns: Tensor, values: Tensor) -> Tensor:
    batch_size, length, heads, _ = values.shape
    return columns.view(heads, length, batch_size, -1).permute(2, 1, 0, 3)  # (B, T, H, R)
