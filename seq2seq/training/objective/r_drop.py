"""R-Drop: the cross entropy of two passes with dropouts of their own, and the divergence between what they predict."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from seq2seq.kernels.precision import at_least_float32
from seq2seq.training.objective.loss import LossSums, apply_projected, hand_over

# Positions whose logits exist at once, twice.
_CPU_CHUNK, _GPU_CHUNK = 256, 2048


def r_drop_cross_entropy(
    features: Tensor,
    output: nn.Linear,
    target: Tensor,
    mask: Tensor,
    *,
    smoothing: float,
    weight: float,
    chunk: int | None = None,
) -> LossSums:
    """Sum (L(p) + L(q)) / 2 + weight / 4 (KL(p || q) + KL(q || p)) over the positions where `mask` is True.

    p = softmax(W a + b) and q = softmax(W c + b) are predicted from the features a, c of two passes, L is the
    label-smoothed cross entropy of `projected_cross_entropy`: half the loss of the paper, so that with equal passes it
    is L. Loss and gradients are made in one pass over chunks of positions.

    Args:
        features: Inputs of the output layer from both passes.
        output: The output layer, whose weight W and bias b get gradients too.
        smoothing: e, the share of the target distribution that is uniform over the vocabulary.
        weight: alpha of the paper, 0 or more (there 5 for translation).
        chunk: Positions with logits at one time; None for the default of the device.

    Shape:
        features (2, ..., R); target (...) int64; mask (...) bool.

    Reference:
        Wu, Li, Wang et al. 2021, R-Drop: Regularized Dropout for Neural Networks, equation 4.
    """
    size = chunk or (_CPU_CHUNK if features.device.type == "cpu" else _GPU_CHUNK)
    # (2, N, R)
    return apply_projected(_Projected, features.flatten(1, -2), output, target, mask, smoothing, weight, size)


class _Projected(torch.autograd.Function):
    """Projection, loss and gradients over chunks of positions."""

    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        matrix: Tensor,
        bias: Tensor | None,
        target: Tensor,
        mask: Tensor,
        smoothing: float,
        weight: float,
        chunk: int,
    ) -> tuple[Tensor, Tensor]:
        wide = at_least_float32(features.dtype)
        sums = torch.zeros(2, dtype=wide, device=features.device)  # loss, nll
        w = matrix.detach().requires_grad_()
        b = None if bias is None else bias.detach().requires_grad_()
        dx = []
        for start in range(0, features.shape[1], chunk):
            part = slice(start, start + chunk)
            x = features[:, part].detach().requires_grad_()  # (2, n, R)
            with torch.enable_grad():
                logits = F.linear(x, w.to(x.dtype), None if b is None else b.to(x.dtype))  # (2, n, V)
                loss, nll = _costs(logits, target[part], smoothing, weight).where(mask[part], 0.0).sum(1)
            # Now, not in the backward pass of the model: one chunk's logits exist at a time
            loss.backward()
            dx.append(x.grad)
            sums += torch.stack([loss.detach(), nll.detach()])
        ctx.gradients = [torch.cat(dx, 1), w.grad, None if b is None else b.grad]
        loss, nll = sums
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        return (*hand_over(ctx, grad_loss, "r_drop_cross_entropy"), None, None, None, None, None)


def _costs(logits: Tensor, labels: Tensor, smoothing: float, weight: float) -> Tensor:
    """Compute loss and nll of each position, (2, n), from the logits (2, n, V) of both passes."""
    log_probs = logits.log_softmax(-1, dtype=at_least_float32(logits.dtype))
    nll = -log_probs.gather(-1, labels.expand(2, -1)[..., None]).squeeze(-1).mean(0)  # (n,), the mean of both passes
    uniform = -log_probs.mean((0, 2))  # (n,)
    first, second = log_probs
    # KL(p || q) + KL(q || p) = sum_v (p_v - q_v) (log p_v - log q_v)
    divergence = torch.linalg.vecdot(first.exp() - second.exp(), first - second)  # (n,)
    return torch.stack([(1 - smoothing) * nll + smoothing * uniform + weight / 4 * divergence, nll])
