"""Detect a run that has diverged, before a validation would decode nonsense, and say what to change."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from seq2seq.training.errors import TrainingFault

if TYPE_CHECKING:
    from torch import Tensor, nn

    from seq2seq.config.optim import OptimSettings


class Divergence(TrainingFault):
    """The run has diverged: going on from its last checkpoint may not help."""


def require_finite_weights(model: nn.Module, optim: OptimSettings, *, step: int) -> None:
    """Raise TrainingFault if a weight is infinite or not a number: no later update can mend it."""
    # One answer for all weights, so that a GPU is waited for once.
    finite = torch.stack([parameter.detach().isfinite().all() for parameter in model.parameters()])
    if not bool(finite.all()):
        names = [name for (name, _), fine in zip(model.named_parameters(), finite.tolist(), strict=True) if not fine]
        raise _diverged(f"{len(names)} of {len(finite)} weights ({names[0]}, ...) are not finite", optim, step)


def require_finite_loss(loss: Tensor, optim: OptimSettings, *, step: int, split: str) -> None:
    """Raise TrainingFault if the loss of a batch of `split` is not finite: neither are the scores of a search."""
    if not bool(loss.isfinite()):
        raise _diverged(f"the loss of the {split} set is {float(loss)}", optim, step)


def remedies(optim: OptimSettings) -> str:
    """List the settings that keep a run from diverging, with their values."""
    warmup = "warmup_share" if optim.schedule == "anneal" else "warmup_steps"
    words = [f"lower optim.lr={optim.lr:g}", f"raise optim.{warmup}={getattr(optim, warmup)}"]
    # Clipping is no remedy where it is on already.
    words += [] if optim.clip_norm else ["set optim.clip_norm=1"]
    return ", ".join(words)


def _diverged(what: str, optim: OptimSettings, step: int) -> Divergence:
    return Divergence(
        f"the run has diverged: at update {step} {what}; {remedies(optim)}, and start again "
        "(from the weights of an earlier checkpoint: init_from=<checkpoint>)"
    )
