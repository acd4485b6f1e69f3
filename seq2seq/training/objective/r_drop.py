"""R-Drop: the cross entropy of two passes with different dropout, and the divergence between their predictions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seq2seq.kernels.precision import at_least_float32
from seq2seq.training.objective.loss import Gradients, LossSums, sum_with_gradients

# Positions whose logits, of both passes, exist at once.
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

    p = softmax(W a + b) and q = softmax(W c + b) are predicted from the features a and c of two passes; L is the
    label-smoothed cross entropy of `projected_cross_entropy`. This is half the loss of the paper, so that it is L if
    both passes agree. One pass over chunks of positions computes loss and gradients.

    Args:
        features: Inputs of the output layer from both passes.
        output: The output layer, whose weight W and bias b get gradients too.
        smoothing: e, the share of the target distribution that is uniform over the vocabulary.
        weight: alpha of the paper (which takes 5 for translation), 0 or more.
        chunk: Positions whose logits exist at once; None for the default of the device.

    Shape:
        features (2, ..., R); target (...) int64; mask (...) bool.

    Reference:
        Wu, Li, Wang et al. 2021, R-Drop: Regularized Dropout for Neural Networks, equation 4.
    """
    size = chunk or (_CPU_CHUNK if features.device.type == "cpu" else _GPU_CHUNK)
    labels, counted = target.flatten(), mask.flatten()  # (N,)

    def compute(rows: Tensor, matrix: Tensor, bias: Tensor | None, _: bool) -> tuple[Tensor, Tensor, Gradients]:
        sums = torch.zeros(2, dtype=at_least_float32(rows.dtype), device=rows.device)  # loss, nll
        w = matrix.detach().requires_grad_()
        b = None if bias is None else bias.detach().requires_grad_()
        dx: list[Tensor] = []
        for start in range(0, rows.shape[1], size):
            part = slice(start, start + size)
            x = rows[:, part].detach().requires_grad_()  # (2, n, R)
            with torch.enable_grad():
                logits = F.linear(x, w.to(x.dtype), None if b is None else b.to(x.dtype))  # (2, n, V)
                loss, nll = _costs(logits, labels[part], smoothing, weight).where(counted[part], 0.0).sum(1)
            # Called here, not in the model's backward pass, so that only one chunk's logits exist at once
            loss.backward()
            assert x.grad is not None
            dx.append(x.grad)
            sums += torch.stack([loss.detach(), nll.detach()])
        loss, nll = sums
        return loss, nll, [torch.cat(dx, 1), w.grad, None if b is None else b.grad]

    return sum_with_gradients(compute, features.flatten(1, -2), output, counted)  # rows (2, N, R)


def _costs(logits: Tensor, labels: Tensor, smoothing: float, weight: float) -> Tensor:
    """Compute loss and nll of each position, (2, n), from the logits (2, n, V) of both passes."""
    log_probs = logits.log_softmax(-1, dtype=at_least_float32(logits.dtype))
    nll = -log_probs.gather(-1, labels.expand(2, -1)[..., None]).squeeze(-1).mean(0)  # (n,), the mean of both passes
    uniform = -log_probs.mean((0, 2))  # (n,)
    first, second = log_probs
    # KL(p || q) + KL(q || p) = sum_v (p_v - q_v) (log p_v - log q_v)
    divergence = torch.linalg.vecdot(first.exp() - second.exp(), first - second)  # (n,)
    return torch.stack([(1 - smoothing) * nll + smoothing * uniform + weight / 4 * divergence, nll])
