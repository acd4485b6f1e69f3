"""Cross entropy of rows of logits and its gradient, by definition in float32."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def cross_entropy_reference(logits: Tensor, labels: Tensor, mask: Tensor, *, at_label: float) -> tuple[Tensor, Tensor]:
    """Compute the costs (2, n) and the gradient (n, V) of `cross_entropy_`, both in float32."""
    log_p = logits.float().log_softmax(1)  # (n, V)
    nll = F.nll_loss(log_p, labels, reduction="none")  # (n,)
    onehot = F.one_hot(labels, logits.shape[1])  # (n, V)
    gradient = log_p.exp() - at_label * onehot
    costs = torch.stack([nll, -log_p.mean(1)])
    return costs.where(mask, 0.0), gradient.where(mask[:, None], 0.0)
