"""Replay forward and backward passes on a GPU: captured once for each batch shape, then launched as one CUDA graph.

Launched operation by operation, an update of a base model keeps a GPU busy for half of its time. The graph holds the
loss of a micro-batch and its gradients alone; clipping, optimizer, schedule and callbacks run as usual.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from seq2seq.data.batching import Batch
from seq2seq.search.graphs import CudaRecorder
from seq2seq.settings.trainer import TrainerSettings
from seq2seq.system.errors import first_line
from seq2seq.training.objective.loss import LossSums

log = logging.getLogger(__name__)

# Number of recordings to keep, the most recently used ones: each takes about 20 MiB besides the shared memory.
_MOST = 256
# Computes the losses of a batch and adds its gradients; the integer is the length of the window.
Passes = Callable[[Batch, int], LossSums]


def resolve_graphs(settings: TrainerSettings, accelerator: str) -> bool:
    """Return True if a run replays its passes; with `auto` it does if it can.

    Args:
        accelerator: "cpu" or "gpu".

    Raises:
        ValueError: The run cannot replay, and trainer.graphs=true.
    """
    obstacles = {
        "a CPU has none": accelerator != "gpu",
        "trainer.strategy=fsdp moves weights in each pass": settings.sharded,
        "trainer.checkpoint_activations=true is not captured": settings.checkpoint_activations,
        "trainer.lightning.detect_anomaly=true looks into each pass": settings.lightning.detect_anomaly,
    }
    found = [reason for reason, there in obstacles.items() if there]
    if settings.graphs is True and found:
        raise ValueError(f"trainer.graphs=true: {found[0]}; set trainer.graphs=auto")
    return bool(settings.graphs) and not found


class CapturedPasses(NamedTuple):
    """Captured passes: the batch that they read, and the function that runs them."""

    batch: Batch
    replay: Callable[[], None]


class Replay:
    """Compute losses and gradients of micro-batches: the first of a shape plainly, the next ones by a captured graph.

    Replayed passes return the same bits as plain ones, so a resumed run, which captures all shapes again, repeats
    exactly. Gradients stay in the memory of the first passes: `clear` sets them to 0 instead of dropping them.

    A graph keeps what the host knew at its capture: which parameters are trained, and the numbers of modules such as a
    rate of dropout. When a callback changes these, all shapes are captured again.

    Args:
        passes: The plain passes.
        model: The model that they train.
        make: Makes the recorder at the first capture.

    Attributes:
        counts: Numbers of "captured", "replayed" and "plain" passes, and the "seconds" of captures.
    """

    def __init__(
        self,
        passes: Passes,
        model: nn.Module,
        *,
        make: Callable[[], CudaRecorder],
    ) -> None:
        self.counts: dict[str, float] = {"captured": 0, "replayed": 0, "plain": 0, "seconds": 0.0}
        self._passes = passes
        self._parameters = list(model.parameters())
        self._buffers = list(model.buffers())
        # Places of bool, int and float in the modules
        self._numbers = [
            (vars(each), name)
            for each in model.modules()
            for name, value in vars(each).items()
            if isinstance(value, int | float)
        ]
        self._make = make
        self._recorder: CudaRecorder | None = None
        self._failed = False
        self._known: list[Any] = []
        self._gradients: list[Tensor | None] = []
        self._sums: LossSums | None = None  # captured passes write here; allocated by the first plain passes
        self._seen: set[tuple[int, ...]] = set()
        self._recordings: OrderedDict[tuple[int, ...], CapturedPasses] = OrderedDict()

    def clear(self) -> None:
        """Set all gradients to 0, before the first micro-batch of an update."""
        known = [parameter.requires_grad for parameter in self._parameters]
        known += [values.get(name) for values, name in self._numbers]
        if known != self._known:
            # Captured passes would still write the gradients of frozen parameters, for example
            self.release()
            self._known = known
            self._gradients = [None] * len(self._parameters)
        # Lightning drops gradients before a validation, for example
        for parameter, gradient in zip(self._parameters, self._gradients, strict=True):
            parameter.grad = gradient
        if gradients := [gradient for gradient in self._gradients if gradient is not None]:
            torch._foreach_zero_(gradients)  # type: ignore[reportPrivateImportUsage]

    def __call__(self, batch: Batch, window: int, *, seed: Callable[[], None]) -> LossSums:
        """Return the losses of a micro-batch, detached, and add its gradients; the next call may overwrite the losses.

        Args:
            window: Micro-batches of the update.
            seed: Seeds the device's generator for this micro-batch.
        """
        if self._recorder is not None and self._recorder.stale:
            self.release()
        key = (*batch.src.shape, batch.tgt_in.shape[1], window)
        recording = self._recordings.get(key)
        if recording is None and key in self._seen and not self._failed:
            recording = self._record(key, batch, window)
        seed()
        if recording is None:
            self._seen.add(key)
            self.counts["plain"] += 1
            sums = self._passes(batch, window)
            self._gradients = [parameter.grad for parameter in self._parameters]
            self._sums = self._sums or LossSums(*map(torch.empty_like, sums))
            return sums
        self._recordings.move_to_end(key)
        for mine, given in zip(recording.batch, batch, strict=True):
            mine.copy_(given)
        recording.replay()
        self.counts["replayed"] += 1
        assert self._sums is not None
        return self._sums

    def release(self) -> None:
        """Drop all recordings and free their memory."""
        if self._recorder is not None:
            self._recorder.release()
        self._recordings.clear()
        self._seen.clear()
        self._recorder = None

    def _record(self, key: tuple[int, ...], batch: Batch, window: int) -> CapturedPasses | None:
        """Capture the passes of a batch's shape without running them; return None if that fails."""
        began = time.perf_counter()
        mine = Batch(*(part.clone() for part in batch))
        assert self._sums is not None
        kept = self._sums

        def passes() -> None:
            try:
                # The results are copied, because other graphs overwrite the memory of these passes
                for place, value in zip(kept, self._passes(mine, window), strict=True):
                    place.copy_(value)
            except (RuntimeError, ValueError) as error:
                # Reported here, because ending a failed capture raises another error
                self._fail(first_line(error))
                raise

        # Autocast caches casts of weights, which would lie in memory that graphs overwrite
        torch.clear_autocast_cache()
        try:
            if self._recorder is None:
                self._recorder = self._make()
                # The warm-up makes libraries load their kernels; its gradients and statistics are undone
                changed = [*(gradient for gradient in self._gradients if gradient is not None), *self._buffers]
                before = [tensor.clone() for tensor in changed]
                self._recorder.warm_up(passes)
                for tensor, value in zip(changed, before, strict=True):
                    tensor.copy_(value)
            recording = CapturedPasses(mine, self._recorder.record(passes))
        except (RuntimeError, ValueError) as error:
            self._fail(first_line(error))
            self.release()
            return None
        finally:
            torch.clear_autocast_cache()
            self.counts["seconds"] += time.perf_counter() - began
        if len(self._recordings) == _MOST:
            # The graph may still be running
            self._recorder.release()
            self._recordings.popitem(last=False)
        self._recordings[key] = recording
        self.counts["captured"] += 1
        return recording

    def _fail(self, reason: str) -> None:
        """Stop capturing for the rest of the run."""
        if not self._failed:
            log.warning("training without CUDA graphs: %s", reason)
        self._failed = True
