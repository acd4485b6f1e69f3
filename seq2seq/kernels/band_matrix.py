"""A convolution as a band matrix times values: the torch path of lightconv and dynamicconv.

With weights w (..., T, K), y_t = sum_k w_{t,k} x_{t+k-left} is y = A x, and A has weight w_{t,k} in row t and column
s = t + k - left. Blocks of `block` rows keep memory linear in T.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

# Rows of a block: a row takes block + K - 1 products instead of K, but the matrices are large enough to be fast.
BLOCK = 64


def left_padding(kernel_size: int, causal: bool) -> int:
    """Return the number of taps before the current position: K - 1 (causal) or K // 2 (same length)."""
    return kernel_size - 1 if causal else kernel_size // 2


def full_convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, causal: bool, dilation: int = 1, groups: int = 1
) -> Tensor:
    """Convolve x (B, T, C) by a matrix for each tap, weight (C', C / groups, K), zeros outside: (B, T, C')."""
    taps = weight.shape[-1]
    left = dilation * left_padding(taps, causal)
    values = F.pad(x.transpose(1, 2), (left, dilation * (taps - 1) - left))  # (B, C, T + dilation (K - 1))
    return F.conv1d(values, weight, bias, dilation=dilation, groups=groups).transpose(1, 2)


def tap_inputs(x: Tensor, taps: int, *, left: int) -> Tensor:
    """Copy the inputs of each position's taps from x (B, T, D): (B, T, K, D), zeros outside the sequence.

    For separate kernels at every position and channel, a product with this copy is several times as fast as band
    matrices or a product with overlapping views.
    """
    padded = F.pad(x, (0, 0, left, taps - 1 - left))
    return torch.stack([padded[:, k : k + x.shape[1]] for k in range(taps)], 2)


def windows_conv(x: Tensor, weights: Tensor, *, left: int) -> Tensor:
    """Convolve x (B, T, C) by weights (B or 1, T or 1, H, K) as products with windows, each a copy of its K inputs.

    Torch counts a multiply-add for each channel, position and tap: the useful work, for the meta device, which has no
    memory to run out of. The products with a band would count its zeros.
    """
    heads, taps = weights.shape[2:]
    windows = tap_inputs(x, taps, left=left).unflatten(-1, (heads, -1)).transpose(2, 3)  # (B, T, H, K, R)
    return (weights[..., None, :].to(x.dtype) @ windows).flatten(2)  # (B, T, H, 1, R)


def skew(weights: Tensor) -> Tensor:
    """Shift row t of (..., T, K) right by t places: band matrices (..., T, T + K - 1)."""
    rows, taps = weights.shape[-2:]
    flat = F.pad(weights, (0, rows)).flatten(-2)  # each row is followed by T zeros: T + K per row
    # Rows that are one number shorter shift each row by one place relative to the row before it
    return flat[..., : rows * (rows + taps - 1)].unflatten(-1, (rows, rows + taps - 1))


def unskew(band: Tensor) -> Tensor:
    """Invert `skew`: return the band of (..., T, T + K - 1) as rows (..., T, K), a view; other cells are dropped."""
    band = band.contiguous()
    rows, width = band.shape[-2:]
    # Each row begins one place later than the row before it
    steps = (*band.stride()[:-2], width + 1, 1)
    return band.as_strided((*band.shape[:-1], width - rows + 1), steps, band.storage_offset())


def band_conv(x: Tensor, weights: Tensor, *, left: int, block: int = BLOCK) -> Tensor:
    """Convolve x with separate weights at each position; x is zero outside the sequence.

    Shape:
        x (B, T, H, R), weights (B or 1, H, T, K) -> (B, T, H, R).

    Args:
        left: Taps before the current position.
        block: Rows of a block; sentences of up to two blocks are not cut.
    """
    length = x.shape[1]
    taps = weights.shape[-1]
    values = x.transpose(1, 2).contiguous()  # (B, H, T, R); the product would copy it too, five times as slowly
    # For short sentences one T x T matrix per head is faster than blocks; an exported graph cannot branch by length
    if torch.compiler.is_exporting() or length <= 2 * block:
        band = skew(weights)[..., left : left + length]  # columns outside the sequence would multiply zeros
        return (band.to(x.dtype) @ values).transpose(1, 2)
    band = skew(_blocks(weights, block))  # (B or 1, H, blocks, block, block + K - 1)
    mixed = band.to(x.dtype) @ _windows(values, taps, left, block)  # (B, H, blocks, block, R)
    return mixed.flatten(2, 3)[:, :, :length].transpose(1, 2)  # (B, T, H, R)


def _blocks(rows: Tensor, block: int) -> Tensor:
    """Cut rows into blocks: (B, H, T, n) -> (B, H, blocks, block, n), zeros after the end."""
    return F.pad(rows, (0, 0, 0, -rows.shape[2] % block)).unflatten(2, (-1, block))


def _windows(values: Tensor, taps: int, left: int, block: int) -> Tensor:
    """Unfold the values (B, H, T, R) that each block of rows reads: (B, H, blocks, block + K - 1, R)."""
    tail = -values.shape[2] % block  # completes the last block
    padded = F.pad(values, (0, 0, left, taps - 1 - left + tail))  # (B, H, blocks * block + K - 1, R)
    # Overlapping views; `unfold` puts their rows last
    return padded.unfold(2, block + taps - 1, block).transpose(-1, -2)
