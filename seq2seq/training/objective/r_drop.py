"""R-Drop: the cross entropy of two passes with different dropout, and the divergence between their predictions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from seq2seq.kernels.precision import at_least_float32
from seq2seq.training.objective.loss import LossSums, sum_by_chunks


def r_drop_cross_entropy(
    features: Tensor,
    output: nn.Linear,
    target: Tensor,
    mask: Tensor,
    *,
    smoothing: float,
    weight: float,
) -> LossSums:
    """Sum (L(p) + L(q)) / 2 + weight / 4 (KL(p || q) + KL(q || p)) over the positions where `mask` is True.

    p = softmax(W a + b) and q = softmax(W c + b) are predicted from the features a and c of two passes; L is the
    label-smoothed cross entropy of `projected_cross_entropy`. This is half the loss of the paper, so that it is L if
    both passes agree. One pass over chunks of positions computes loss and gradients.

    Args:
        features: Inputs of the output layer from both passes.
        output: The output layer, whose weight W and bias b get gradients too.
        smoothing: e, the share of the target distribution that is uniform over the vocabulary.
        weight: alpha of the paper (which takes 5 for translation), 0 or more.

    Shape:
        features (2, ..., R); target (...) int64; mask (...) bool.

    Reference:
        Wu, Li, Wang et al. 2021, R-Drop: Regularized Dropout for Neural Networks, equation 4.
    """
    labels = target.flatten()  # (N,)

    def costs(logits: Tensor, part: slice) -> Tensor:
        # From the logits (2, n, V) of both passes
        log_probs = logits.log_softmax(-1, dtype=at_least_float32(logits.dtype))
        both = labels[part].expand(2, -1)[..., None]
        nll = -log_probs.gather(-1, both).squeeze(-1).mean(0)  # (n,), the mean of both passes
        uniform = -log_probs.mean((0, 2))  # (n,)
        first, second = log_probs
        # KL(p || q) + KL(q || p) = sum_v (p_v - q_v) (log p_v - log q_v)
        divergence = torch.linalg.vecdot(first.exp() - second.exp(), first - second)  # (n,)
        return torch.stack([(1 - smoothing) * nll + smoothing * uniform + weight / 4 * divergence, nll])

    return sum_by_chunks(costs, features.flatten(1, -2), output, mask.flatten())  # rows (2, N, R)
