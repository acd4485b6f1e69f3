"""Label-smoothed cross entropy, summed over the real target tokens: of logits, or of what the output layer reads."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


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


# Positions whose logits exist at once, in the type of the products: on a CPU 64 MiB at a vocabulary of 32k in bf16.
_CPU_CHUNK, _GPU_CHUNK = 1024, 4096
# Float32 numbers of a CPU's softmax at once: what its second-level cache holds.
_CPU_CELLS = 1 << 18


def projected_cross_entropy(
    features: Tensor, output: nn.Linear, target: Tensor, mask: Tensor, *, smoothing: float, chunk: int | None = None
) -> LossSums:
    """label_smoothed_cross_entropy(output(features), ...) without logits of more than `chunk` positions at a time.

    features (..., R), target and mask (...). Loss and gradients are made in one pass, with z = W x + b, p = softmax(z)
    and c = mean_v W_v: dL/dx = W' p - (1 - e) W_y - e c and so on, so that the smoothing costs no pass over the
    vocabulary. Under autocast products are of its type, sums in float32. A sharded W is projected whole.
    """
    if hasattr(output.weight, "full_tensor"):
        return label_smoothed_cross_entropy(output(features), target, mask, smoothing=smoothing)
    rows, weights = features.flatten(0, -2), mask.flatten()  # (N, R), (N,)
    device = rows.device.type
    if torch.is_autocast_enabled(device):
        rows = rows.to(torch.get_autocast_dtype(device))  # the same cast as of a linear layer's input
    size = chunk or (_CPU_CHUNK if device == "cpu" else _GPU_CHUNK)
    with torch.autocast(device, enabled=False):
        given = (rows, output.weight, output.bias, target.flatten(), weights, smoothing, size)
        loss, nll = _Projected.apply(*given)  # type: ignore[misc]
    return LossSums(loss, nll, weights.sum())


class _Projected(torch.autograd.Function):
    """Projection, loss and gradients over chunks of rows."""

    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        target: Tensor,
        mask: Tensor,
        smoothing: float,
        chunk: int,
    ) -> tuple[Tensor, Tensor]:
        wanted = any(ctx.needs_input_grad[:3])
        total = _Total(features, weight, bias, smoothing, gradients=wanted)
        for start in range(0, features.shape[0], chunk):
            part = slice(start, start + chunk)
            total.add(part, target[part], mask[part])
        if wanted:
            ctx.gradients = total.gradients(weight, bias)
        ctx.mark_non_differentiable(total.nll)
        return (1 - smoothing) * total.nll + smoothing * total.uniform, total.nll

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        # Given away, so that autograd adds to them in place; there is one backward pass.
        found, ctx.gradients = ctx.gradients, None
        if found is None:
            raise RuntimeError("the gradients of projected_cross_entropy were used up by an earlier backward pass")
        # A gradient of 1 is the rule; on a GPU looking would cost more than multiplying.
        if grad_loss.device.type != "cpu" or float(grad_loss) != 1.0:
            found = [None if part is None else part * grad_loss.to(part.dtype) for part in found]
        return (*found, None, None, None, None)


class _Total:
    """The sums of a pass over the rows: nll, cross entropy against the uniform distribution, and gradients."""

    def __init__(
        self, features: Tensor, weight: Tensor, bias: Tensor | None, smoothing: float, *, gradients: bool
    ) -> None:
        self.features, self.smoothing = features, smoothing
        self.weight = weight.detach().to(features.dtype)  # (V, R)
        self.bias = None if bias is None else bias.detach().to(features.dtype)
        self.wide = torch.promote_types(features.dtype, torch.float32)
        self.mean = weight.detach().mean(0, dtype=self.wide)  # (R,)
        self.mean_bias = 0.0 if bias is None else bias.detach().mean(dtype=self.wide)
        self.nll = torch.zeros((), dtype=self.wide, device=features.device)
        self.uniform = torch.zeros_like(self.nll)
        self.dx = torch.empty_like(features) if gradients else None
        self.dw: Tensor | None = None
        self.db: Tensor | None = None
        if gradients and bias is not None:
            self.db = torch.zeros(weight.shape[0], dtype=self.wide, device=features.device)
        self.seen = torch.zeros_like(self.mean)  # the weighted sum of all rows
        self.count = torch.zeros_like(self.nll)

    def add(self, part: slice, labels: Tensor, mask: Tensor) -> None:
        """Project rows `part` and add what they cost."""
        x, weight = self.features[part], mask.to(self.wide)
        logits = F.linear(x, self.weight, self.bias)  # (n, V)
        cells = logits.shape[1] if logits.device.type == "cpu" else 1
        block = max(1, _CPU_CELLS // cells)
        spare = None
        if logits.device.type == "cpu" and logits.dtype != self.wide:
            spare = torch.empty(2, min(block, len(x)), cells, dtype=self.wide)
        for start in range(0, len(x), block):
            piece = slice(start, start + block)
            self._softmax(logits[piece], labels[piece, None], weight[piece], spare)
        self.uniform -= weight @ (x.to(self.wide) @ self.mean + self.mean_bias)
        if self.dx is not None:
            self._gradients(part, x, logits, weight)

    def _softmax(self, logits: Tensor, labels: Tensor, weight: Tensor, spare: Tensor | None) -> None:
        """Add the cost of some rows and, for gradients, write p - (1 - e) onehot over their logits (n, V)."""
        at_label, highest = logits.gather(1, labels).to(self.wide), logits.amax(1, keepdim=True)
        if spare is None:
            p = torch.softmax(logits, -1, dtype=self.wide)
        else:  # fresh memory costs a CPU more than the softmax
            wide, p = spare[:, : len(logits)]
            torch.softmax(wide.copy_(logits), -1, out=p)
        lse = highest.to(self.wide) - p.amax(1, keepdim=True).log()
        self.nll += weight @ (lse - at_label).squeeze(1)
        self.uniform += weight @ lse.squeeze(1)
        if self.dx is not None:
            p.scatter_add_(1, labels, torch.full_like(at_label, self.smoothing - 1))
            logits.copy_(p)

    def _gradients(self, part: slice, x: Tensor, slopes: Tensor, weight: Tensor) -> None:
        assert self.dx is not None
        scale = weight.to(x.dtype)
        self.dx[part] = (slopes @ self.weight - (self.smoothing * self.mean).to(x.dtype)) * scale[:, None]
        weighted = x * scale[:, None]
        first = self.dw is None
        if self.dw is None:
            self.dw = torch.empty(self.weight.shape, dtype=self.wide, device=x.device)
        for rows in _slices(self.weight.shape[0], x.device.type):
            dw = slopes[:, rows].t() @ weighted  # (v, R)
            self.dw[rows].copy_(dw) if first else self.dw[rows].add_(dw)
        if self.db is not None:
            self.db += scale @ slopes
        self.seen += weighted.sum(0, dtype=self.wide)
        self.count += weight.sum()

    def gradients(self, weight: Tensor, bias: Tensor | None) -> list[Tensor | None]:
        """dx, dW and db, the smoothing's share of W and b taken off."""
        share = self.smoothing / weight.shape[0]
        dw = torch.zeros_like(weight, dtype=self.wide) if self.dw is None else self.dw
        db = None if self.db is None or bias is None else (self.db - share * self.count).to(bias.dtype)
        return [self.dx, dw.sub_(share * self.seen).to(weight.dtype), db]


def _slices(vocab: int, device: str) -> list[slice]:
    """The vocabulary in parts whose gradients in the products' type a CPU's cache holds; on a GPU it is one."""
    size = 2048 if device == "cpu" else vocab
    return [slice(start, start + size) for start in range(0, vocab, size)]
