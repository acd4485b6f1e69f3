"""R-Drop: the cross entropy of two passes with dropouts of their own, and the divergence between what they predict."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from seq2seq.kernels.precision import at_least_float32
from seq2seq.training.loss import LossSums, apply_projected, hand_over

# Positions whose logits exist at once, twice; and numbers of a softmax at once: what a CPU's cache holds.
_CPU_CHUNK, _GPU_CHUNK = 512, 2048
_CPU_CELLS = 1 << 17


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
    label-smoothed cross entropy of `label_smoothed_cross_entropy`: half the loss of the paper, so that with equal
    passes it is L. The loss and its gradients are made in one pass over chunks of positions;
    `r_drop_cross_entropy_reference` is the reference implementation.

    Args:
        features: Of both passes, what the output layer reads.
        output: The output layer, whose weight W and bias b get gradients too.
        smoothing: e, the share of the target distribution that is uniform over the vocabulary.
        weight: alpha of the paper, 0 or more (there 5 for translation).
        chunk: Positions with logits at one time; None for the default of the device.

    Shape:
        features (2, ..., R); target (...) int64; mask (...) bool.

    Reference:
        Wu, Li, Wang et al. 2021, R-Drop: Regularized Dropout for Neural Networks, equation 4.
    """
    # A DTensor, which the products below do not take as it is.
    if hasattr(output.weight, "full_tensor"):
        logits = output(features)
        return r_drop_cross_entropy_reference(logits, target, mask, smoothing=smoothing, weight=weight)
    size = chunk or (_CPU_CHUNK if features.device.type == "cpu" else _GPU_CHUNK)
    # (2, N, R)
    return apply_projected(_Projected, features.flatten(1, -2), output, target, mask, smoothing, weight, size)


def r_drop_cross_entropy_reference(
    logits: Tensor, target: Tensor, mask: Tensor, *, smoothing: float, weight: float
) -> LossSums:
    """Compute the loss from both passes' logits (2, ..., V) by torch's cross entropy and its KL divergence."""
    labels = target[mask]  # (N,)
    rows = [part[mask].float() for part in logits]  # (N, V) each
    first, second = (row.log_softmax(-1) for row in rows)
    losses = [F.cross_entropy(row, labels, label_smoothing=smoothing, reduction="sum") for row in rows]
    nll = [F.cross_entropy(row.detach(), labels, reduction="sum") for row in rows]
    # kl_div(log q, log p) is KL(p || q)
    there = F.kl_div(second, first, reduction="sum", log_target=True)
    back = F.kl_div(first, second, reduction="sum", log_target=True)
    loss = torch.stack(losses).mean() + weight / 4 * (there + back)
    return LossSums(loss, torch.stack(nll).mean(), mask.sum())


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
        wide, dtype = at_least_float32(features.dtype), features.dtype
        narrow = matrix.to(dtype)  # (V, R)
        added = None if bias is None else bias.to(dtype)
        dx = torch.empty_like(features)  # (2, N, R)
        dw = torch.zeros(matrix.shape, dtype=wide, device=features.device)
        db = None if bias is None else torch.zeros(len(bias), dtype=wide, device=features.device)
        sums = torch.zeros(2, dtype=wide, device=features.device)  # loss, nll
        for start in range(0, features.shape[1], chunk):
            part = slice(start, start + chunk)
            x = features[:, part]  # (2, n, R)
            logits = F.linear(x, narrow, added)  # (2, n, V)
            counted = mask[part].to(wide)  # (n,)
            sums += _costs_(logits, target[part], smoothing, weight) @ counted
            # A position of padding counts for nothing; its row has R numbers here and V in the logits
            counted = counted.to(dtype)[:, None]
            dx[:, part] = (logits @ narrow) * counted
            grads = logits.flatten(0, 1)  # (2 n, V)
            dw += grads.t() @ (x * counted).flatten(0, 1)
            if db is not None:
                db += (counted.t() @ logits).sum((0, 1), dtype=wide)
        ctx.gradients = [dx, dw.to(matrix.dtype), None if db is None or bias is None else db.to(bias.dtype)]
        loss, nll = sums
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        return (*hand_over(ctx, grad_loss, "r_drop_cross_entropy"), None, None, None, None, None)


def _costs_(logits: Tensor, target: Tensor, smoothing: float, weight: float) -> Tensor:
    """Return loss and nll of each position, (2, n), and overwrite the logits (2, n, V) with the loss's gradients.

    With d = log p - log q, KL(p || q) + KL(q || p) = sum_v p_v d_v - sum_v q_v d_v. Its gradient with respect to the
    logits of p is p (d - sum_v p_v d_v) + p - q, and with -d for d that with respect to those of q.
    """
    vocab, wide = logits.shape[-1], at_least_float32(logits.dtype)
    block = max(1, _CPU_CELLS // vocab) if logits.device.type == "cpu" else logits.shape[1]
    costs = torch.empty(2, logits.shape[1], dtype=wide, device=logits.device)
    for start in range(0, logits.shape[1], block):
        part = slice(start, start + block)
        labels = target[part].expand(2, -1)[..., None]  # (2, r, 1)
        log_probs = torch.log_softmax(logits[:, part], -1, dtype=wide)  # (2, r, V)
        nll = -log_probs.gather(-1, labels).squeeze(-1).mean(0)  # (r,), the mean of both passes
        uniform = -log_probs.mean((0, 2))
        d = log_probs[0] - log_probs[1]  # (r, V)
        probs = log_probs.exp_()
        mean = torch.linalg.vecdot(probs, d)[..., None]  # (2, r, 1): sum_v p_v d_v and sum_v q_v d_v
        costs[0, part] = (1 - smoothing) * nll + smoothing * uniform + weight / 4 * (mean[0] - mean[1]).squeeze(-1)
        costs[1, part] = nll
        d *= weight / 4
        for own, other, change, sign in ((0, 1, d, 1), (1, 0, d.neg(), -1)):
            grads = change + (0.5 + weight / 4 * (1 - sign * mean[own]))
            grads.mul_(probs[own]).sub_(probs[other], alpha=weight / 4).sub_(smoothing / (2 * vocab))
            grads.scatter_add_(-1, labels[own], torch.full_like(grads[:, :1], (smoothing - 1) / 2))
            logits[own, part] = grads
    return costs
