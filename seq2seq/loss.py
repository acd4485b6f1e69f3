"""Label-smoothed cross entropy, summed over the real target tokens."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class LossSums(NamedTuple):
    """Sums over a batch: `loss` (differentiable), `nll` without smoothing in nats, `tokens` counted; scalar tensors."""

    loss: Tensor
    nll: Tensor
    tokens: Tensor


def label_smoothed_cross_entropy(logits: Tensor, target: Tensor, mask: Tensor, *, smoothing: float) -> LossSums:
    """Sum of (1 - e) * -log p(y) + e / V * sum_v -log p(v) over the positions where `mask` is True, in float32.

    logits (..., V) of any float type; target (...) int64; mask (...) bool. The gradient is computed with the loss, a
    few rows at a time, so float32 logits never exist whole; `label_smoothed_cross_entropy_reference` is its slow twin.
    """
    rows = logits.flatten(0, -2)  # (N, V)
    weights = mask.flatten()  # (N,)
    loss, nll = _Fused.apply(rows, target.flatten(), weights, smoothing)  # type: ignore[misc]
    return LossSums(loss, nll, weights.sum())


def label_smoothed_cross_entropy_reference(
    logits: Tensor, target: Tensor, mask: Tensor, *, smoothing: float
) -> LossSums:
    """The definition through torch's own cross entropy; same arguments and result as the fast form."""
    rows, labels = logits[mask].float(), target[mask]  # (N, V), (N,)
    loss = F.cross_entropy(rows, labels, label_smoothing=smoothing, reduction="sum")
    nll = F.cross_entropy(rows.detach(), labels, reduction="sum")
    return LossSums(loss, nll, mask.sum())


# Rows whose float32 copy stays in a CPU's second-level cache at common vocabularies; a GPU wants large launches.
_CPU_ROWS, _GPU_ROWS = 64, 4096


class _Fused(torch.autograd.Function):
    """Loss and gradient in one pass over blocks of rows."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, weights: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
        nll = torch.zeros((), dtype=torch.float32, device=logits.device)
        uniform = torch.zeros_like(nll)  # the cross entropy against the uniform distribution
        grad = torch.empty_like(logits) if ctx.needs_input_grad[0] else None
        block = _CPU_ROWS if logits.device.type == "cpu" else _GPU_ROWS
        for start in range(0, logits.shape[0], block):
            part = slice(start, start + block)
            log_probs = torch.log_softmax(logits[part], dim=-1, dtype=torch.float32)
            labels, weight = target[part, None], weights[part].float()
            nll -= log_probs.gather(1, labels).squeeze(1) @ weight
            uniform -= log_probs.mean(-1) @ weight
            if grad is not None:
                grad[part] = _row_gradient(log_probs, labels, weight, smoothing)
        if grad is not None:
            ctx.save_for_backward(grad)
        ctx.mark_non_differentiable(nll)
        return (1 - smoothing) * nll + smoothing * uniform, nll

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor, _: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[override]
        (grad,) = ctx.saved_tensors
        return grad * grad_loss.to(grad.dtype), None, None, None


def _row_gradient(log_probs: Tensor, labels: Tensor, weight: Tensor, smoothing: float) -> Tensor:
    """softmax - ((1 - e) * onehot + e / V) for each row, times its weight; overwrites `log_probs` (R, V)."""
    grad = log_probs.exp_().sub_(smoothing / log_probs.shape[-1])
    grad.scatter_add_(1, labels, torch.full_like(labels, smoothing - 1, dtype=grad.dtype))
    return grad.mul_(weight[:, None])
