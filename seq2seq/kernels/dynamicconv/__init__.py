"""DynamicConv: a convolution whose normalized kernel is predicted at every position."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from seq2seq.kernels import padding
from seq2seq.kernels.band_matrix import left_padding, windows_conv
from seq2seq.kernels.dispatch import takes_triton
from seq2seq.kernels.dropconnect import check_words
from seq2seq.kernels.dynamicconv import torch_impl
from seq2seq.kernels.precision import without_autocast


def dynamicconv(
    x: Tensor,
    logits: Tensor,
    *,
    causal: bool,
    keep: Tensor | None = None,
    keep_prob: float = 1.0,
    end: Tensor | None = None,
    softmax: bool = True,
    backend: str = "auto",
) -> Tensor:
    """Compute y_{t,c} = sum_k softmax(logits_{t,h(c)})_k x_{t+k-left,c}; left = K - 1 (causal) or K // 2.

    Sums are taken in float32 at least.

    Args:
        x: (B, T, C); counts as zero from position `end` on.
        logits: (B, T, H, K); h(c) is the head of channel c.
        causal: Read t and the K - 1 positions before it.
        keep: DropConnect words (B, T, H, ceil(K / 32)) for the normalized weights.
        keep_prob: With `keep`, the weights are scaled by 1 / keep_prob.
        end: Position after the last of each sentence, (B,); None for no padding.
        softmax: Normalize the weights; if False, which Triton does not serve, the logits are the weights.
        backend: "auto", "triton" or "torch" (see `seq2seq.kernels.dispatch`).

    Returns:
        y (B, T, C) in x's type.

    Reference:
        Wu et al. 2019, eq. 4.
    """
    if logits.dim() != 4 or x.dim() != 3 or logits.shape[:2] != x.shape[:2] or x.shape[2] % logits.shape[2]:
        raise ValueError(f"x {tuple(x.shape)} and logits {tuple(logits.shape)} are not (B, T, C) and (B, T, H, K)")
    check_words(keep, logits.shape)
    padding.check(x, end)
    heads, taps = logits.shape[2:]  # H, K
    if x.is_meta:
        return windows_conv(x, logits, left=left_padding(taps, causal))
    given = (x, logits, keep, end, causal, 1.0 if keep is None else 1.0 / keep_prob)
    unserved = None if softmax else "weights without softmax"
    if takes_triton("dynamicconv", backend, x, logits, heads=heads, taps=taps, unserved=unserved):
        y: Any = _DynamicConv.apply(*given)
        return y
    with without_autocast(x):
        return torch_impl.convolve(*given, softmax)


class _DynamicConv(torch.autograd.Function):
    """DynamicConv by Triton's kernels."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, logits: Tensor, keep: Tensor | None, end: Tensor | None, causal: bool, scale: float
    ) -> Tensor:
        # Imported on use: a machine without a GPU may lack Triton
        from seq2seq.kernels.dynamicconv import triton

        y, lse = triton.forward(x, logits, keep, end, causal, scale)
        ctx.save_for_backward(x, logits, lse, keep, end)
        ctx.how = causal, scale
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        from seq2seq.kernels.dynamicconv import triton

        return *triton.backward(dy, *ctx.saved_tensors, *ctx.how), None, None, None, None
