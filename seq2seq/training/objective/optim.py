"""Optimizers and learning-rate schedules, counted in updates (optimizer steps); the first update is 1."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from seq2seq.settings.optim import OptimSettings
from seq2seq.training.objective.muon import Matrices, MuonWithAdam


def learning_rate(step: int, settings: OptimSettings, share: float = 0.0) -> float:
    """Compute the rate of update n = `step` (1, 2, ...); W = warmup_steps, and `share` (0 to 1) of the budget is used.

    warm-up (n <= W):  init + (lr - init) * n / W, init = warmup_init_lr
    inverse_sqrt:      max(min_lr, lr * sqrt(max(W, 1) / n))                                     (Vaswani et al., 2017)
    cosine:            min_lr + (lr - min_lr) / 2 * (1 + cos(pi * min(1, (n - W) / period)))     (Loshchilov, 2017)
    anneal:            rises linearly from init until share = warmup_share, stays until share = f, then
                       min_lr + (lr - min_lr) / 2 * (1 + cos(pi * (share - f) / (1 - f))), f = max(warmup_share,
                       1 - decay_share): any budget, long or short, ends annealed; with a small decay_share
                       warmup-stable-decay (Hu, 2024)
    constant:          lr
    """
    if settings.schedule == "anneal":
        # Rise, stay, then a half cosine over the rest of the budget.
        rise = settings.warmup_share
        fall = max(rise, 1 - settings.decay_share)
        if share < rise:
            return settings.warmup_init_lr + (settings.lr - settings.warmup_init_lr) * share / rise
        # With decay_share=1e-17 the fall has no length
        return _cosine(min(1.0, (share - fall) / (1 - fall)), settings) if share > fall else settings.lr
    warmup = settings.warmup_steps
    if step <= warmup:
        return settings.warmup_init_lr + (settings.lr - settings.warmup_init_lr) * step / warmup
    if settings.schedule == "inverse_sqrt":
        return max(settings.min_lr, settings.lr * math.sqrt(max(warmup, 1) / step))
    if settings.schedule == "cosine":
        return _cosine(min(1.0, (step - warmup) / settings.period), settings)
    return settings.lr


def _cosine(progress: float, settings: OptimSettings) -> float:
    return settings.min_lr + (settings.lr - settings.min_lr) / 2 * (1 + math.cos(math.pi * progress))


def build_optimizer(
    parameters: Iterable[nn.Parameter],
    settings: OptimSettings,
    matrices: Matrices | None = None,
) -> torch.optim.Optimizer:
    """Build the optimizer of `settings`; Muon updates the `matrices` among the parameters.

    Reference:
        Loshchilov and Hutter 2019, Decoupled Weight Decay Regularization: AdamW's decay, times the learning rate.
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    # `Schedule` sets the rate of all later updates.
    given: dict[str, Any] = {"lr": learning_rate(1, settings), "eps": settings.eps}
    given |= {"weight_decay": settings.weight_decay}
    optimizer: torch.optim.Optimizer
    if settings.name == "adadelta":
        optimizer = torch.optim.Adadelta(trained, rho=settings.rho, **given)
    elif settings.name == "muon":
        given |= {"momentum": settings.momentum, "adam_lr_scale": settings.adam_lr_scale}
        optimizer = MuonWithAdam(trained, matrices or {}, betas=settings.betas, **given)
    else:
        # The fused version can also skip updates on the device (`SkippedUpdates` sets its found_inf).
        optimizer = torch.optim.AdamW(trained, betas=settings.betas, fused=True, **given)
    optimizer.register_load_state_dict_pre_hook(_keep_settings)
    return optimizer


def _keep_settings(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """Restore the moments, and keep the current settings, such as decay rates."""
    pairs = zip(optimizer.param_groups, state["param_groups"], strict=True)
    return {**state, "param_groups": [{**own, "params": given["params"]} for own, given in pairs]}


class Schedule(torch.optim.lr_scheduler.LRScheduler):
    """Schedule that sets every group's rate to `learning_rate(last_epoch + 1)`.

    `last_epoch` (torch's name) counts the updates so far. `share` is the used part of the run's budget, which the
    caller sets before `step`.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, settings: OptimSettings) -> None:
        self._settings, self.share = settings, 0.0
        super().__init__(optimizer)

    def get_lr(self) -> list[float | Tensor]:
        """Return the rate of the next update, one entry per parameter group."""
        rate = learning_rate(self.last_epoch + 1, self._settings, self.share)
        return [rate for _ in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Return the count and the share; the rate follows from the settings."""
        return {"last_epoch": self.last_epoch, "share": self.share}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from the count."""
        self.last_epoch = int(state_dict["last_epoch"])
        self.follow(float(state_dict["share"]))

    def follow(self, share: float) -> None:
        """Set the rate of the next update at this share of the budget."""
        self.share = share
        for group, lr in zip(self.optimizer.param_groups, self.get_lr(), strict=True):
            group["lr"] = lr


@torch.no_grad()
def scale_and_clip(parameters: Iterable[nn.Parameter], scale: Tensor, *, clip_norm: float) -> Tensor:
    """Multiply all gradients by `scale`, then clip their joint 2-norm to `clip_norm` (0 = off).

    One multiplication does both: the factor is scale * min(1, clip_norm / (scale * norm)).

    Args:
        scale: A scalar tensor on the gradients' device, so that the host does not wait for it.

    Returns:
        The norm after scaling and before clipping.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    if hasattr(norm, "full_tensor"):  # sharded gradients have one norm over all ranks
        norm = norm.full_tensor()  # type: ignore[reportAttributeAccessIssue]
    norm = norm * scale
    if clip_norm > 0:
        # The norm may be 0; 1e-6 as in torch's clip_grad_norm_.
        scale = scale * torch.clamp(clip_norm / (norm + 1e-6), max=1.0)
    torch._foreach_mul_(gradients, scale)  # type: ignore[reportPrivateImportUsage]
    return norm
