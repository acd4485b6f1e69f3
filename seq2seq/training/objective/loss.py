"""Label-smoothed cross entropy of the output layer's predictions, summed over the real target tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from seq2seq.kernels.cross_entropy import cross_entropy_, is_served
from seq2seq.kernels.precision import at_least_float32


class LossSums(NamedTuple):
    """Sums over a batch: `loss` (differentiable), `nll` without smoothing in nats, `tokens` counted; scalar tensors."""

    loss: Tensor
    nll: Tensor
    tokens: Tensor


# Gradients to features, weight and bias
Gradients = list[Tensor | None]
# Computes loss, nll and gradients from features, weight, bias, and True if gradients are wanted
Compute = Callable[[Tensor, Tensor, Tensor | None, bool], tuple[Tensor, Tensor, Gradients]]

# Positions whose logits exist at once, in the type of the products: on a CPU 64 MiB at a vocabulary of 32k in bf16.
_CPU_CHUNK, _GPU_CHUNK = 1024, 4096
# The same for losses that autograd differentiates, which keep several tensors of the logits' size.
_SMALL_CPU_CHUNK, _SMALL_GPU_CHUNK = 256, 2048
# Float32 numbers in one block of a CPU's softmax: as many as the second-level cache holds.
_CPU_CELLS = 1 << 18


def projected_cross_entropy(
    features: Tensor,
    output: nn.Linear,
    target: Tensor,
    mask: Tensor,
    *,
    smoothing: float,
    backend: str = "auto",
) -> LossSums:
    """Sum (1 - e) * -log p(y) + e / V * sum_v -log p(v) over the positions where `mask` is True.

    p = softmax(z), z = W x + b, with the logits z of a chunk of positions at a time. One pass computes loss and
    gradients. With c = mean_v W_v, dL/dx = W' p - (1 - e) W_y - e c and so on, so that smoothing costs no pass over the
    vocabulary. Under autocast products are computed in its type, and sums in float32.

    Args:
        output: The output layer, whose weight W and bias b get gradients too.
        smoothing: e, the share of the target distribution that is uniform over the vocabulary.
        backend: "auto", "triton" or "torch" (see `seq2seq.kernels.dispatch`).

    Shape:
        features (..., R); target (...) int64; mask (...) bool.

    Reference:
        Szegedy et al. 2016, Rethinking the Inception Architecture for Computer Vision, section 7.
    """
    size = _CPU_CHUNK if features.device.type == "cpu" else _GPU_CHUNK
    labels, counted = target.flatten(), mask.flatten()  # (N,)

    def compute(rows: Tensor, weight: Tensor, bias: Tensor | None, wanted: bool) -> tuple[Tensor, Tensor, Gradients]:
        total = _Total(rows, weight, bias, smoothing, gradients=wanted, backend=backend)
        for start in range(0, rows.shape[0], size):
            part = slice(start, start + size)
            total.add(part, labels[part], counted[part])
        loss = (1 - smoothing) * total.nll + smoothing * total.uniform
        return loss, total.nll, total.gradients(weight, bias) if wanted else []

    return sum_with_gradients(compute, features.flatten(0, -2), output, counted)


def sum_with_gradients(compute: Compute, rows: Tensor, output: nn.Linear, counted: Tensor) -> LossSums:
    """Apply a loss that computes its gradients in the forward pass.

    The rows are cast to autocast's type if it is enabled, as a linear layer would cast them.
    """
    device = rows.device.type
    if torch.is_autocast_enabled(device):
        rows = rows.to(torch.get_autocast_dtype(device))
    # `compute` casts by itself; autocast would also cast products and sums.
    with torch.autocast(device, enabled=False):
        loss, nll = _WithGradients.apply(rows, output.weight, output.bias, compute)  # type: ignore[misc]
    return LossSums(loss, nll, counted.sum())


def sum_by_chunks(
    costs: Callable[[Tensor, slice], Tensor], rows: Tensor, output: nn.Linear, counted: Tensor
) -> LossSums:
    """Apply a loss that autograd differentiates, some positions at a time, with its gradients in the forward pass.

    Args:
        costs: Maps the logits (..., n, V) of a slice of the positions to loss and nll of each, (2, n).

    Shape:
        rows (..., N, R), the inputs of the output layer; counted (N,) bool.
    """
    size = _SMALL_CPU_CHUNK if rows.device.type == "cpu" else _SMALL_GPU_CHUNK

    def compute(rows: Tensor, matrix: Tensor, bias: Tensor | None, _: bool) -> tuple[Tensor, Tensor, Gradients]:
        sums = torch.zeros(2, dtype=at_least_float32(rows.dtype), device=rows.device)  # loss, nll
        w = matrix.detach().requires_grad_()
        b = None if bias is None else bias.detach().requires_grad_()
        dx: list[Tensor] = []
        for start in range(0, rows.shape[-2], size):
            part = slice(start, start + size)
            x = rows[..., part, :].detach().requires_grad_()  # (..., n, R)
            with torch.enable_grad():
                logits = F.linear(x, w.to(x.dtype), None if b is None else b.to(x.dtype))  # (..., n, V)
                loss, nll = costs(logits, part).where(counted[part], 0.0).sum(1)
            # Called here, not in the model's backward pass, so that only one chunk's logits exist at once
            loss.backward()
            assert x.grad is not None
            dx.append(x.grad)
            sums += torch.stack([loss.detach(), nll.detach()])
        loss, nll = sums
        return loss, nll, [torch.cat(dx, -2), w.grad, None if b is None else b.grad]

    return sum_with_gradients(compute, rows, output, counted)


class _WithGradients(torch.autograd.Function):
    """Loss whose forward pass computes the gradients as well."""

    @staticmethod
    def forward(
        ctx: Any, features: Tensor, weight: Tensor, bias: Tensor | None, compute: Compute
    ) -> tuple[Tensor, Tensor]:
        loss, nll, ctx.gradients = compute(features, weight, bias, any(ctx.needs_input_grad))
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        # The gradients are handed over, so that autograd adds to them in place; there is one backward pass.
        found, ctx.gradients = ctx.gradients, None
        if found is None:
            raise RuntimeError("the gradients of this loss were used up by an earlier backward pass")
        return *scaled(found, grad_loss), None


def scaled(gradients: Gradients, factor: Tensor) -> Gradients:
    """Multiply gradients by the gradient of the loss, which is nearly always 1."""
    # On a GPU reading the factor would cost more than multiplying.
    if factor.device.type == "cpu" and float(factor) == 1.0:
        return gradients
    return [None if each is None else each * factor.to(each.dtype) for each in gradients]


class _Total:
    """Sums of a pass over the rows: nll, cross entropy against the uniform distribution, and gradients."""

    def __init__(
        self,
        features: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        smoothing: float,
        *,
        gradients: bool,
        backend: str,
    ) -> None:
        self.features, self.smoothing, self.backend = features, smoothing, backend
        self.weight = weight.detach().to(features.dtype)  # (V, R)
        self.bias = None if bias is None else bias.detach().to(features.dtype)  # (V,)
        # Sums are in float32, or in float64 for gradient checks.
        self.wide = at_least_float32(features.dtype)
        # The mean logit of a row is mean . x + mean_bias, so smoothing needs no sum over V.
        self.mean = weight.detach().mean(0, dtype=self.wide)  # (R,)
        self.mean_bias = 0.0 if bias is None else bias.detach().mean(dtype=self.wide)  # scalar
        self.nll = torch.zeros((), dtype=self.wide, device=features.device)
        self.uniform = torch.zeros_like(self.nll)
        self.dx = torch.empty_like(features) if gradients else None  # (N, R)
        self.dw: Tensor | None = None  # (V, R), allocated for the first chunk
        self.db: Tensor | None = None  # (V,)
        if gradients and bias is not None:
            self.db = torch.zeros(weight.shape[0], dtype=self.wide, device=features.device)
        self.seen = torch.zeros_like(self.mean)  # the sum of the counted rows
        self.count = torch.zeros_like(self.nll)  # the number of counted rows

    def add(self, part: slice, labels: Tensor, counted: Tensor) -> None:
        """Project the rows `part`, and add the costs and gradients of the rows where `counted` (n,) is True."""
        x = self.features[part]  # (n, R)
        logits = F.linear(x, self.weight, self.bias)  # (n, V)
        if is_served(logits, self.backend):
            # If gradients are wanted, `cross_entropy_` overwrites the logits with p - (1 - e) onehot
            wanted = self.dx is not None
            costs = cross_entropy_(logits, labels, counted, at_label=1 - self.smoothing, gradient=wanted)  # (2, n)
            nll, uniform = costs.sum(1)
            self.nll += nll
            self.uniform += uniform
        else:
            self._blocks(x, logits, labels, counted.to(self.wide))
        if self.dx is not None:
            self._gradients(part, x, logits, counted)

    def _blocks(self, x: Tensor, logits: Tensor, labels: Tensor, counted: Tensor) -> None:
        """Do the work of `cross_entropy_` in torch operations, for rows x (n, R) with logits (n, V).

        Here and in `_softmax`, `counted` (n,) is 1 or 0.
        """
        # On a CPU each block of rows fits the cache; a GPU takes all rows at once.
        cells = logits.shape[1] if logits.device.type == "cpu" else 1
        block = max(1, _CPU_CELLS // cells)
        # (2, rows, V): the logits in float32 and their softmax, reused by every block.
        spare = None
        if logits.device.type == "cpu" and logits.dtype != self.wide:
            spare = torch.empty(2, min(block, len(x)), cells, dtype=self.wide)
        for start in range(0, len(x), block):
            piece = slice(start, start + block)
            self._softmax(logits[piece], labels[piece, None], counted[piece], spare)
        # -mean_v log p_v = lse - mean_v z_v; `_softmax` has added the first term.
        self.uniform -= counted @ (x.to(self.wide) @ self.mean + self.mean_bias)

    def _softmax(self, logits: Tensor, labels: Tensor, counted: Tensor, spare: Tensor | None) -> None:
        """Add the cost of some rows and, for gradients, write p - (1 - e) onehot over their logits (n, V)."""
        # Both are (n, 1)
        at_label, highest = logits.gather(1, labels).to(self.wide), logits.amax(1, keepdim=True)
        if spare is None:
            p = torch.softmax(logits, -1, dtype=self.wide)
        else:  # allocating memory costs a CPU more than the softmax
            wide, p = spare[:, : len(logits)]
            torch.softmax(wide.copy_(logits), -1, out=p)
        # The largest probability is exp(highest - lse), so the softmax also yields the log-sum-exp.
        lse = highest.to(self.wide) - p.amax(1, keepdim=True).log()
        self.nll += counted @ (lse - at_label).squeeze(1)
        self.uniform += counted @ lse.squeeze(1)
        if self.dx is not None:
            # The e / V of the smoothing is left out here: `_gradients` and `gradients` subtract it for whole sums.
            p.scatter_add_(1, labels, torch.full_like(at_label, self.smoothing - 1))
            # `_gradients` reads the gradient of the logits from their memory.
            logits.copy_(p)

    def _gradients(self, part: slice, x: Tensor, grads: Tensor, counted: Tensor) -> None:
        """Add the gradients of rows `part`; `grads` (n, V) is p - (1 - e) onehot."""
        assert self.dx is not None
        scale = counted.to(x.dtype)  # (n,), 1 or 0
        self.dx[part] = (grads @ self.weight - (self.smoothing * self.mean).to(x.dtype)) * scale[:, None]
        real = x * scale[:, None]  # (n, R)
        # The first chunk writes instead of adding, which saves filling dw with zeros.
        first = self.dw is None
        if self.dw is None:
            self.dw = torch.empty(self.weight.shape, dtype=self.wide, device=x.device)
        # On a CPU, the gradients of one part of the vocabulary fit the cache; a GPU takes one part
        size = 2048 if x.device.type == "cpu" else len(self.weight)
        for start in range(0, len(self.weight), size):
            rows = slice(start, start + size)
            dw = grads[:, rows].t() @ real  # (v, R)
            self.dw[rows].copy_(dw) if first else self.dw[rows].add_(dw)
        if self.db is not None:
            self.db += scale @ grads
        self.seen += real.sum(0, dtype=self.wide)
        self.count += counted.sum()

    def gradients(self, weight: Tensor, bias: Tensor | None) -> list[Tensor | None]:
        """Return dx, dW and db, with the smoothing's e / V of every row subtracted from dW and db."""
        share = self.smoothing / weight.shape[0]
        # An empty batch has no chunk.
        dw = torch.zeros_like(weight, dtype=self.wide) if self.dw is None else self.dw
        db = None if self.db is None or bias is None else (self.db - share * self.count).to(bias.dtype)
        return [self.dx, dw.sub_(share * self.seen).to(weight.dtype), db]
