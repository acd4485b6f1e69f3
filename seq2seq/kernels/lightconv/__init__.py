"""LightConv: a depthwise convolution whose kernels are normalized and shared by the channels of a head."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from seq2seq.kernels import padding
from seq2seq.kernels.dispatch import is_plain, takes_triton
from seq2seq.kernels.dropconnect import check_words, drop_weights
from seq2seq.kernels.launch_config import MAX_KERNELS
from seq2seq.kernels.lightconv import torch_impl
from seq2seq.kernels.operation import Operation
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
    # The few weights, (H, K), are dropped here: torch differentiates this, and the operators take plain weights
    given = (x, drop_weights(weights, keep, keep_prob), end, causal, glu)
    # An eager CPU call takes torch's own gradients; all other calls take the gradient by formula below
    if is_plain("lightconv", backend, x):
        with without_autocast(x):
            return torch_impl.convolve(*given)
    return _forward(*given, backend)


def _compute(x: Tensor, weights: Tensor, end: Tensor | None, causal: bool, glu: bool, backend: str) -> Tensor:
    if _takes_triton(backend, x, weights, glu=glu):
        # Imported on use: a machine without a GPU may lack Triton
        from seq2seq.kernels.lightconv import triton

        return triton.forward(x, weights, end, causal, glu)
    with torch.autocast(x.device.type, enabled=False):
        return torch_impl.convolve(x, weights, end, causal, glu).contiguous()  # as the fake below says


def _compute_gradients(
    dy: Tensor,
    x: Tensor,
    weights: Tensor,
    end: Tensor | None,
    causal: bool,
    glu: bool,
    backend: str,
) -> tuple[Tensor, Tensor]:
    if _takes_triton(backend, x, weights, dy, glu=glu):
        from seq2seq.kernels.lightconv import triton

        return triton.backward(dy, x, weights, end, causal, glu)
    with torch.autocast(x.device.type, enabled=False):
        dx, dweights = torch_impl.backward(dy, x, weights, end, causal, glu)
        return dx.contiguous(), dweights.contiguous()


def _takes_triton(backend: str, x: Tensor, weights: Tensor, *others: Tensor, glu: bool) -> bool:
    heads, taps = weights.shape  # H, K
    unserved = f"{heads} kernels are more than {MAX_KERNELS}" if heads > MAX_KERNELS else None
    # With GLU x has 2 C channels, which are twice as many heads of the same width
    heads *= 2 if glu else 1
    return takes_triton("lightconv", backend, x, weights, *others, heads=heads, taps=taps, unserved=unserved)


def _fake(x: Tensor, weights: Tensor, end: Any, causal: bool, glu: bool, backend: str) -> Tensor:
    return x.new_empty((*x.shape[:2], x.shape[2] // (2 if glu else 1)))  # y (B, T, C)


def _fake_gradients(dy: Tensor, x: Tensor, weights: Tensor, *given: Any) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), weights.new_empty(weights.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weights, end, ctx.causal, ctx.glu, ctx.backend = inputs
    ctx.save_for_backward(x, weights, end)


def _differentiate(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    dx, dweights = _backward(dy, *ctx.saved_tensors, ctx.causal, ctx.glu, ctx.backend)
    return dx, dweights, None, None, None, None  # no gradients: end ... backend


_forward = Operation("lightconv", _compute, fake=_fake)
_backward = Operation("lightconv_backward", _compute_gradients, fake=_fake_gradients)
_forward.differentiate(_save, _differentiate)
