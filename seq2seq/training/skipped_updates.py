"""Updates whose gradient is not finite: left out, counted, told."""

from __future__ import annotations

import logging
from typing import NamedTuple

import torch
from torch import Tensor

from seq2seq.training.errors import TrainingFault

log = logging.getLogger(__name__)

# A device's answer is waited for once in so many updates; a CPU's is there at once.
_PATIENCE = 64


class _Window(NamedTuple):
    step: int
    rows: list[Tensor]
    bad: Tensor


class SkippedUpdates:
    """Leaves out updates whose gradient is not finite, as if their batches had not been there, up to a limit.

    The optimiser is told by a tensor on its own device, so that nothing waits for an answer; TrainingFault, with the
    numbers of the sentences, comes a little later than the update that passed the limit.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.count = limit, 0
        self._rows: list[Tensor] = []
        self._windows: list[_Window] = []

    def note(self, rows: Tensor) -> None:
        """The numbers of the sentences of a micro-batch of this update."""
        self._rows.append(rows)

    def judge(self, norm: Tensor, optimizer: torch.optim.Optimizer, step: int) -> Tensor:
        """Let `optimizer` skip update `step` if the gradient's `norm` is not finite: whether it does, a tensor."""
        bad = ~norm.isfinite()
        own = getattr(optimizer, "optimizer", optimizer)  # Lightning wraps it
        if isinstance(own, torch.optim.AdamW) and own.defaults.get("fused"):
            own.found_inf = bad.float()  # type: ignore[attr-defined]
        elif bad:
            own.zero_grad(set_to_none=True)
        self._windows.append(_Window(step, self._rows, bad))
        self._rows = []
        if norm.device.type == "cpu" or len(self._windows) >= _PATIENCE:
            self.settle()
        return bad

    def settle(self) -> None:
        """Count what was skipped; TrainingFault if it is too much."""
        windows, self._windows = self._windows, []
        flags = torch.stack([window.bad for window in windows]).tolist() if windows else []
        for window, bad in zip(windows, flags, strict=True):
            if not bad:
                continue
            self.count += 1
            rows = [part.tolist() for part in window.rows]
            log.warning("update %d skipped: its gradient is not finite (%d so far)", window.step + 1, self.count)
            if self.count > self.limit:
                raise TrainingFault(
                    f"{self.count} updates had a gradient that is not finite, more than trainer.max_skipped="
                    f"{self.limit}: lower optim.lr, raise optim.warmup_steps, set optim.clip_norm=1, or look at the "
                    "sentences of the last one",
                    {"update": window.step + 1, "training_pairs": rows},
                )
