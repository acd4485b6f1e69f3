"""LightConv: a depthwise convolution whose kernels are normalized and shared by the channels of a head."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from seq2seq.kernels import padding
from seq2seq.kernels.band_matrix import left_padding, windows_conv
from seq2seq.kernels.dispatch import takes_triton
from seq2seq.kernels.dropconnect import check_words, drop_weights
from seq2seq.kernels.launch_config import MAX_KERNELS
from seq2seq.kernels.lightconv import torch_impl
from seq2seq.kernels.precision import without_autocast


def lightconv(
    x: Tensor,
    weights: Tensor,
    *,
    causal: bool,
    glu: bool = False,
    keep: Tensor | None = None,
    keep_prob: float = 1.0,
    end: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """Compute y_{t,c} = sum_k weights_{h(c),k} x_{t+k-left,c}; left = K - 1 (causal) or K // 2.

    Sums are taken in float32 at least.

    Args:
        x: (B, T, C); counts as zero from position `end` on.
        weights: (H, K), used as they are; a mixer may normalize them first. h(c) is the head of channel c.
        causal: Read t and the K - 1 positions before it.
        glu: x is (B, T, 2 C), and the convolution's input is x[..., :C] sigmoid(x[..., C:]).
        keep: DropConnect words (H, ceil(K / 32)) for the weights.
        keep_prob: With `keep`, the weights are scaled by 1 / keep_prob.
        end: Position after the last of each sentence, (B,); None for no padding.
        backend: "auto", "triton" or "torch" (see `seq2seq.kernels.dispatch`).

    Returns:
        y (B, T, C) in x's type.

    Reference:
        Wu et al. 2019, eq. 2.
    """
    if weights.dim() != 2 or x.dim() != 3 or x.shape[2] % (weights.shape[0] * (2 if glu else 1)):
        width = "2 C" if glu else "C"
        raise ValueError(f"x {tuple(x.shape)} and weights {tuple(weights.shape)} are not (B, T, {width}) and (H, K)")
    check_words(keep, weights.shape)
    padding.check(x, end)
    heads, taps = weights.shape
    if x.is_meta:
        return windows_conv(F.glu(x, -1) if glu else x, weights[None, None], left=left_padding(taps, causal))
    # The few weights, (H, K), are dropped here, by operations that torch differentiates
    given = (x, drop_weights(weights, keep, keep_prob), end, causal, glu)
    unserved = f"{heads} kernels are more than {MAX_KERNELS}" if heads > MAX_KERNELS else None
    # With GLU x has 2 C channels, which are twice as many heads of the same width
    heads *= 2 if glu else 1
    if takes_triton("lightconv", backend, x, weights, heads=heads, taps=taps, unserved=unserved):
        y: Any = _LightConv.apply(*given)
        return y
    with without_autocast(x):
        return torch_impl.convolve(*given)


class _LightConv(torch.autograd.Function):
    """LightConv by Triton's kernels."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor, end: Tensor | None, causal: bool, glu: bool) -> Tensor:
        # Imported on use: a machine without a GPU may lack Triton
        from seq2seq.kernels.lightconv import triton

        ctx.save_for_backward(x, weights, end)
        ctx.how = causal, glu
        return triton.forward(x, weights, end, causal, glu)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        from seq2seq.kernels.lightconv import triton

        return *triton.backward(dy, *ctx.saved_tensors, *ctx.how), None, None, None
