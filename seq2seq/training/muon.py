"""Muon for matrices beside AdamW for all other parameters, as one optimizer with one parameter group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from seq2seq.training.hardware import has_bf16

# Matrices, and of each the sizes of the blocks of rows that are one matrix each.
Matrices = Mapping[Tensor, tuple[int, ...]]
# Of the quintic iteration: Jordan's, which bring every singular value near 1 in five steps.
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_STEPS = 5


class MuonWithAdam(torch.optim.Optimizer):
    """Muon for `matrices`, AdamW for the other parameters, with one learning rate for both.

    B <- mu B + (1 - mu) G;  W <- W - lr 0.2 sqrt(max(m, n)) orthogonalize((1 - mu) G + mu B), with W (m, n): the root
    mean square of an update is about that of AdamW's, so that AdamW's rates fit. W also shrinks by lr weight_decay.

    `found_inf`, a tensor, makes `step` leave everything alone where it is not 0, as it does in torch's fused AdamW.

    Args:
        parameters: All that are trained.
        matrices: Those of them that Muon updates, with the sizes of their blocks.
        lr: Of both; the schedule changes that of the parameter group.
        betas: AdamW's rates of decay.
        eps: Added to AdamW's denominator.
        momentum: mu.
        weight_decay: Decoupled, times the rate.

    Raises:
        ValueError: There are several parameter groups.

    Reference:
        Jordan et al. 2024, Muon: An optimizer for hidden layers in neural networks; Liu et al. 2025, Muon is scalable
        for LLM training (the factor 0.2 sqrt(max(m, n))).
    """

    found_inf: Tensor | None = None

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        matrices: Matrices,
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.98),
        eps: float = 1e-9,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
    ) -> None:
        # "fused" tells torch's loader of states to keep AdamW's counters on the device of their parameter
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay, "fused": True})
        self._momentum = momentum
        trained = self.param_groups[0]["params"]
        self._matrices = {each: matrices[each] for each in trained if each in matrices}
        others = [each for each in trained if each not in matrices]
        self._adam = None
        if others:
            self._adam = torch.optim.AdamW(others, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, fused=True)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Take the one group of parameters that there is."""
        if self.param_groups:
            raise ValueError("optim.name=muon has one group of parameters; use optim.name=adam for several")
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters that have a gradient; `closure`, if any, computes the loss and the gradients."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        group = self.param_groups[0]
        for matrix, sizes in self._matrices.items():
            if matrix.grad is not None:
                self._update(matrix, matrix.grad, sizes, group["lr"], group["weight_decay"])
        if self._adam is not None:
            self._adam.state = self.state  # which loading replaces
            self._adam.param_groups[0] |= {key: group[key] for key in ("lr", "weight_decay")}
            self._adam.found_inf = self.found_inf  # type: ignore[attr-defined]
            self._adam.step()
        return loss

    def _update(self, matrix: Tensor, gradient: Tensor, sizes: tuple[int, ...], lr: float, decay: float) -> None:
        if "momentum_buffer" not in self.state[matrix]:
            self.state[matrix]["momentum_buffer"] = torch.zeros_like(matrix)
        old = self.state[matrix]["momentum_buffer"]
        new = old.lerp(gradient, 1 - self._momentum)
        direction = gradient.lerp(new, self._momentum)
        blocks = direction.split(sizes)
        # a CPU that only emulates bf16 would take tens of times as long
        dtype = torch.bfloat16 if has_bf16("cpu" if matrix.device.type == "cpu" else "gpu") else torch.float32
        parts = [orthogonalize(block, dtype).to(matrix.dtype) * (0.2 * max(block.shape) ** 0.5) for block in blocks]
        updated = matrix * (1 - lr * decay) - lr * torch.cat(parts)
        if self.found_inf is not None:
            # no branch, which would wait for the device
            skipped = self.found_inf != 0
            new, updated = torch.where(skipped, old, new), torch.where(skipped, matrix, updated)
        old.copy_(new)
        matrix.copy_(updated)


def orthogonalize(matrix: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Return about U V' of a matrix U S V': (m, n) -> (m, n), computed in `dtype`, singular values from 0.5 to 1.5.

    X <- a X + b (X X') X + c (X X')^2 X, five times from X = M / |M|, which moves every singular value towards 1.

    Reference:
        Jordan et al. 2024, Muon: An optimizer for hidden layers in neural networks.
    """
    a, b, c = _COEFFICIENTS
    wide = matrix.shape[0] <= matrix.shape[1]
    x = (matrix if wide else matrix.T).to(dtype)
    x = x / x.norm().clamp_min(1e-7)
    for _ in range(_STEPS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x if wide else x.T
