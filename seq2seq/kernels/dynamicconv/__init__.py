"""DynamicConv: a convolution whose normalized kernel is predicted at every position."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from seq2seq.kernels import padding
from seq2seq.kernels.dispatch import is_plain, takes_triton
from seq2seq.kernels.dropconnect import check_words
from seq2seq.kernels.dynamicconv import torch_impl
from seq2seq.kernels.operation import Operation
from seq2seq.kernels.precision import at_least_float32, without_autocast


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
    given = (x, logits, keep, end, causal, 1.0 if keep is None else 1.0 / keep_prob)
    # An eager CPU call takes torch's own gradients; all other calls take the gradient by formula below
    if is_plain("dynamicconv", backend, x):
        with without_autocast(x):
            return torch_impl.convolve(*given, softmax)
    return _forward(*given, backend, softmax)[0]  # the other output is the log-sum-exp


def _compute(
    x: Tensor,
    logits: Tensor,
    keep: Tensor | None,
    end: Tensor | None,
    causal: bool,
    scale: float,
    backend: str,
    softmax: bool = True,
) -> tuple[Tensor, Tensor]:
    if _takes_triton(backend, x, logits, softmax=softmax):
        # Imported on use: a machine without a GPU may lack Triton
        from seq2seq.kernels.dynamicconv import triton

        return triton.forward(x, logits, keep, end, causal, scale)
    with torch.autocast(x.device.type, enabled=False):
        y = torch_impl.convolve(x, logits, keep, end, causal, scale, softmax)
        return y.contiguous(), torch_impl.log_sum_exp(logits)  # contiguous, as the fake below says


def _compute_gradients(
    dy: Tensor,
    x: Tensor,
    logits: Tensor,
    lse: Tensor,
    keep: Tensor | None,
    end: Tensor | None,
    causal: bool,
    scale: float,
    backend: str,
    softmax: bool = True,
) -> tuple[Tensor, Tensor]:
    if _takes_triton(backend, x, logits, dy, softmax=softmax):
        from seq2seq.kernels.dynamicconv import triton

        return triton.backward(dy, x, logits, lse, keep, end, causal, scale)
    with torch.autocast(x.device.type, enabled=False):
        dx, dlogits = torch_impl.backward(dy, x, logits, lse, keep, end, causal, scale, softmax)
        return dx.contiguous(), dlogits.contiguous()


def _takes_triton(backend: str, x: Tensor, logits: Tensor, *others: Tensor, softmax: bool) -> bool:
    heads, taps = logits.shape[2:]  # H, K
    unserved = None if softmax else "weights without softmax"
    return takes_triton("dynamicconv", backend, x, logits, *others, heads=heads, taps=taps, unserved=unserved)


def _fake(x: Tensor, logits: Tensor, *given: Any) -> tuple[Tensor, Tensor]:
    # A compiled graph relies on these shapes, types and layouts
    wide = at_least_float32(logits.dtype)
    return x.new_empty(x.shape), logits.new_empty(logits.shape[:3], dtype=wide)


def _fake_gradients(dy: Tensor, x: Tensor, logits: Tensor, *given: Any) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), logits.new_empty(logits.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, logits, keep, end, ctx.causal, ctx.scale, ctx.backend, ctx.softmax = inputs
    ctx.mark_non_differentiable(output[1])  # only the backward pass reads the log-sum-exp
    ctx.set_materialize_grads(False)  # so that its unused gradient is not filled with zeros
    ctx.save_for_backward(x, logits, output[1], keep, end)


def _differentiate(ctx: Any, dy: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    if dy is None:  # the differentiated result does not depend on y
        return (None,) * 8
    dx, dlogits = _backward(dy, *ctx.saved_tensors, ctx.causal, ctx.scale, ctx.backend, ctx.softmax)
    return dx, dlogits, *(None,) * 6  # no gradients: keep ... softmax


_forward = Operation("dynamicconv", _compute, fake=_fake)
_backward = Operation("dynamicconv_backward", _compute_gradients, fake=_fake_gradients)
_forward.differentiate(_save, _differentiate)
