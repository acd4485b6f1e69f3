"""Errors of the data or the machine that end a training, each with its reason and a remedy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from seq2seq.system.errors import CorpusFault, first_line, is_out_of_memory, machine_fault, os_message


class TrainingFault(Exception):  # noqa: N818 - shown as a fault, not as a mistake of the program
    """Training cannot continue; the message says why and what to do.

    Args:
        details: Data to write into the run's folder.
    """

    def __init__(self, message: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.details = details or {}


def as_fault(
    error: BaseException,
    *,
    shape: Sequence[int] | None,
    max_tokens: int | None,
    batch_tokens: int | None = None,
    replayed: bool = False,
) -> TrainingFault | None:
    """Return the fault to report for an error of the data or the machine, None for any other error.

    Args:
        shape: Sentences, source and target width of the last batch; None before there was one.
        max_tokens: Tokens of a micro-batch.
        batch_tokens: Tokens of an update, if it is not a number of micro-batches.
        replayed: Passes are captured, which needs memory for a second micro-batch.
    """
    if isinstance(error, TrainingFault):
        return error
    if is_out_of_memory(error) and shape:
        sentences, source, target = shape
        update = "" if batch_tokens else " and raise trainer.accumulate as much"
        return TrainingFault(
            f"out of memory on a batch of {sentences} sentences, {source} + {target} pieces wide: lower "
            f"data.max_tokens={max_tokens}{update}, or set trainer.checkpoint_activations=true"
            f"{' or trainer.graphs=false' if replayed else ''}"
        )
    if is_out_of_memory(error):
        return TrainingFault(
            f"out of memory before the first batch ({first_line(error)}): the model or the corpus is too large, or "
            "other programs hold the memory; take a smaller one, more memory or another device, or end the others"
        )
    # A search raises the first if its scores are not finite.
    if isinstance(error, FloatingPointError | CorpusFault):
        return TrainingFault(str(error))
    fault = machine_fault(error) or error
    # An OSError without a number is not from a system call.
    if isinstance(fault, OSError) and fault.errno:
        return TrainingFault(os_message(fault))
    return None
