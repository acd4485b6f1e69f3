"""What ends training for a reason of the data or the machine, and how it is told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_OUT_OF_MEMORY = ("out of memory", "not enough memory", "can't allocate memory")


class TrainingFault(Exception):  # noqa: N818 - it is told as a fault, not as a mistake of the program
    """Training cannot go on: what happened and what to do; `details` is written into the run's folder."""

    def __init__(self, message: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.details = details or {}


def as_fault(error: BaseException, *, shape: Sequence[int], max_tokens: int) -> TrainingFault | None:
    """What to tell of an error that is no mistake of the program, None for any other.

    shape: sentences, source and target width of the last batch.
    """
    if is_out_of_memory(error):
        sentences, source, target = shape
        return TrainingFault(
            f"out of memory on a batch of {sentences} sentences, {source} + {target} pieces wide: lower "
            f"data.max_tokens={max_tokens} and raise trainer.accumulate as much, or set "
            "trainer.checkpoint_activations=true"
        )
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return TrainingFault(f"{where}{error.strerror}: make room or mend it")
    return None


def is_out_of_memory(error: BaseException) -> bool:
    """Whether there was no memory, a GPU's or the machine's."""
    import torch

    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _OUT_OF_MEMORY)
