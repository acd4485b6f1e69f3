"""Skip updates whose gradient is not finite, and end a run that has diverged."""

from __future__ import annotations

import logging

import torch
from torch import Tensor, nn

from seq2seq.settings.optim import OptimSettings
from seq2seq.training.bounds.faults import TrainingFault

log = logging.getLogger(__name__)

# Updates between two transfers of a GPU's verdicts; on a CPU, verdicts are available at once.
_LOOK_EVERY = 64


class Divergence(TrainingFault):
    """The run has diverged: continuing from its last checkpoint may not help."""

    def __init__(self, reason: str, optim: OptimSettings, step: int) -> None:
        super().__init__(
            f"the run has diverged: at update {step} {reason}; {remedies(optim)}, and start again "
            "(from the weights of an earlier checkpoint: init_from=<checkpoint>)"
        )


def require_finite_weights(model: nn.Module, optim: OptimSettings, *, step: int) -> None:
    """Raise Divergence if a weight is infinite or nan."""
    # One result for all weights, so that the host waits for a GPU only once.
    finite = torch.stack([parameter.detach().isfinite().all() for parameter in model.parameters()])
    if not bool(finite.all()):
        names = [name for (name, _), fine in zip(model.named_parameters(), finite.tolist(), strict=True) if not fine]
        raise Divergence(f"{len(names)} of {len(finite)} weights ({names[0]}, ...) are not finite", optim, step)


def require_finite_loss(loss: Tensor, optim: OptimSettings, *, step: int, split: str) -> None:
    """Raise Divergence if the loss of a batch of `split` is infinite or nan; its search would have such scores too."""
    if not bool(loss.isfinite()):
        raise Divergence(f"the loss of the {split} set is {float(loss)}", optim, step)


def remedies(optim: OptimSettings) -> str:
    """List the settings that keep a run from diverging, with their values."""
    warmup = "warmup_share" if optim.schedule == "anneal" else "warmup_steps"
    clip = "" if optim.clip_norm else ", set optim.clip_norm=1"
    return f"lower optim.lr={optim.lr:g}, raise optim.{warmup}={getattr(optim, warmup)}{clip}"


class SkippedUpdates:
    """Guard that skips updates whose gradient is not finite, as if their batches did not exist, up to a limit.

    On a GPU, the optimizer reads the verdict from a tensor on the device, so that the host does not wait for it.
    TrainingFault, with the numbers of the sentences, therefore comes a little later than the update that exceeds the
    limit.

    Args:
        limit: Most updates that a run may skip.
        remedies: What to change, for the message of the fault.
    """

    def __init__(self, limit: int, *, remedies: str = "lower the learning rate") -> None:
        self.limit = limit
        self.remedies = remedies
        self.count = 0
        self._rows: list[Tensor] = []
        # Judged updates: step, numbers of the sentences, and a flag that is true if the update was skipped.
        self._updates: list[tuple[int, list[Tensor], Tensor]] = []

    def note(self, rows: Tensor) -> None:
        """Record the numbers of the sentences of a micro-batch of this update."""
        self._rows.append(rows)

    def judge(self, norm: Tensor, optimizer: torch.optim.Optimizer, step: int) -> Tensor:
        """Let `optimizer` skip update `step` if `norm` is not finite; return a scalar bool that is True if it does."""
        bad = ~norm.isfinite()
        own = getattr(optimizer, "optimizer", optimizer)  # Lightning wraps it
        if getattr(own, "defaults", {}).get("fused"):
            # As a gradient scaler does: if this flag is set, a fused AdamW and our Muon change nothing.
            own.found_inf = bad.float()  # type: ignore[attr-defined]
        elif bad:
            # An optimizer ignores parameters without gradients. Reading `bad` waits for the device.
            own.zero_grad(set_to_none=True)
        self._updates.append((step, self._rows, bad))
        self._rows = []
        if norm.device.type == "cpu" or len(self._updates) >= _LOOK_EVERY:
            self.settle()
        return bad

    def settle(self) -> None:
        """Count the updates that were skipped.

        Raises:
            TrainingFault: More updates were skipped than the limit allows.
        """
        updates = self._updates
        self._updates = []
        # One transfer for all the updates since the last one.
        flags = torch.stack([bad for _, _, bad in updates]).tolist() if updates else []
        for (step, rows, _), skipped in zip(updates, flags, strict=True):
            if not skipped:
                continue
            self.count += 1
            log.warning("update %d skipped: its gradient is not finite (%d so far)", step + 1, self.count)
            if self.count > self.limit:
                raise TrainingFault(
                    f"{self.count} updates had a gradient that is not finite, more than trainer.max_skipped="
                    f"{self.limit}: {self.remedies}, or look at the sentences of the last one in fault-*.json",
                    # An idle micro-batch has the row -1
                    {"update": step + 1, "training_pairs": [part[part >= 0].tolist() for part in rows]},
                )
