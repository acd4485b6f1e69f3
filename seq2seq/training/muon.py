"""Muon for matrices beside AdamW for all other parameters, as one optimizer with one parameter group."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn


class Muon(torch.optim.Optimizer):
    """Muon for `matrices`, AdamW for the other parameters, with one learning rate for both.

    B <- mu B + (1 - mu) G;  W <- W - lr 0.2 sqrt(max(m, n)) orth((1 - mu) G + mu B), with W (m, n) and orth(M) near
    U V' where M = U S V': an update's root mean square is about that of AdamW's, so that AdamW's rates fit.

    Args:
        parameters: All that are trained.
        matrices: Those of them that Muon updates.
        betas, eps: AdamW's.
        momentum: mu.
        weight_decay: Decoupled, times the rate.

    Reference:
        Jordan et al. 2024, Muon: An optimizer for hidden layers in neural networks; Liu et al. 2025, Muon is scalable
        for LLM training (the factor 0.2 sqrt(max(m, n))).
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        matrices: Iterable[Tensor],
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.98),
        eps: float = 1e-9,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
    ) -> None:
        # "fused" tells torch's loader of states to keep AdamW's counters on the device of their parameter
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay, "fused": True})
        chosen = {id(matrix) for matrix in matrices}
        own = [p for p in self.param_groups[0]["params"] if id(p) in chosen]
        others = [p for p in self.param_groups[0]["params"] if id(p) not in chosen]
        self._parts: list[torch.optim.Optimizer] = []
        if own:
            self._parts.append(
                torch.optim.Muon(
                    own, lr=lr, momentum=momentum, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"
                )
            )
        if others:
            self._parts.append(
                torch.optim.AdamW(others, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, fused=True)
            )

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters that have a gradient; `closure`, if any, computes the loss and the gradients."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self._parts:
            part.state = self.state  # which loading replaces
            part.param_groups[0]["lr"] = self.param_groups[0]["lr"]
            part.step()
        return loss
