"""Word-level knowledge distillation: the cross entropy against a teacher's predictions as part of the loss."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seq2seq.kernels.precision import at_least_float32
from seq2seq.training.objective.loss import LossSums, sum_by_chunks


def distilled_cross_entropy(
    features: Tensor,
    output: nn.Linear,
    target: Tensor,
    mask: Tensor,
    *,
    teacher: tuple[Tensor, nn.Linear],
    smoothing: float,
    weight: float,
) -> LossSums:
    """Sum (1 - weight) L(p) + weight sum_v -q(v) log p(v) over the positions where `mask` is True.

    p = softmax(W x + b) is the student's prediction, q the teacher's, and L the label-smoothed cross entropy of
    `projected_cross_entropy`. One pass over chunks of positions computes loss and gradients.

    Args:
        output: The student's output layer, whose weight W and bias b get gradients too.
        teacher: The features of the teacher for the same positions, and its output layer; both get no gradients.
        smoothing: The share of the target distribution in L that is uniform over the vocabulary.
        weight: Share of the teacher, 0 to 1.

    Shape:
        features (..., R) and the teacher's (..., R'); target (...) int64; mask (...) bool.

    Reference:
        Kim and Rush 2016, Sequence-Level Knowledge Distillation, section 3.1.
    """
    labels = target.flatten()  # (N,)
    known = teacher[0].detach().flatten(0, -2)  # (N, R')

    def costs(logits: Tensor, part: slice) -> Tensor:
        log_probs = logits.log_softmax(-1, dtype=at_least_float32(logits.dtype))
        nll = -log_probs.gather(-1, labels[part, None]).squeeze(-1)  # (n,)
        uniform = -log_probs.mean(-1)
        with torch.no_grad():
            w, b = teacher[1].weight, teacher[1].bias
            x = known[part].to(logits.dtype)
            teachers = F.linear(x, w.to(x.dtype), None if b is None else b.to(x.dtype))  # (n, V)
            q = teachers.softmax(-1, dtype=log_probs.dtype)
        soft = -torch.linalg.vecdot(q, log_probs)
        return torch.stack([(1 - weight) * ((1 - smoothing) * nll + smoothing * uniform) + weight * soft, nll])

    return sum_by_chunks(costs, features.flatten(0, -2), output, mask.flatten())
