"""User-facing training errors, and updates that are skipped because their gradient is not finite."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from seq2seq.faults import disk_error, disk_message, is_out_of_memory

if TYPE_CHECKING:
    import torch
    from torch import Tensor

log = logging.getLogger(__name__)

# Updates between two looks at what a GPU has judged; a CPU's answer is there at once.
_LOOK_EVERY = 64


class TrainingFault(Exception):  # noqa: N818 - shown as a fault, not as a mistake of the program
    """Training cannot continue; the message says why and what to do.

    Args:
        details: Written into the run's folder.
    """

    def __init__(self, message: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.details = details or {}


def as_fault(error: BaseException, *, shape: Sequence[int] | None, max_tokens: int | None) -> TrainingFault | None:
    """Return the fault to report for an error of the data or the machine, None for any other error.

    Args:
        shape: Sentences, source and target width of the last batch; None before there was one.
    """
    if is_out_of_memory(error):
        if not shape:
            return TrainingFault("out of memory while the run was prepared: free it of other programs")
        sentences, source, target = shape
        return TrainingFault(
            f"out of memory on a batch of {sentences} sentences, {source} + {target} pieces wide: lower "
            f"data.max_tokens={max_tokens} and raise trainer.accumulate as much, or set "
            "trainer.checkpoint_activations=true"
        )
    # A validation or the test of a run whose weights have grown without bound.
    if isinstance(error, FloatingPointError):
        return TrainingFault(str(error))
    if (fault := disk_error(error)) is not None:
        return TrainingFault(str(disk_message(fault)))
    # A file that is gone; an OSError without a message is not from a system call.
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return TrainingFault(f"{where}{error.strerror}; see that it is there and can be read")
    return None


class _Update(NamedTuple):
    """Judged update: its step, the numbers of its sentences, and a flag that is true if it was skipped."""

    step: int
    rows: list[Tensor]
    bad: Tensor


class SkippedUpdates:
    """Guard that skips updates whose gradient is not finite, as if their batches had not been there, up to a limit.

    The optimizer reads a tensor on its own device, so nothing waits for an answer; TrainingFault, with the numbers of
    the sentences, comes a little later than the update that passed the limit.

    Args:
        limit: Skipped updates that the run survives.
        remedies: What to change, for the message of the fault.
    """

    def __init__(self, limit: int, *, remedies: str = "lower the learning rate") -> None:
        self.limit = limit
        self.remedies = remedies
        self.count = 0
        self._rows: list[Tensor] = []
        self._updates: list[_Update] = []

    def note(self, rows: Tensor) -> None:
        """Record the numbers of the sentences of a micro-batch of this update."""
        self._rows.append(rows)

    def judge(self, norm: Tensor, optimizer: torch.optim.Optimizer, step: int) -> Tensor:
        """Let `optimizer` skip update `step` if the gradient's `norm` is not finite.

        Returns:
            A scalar boolean tensor, True if the update is skipped.
        """

        bad = ~norm.isfinite()
        own = getattr(optimizer, "optimizer", optimizer)  # Lightning wraps it
        if getattr(own, "defaults", {}).get("fused"):
            # As a gradient scaler does it: a fused AdamW, and our Muon, read the flag and leave all as it is.
            own.found_inf = bad.float()  # type: ignore[attr-defined]
        elif bad:
            # An optimizer passes parameters without gradients by. This waits for the device.
            own.zero_grad(set_to_none=True)
        self._updates.append(_Update(step, self._rows, bad))
        self._rows = []
        if norm.device.type == "cpu" or len(self._updates) >= _LOOK_EVERY:
            self.settle()
        return bad

    def settle(self) -> None:
        """Count the updates that were skipped.

        Raises:
            TrainingFault: They are more than the limit.
        """
        import torch

        updates, self._updates = self._updates, []
        # One transfer for all the updates since the last look.
        flags = torch.stack([update.bad for update in updates]).tolist() if updates else []
        for update, bad in zip(updates, flags, strict=True):
            if not bad:
                continue
            self.count += 1
            log.warning("update %d skipped: its gradient is not finite (%d so far)", update.step + 1, self.count)
            if self.count > self.limit:
                raise TrainingFault(
                    f"{self.count} updates had a gradient that is not finite, more than trainer.max_skipped="
                    f"{self.limit}: {self.remedies}, or look at the sentences of the last one",
                    {"update": update.step + 1, "training_pairs": [part.tolist() for part in update.rows]},
                )
