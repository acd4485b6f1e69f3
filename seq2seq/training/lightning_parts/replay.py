"""Replay forward and backward passes on a GPU: captured once for each shape of batches, they cost the host a launch.

Launched operation by operation, an update of a base model keeps a GPU busy for half of its time. Captured are the loss
of a micro-batch and its gradients, and nothing else: clipping, optimizer, schedule and callbacks stay as they are.
"""

from __future__ import annotations

import functools
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from seq2seq.data.batching import Batch
from seq2seq.search.graphs import CudaRecorder, Recorder
from seq2seq.settings.trainer import TrainerSettings
from seq2seq.system.errors import first_line
from seq2seq.training.objective.loss import LossSums

log = logging.getLogger(__name__)

# Recordings that are kept, the latest used ones: each has some 20 MiB beside the memory that all share.
_MOST = 256
# Computes the losses of a batch and adds its gradients; the number is the length of its window.
Passes = Callable[[Batch, int], LossSums]


def resolve_graphs(settings: TrainerSettings, accelerator: str, *, compiled: bool) -> bool:
    """Decide whether a run replays its passes; `auto` does wherever it can.

    Args:
        accelerator: "cpu" or "gpu".
        compiled: The model is compiled.

    Raises:
        ValueError: trainer.graphs=true cannot be met.
    """
    obstacles = {
        "a CPU has none": accelerator != "gpu",
        "trainer.strategy=fsdp moves weights in each pass": settings.sharded,
        "trainer.compile=true launches by itself": compiled,
        "trainer.checkpoint_activations=true is not captured": settings.checkpoint_activations,
        "trainer.lightning.detect_anomaly=true looks into each pass": settings.lightning.detect_anomaly,
    }
    found = [reason for reason, there in obstacles.items() if there]
    if settings.graphs is True and found:
        raise ValueError(f"trainer.graphs=true: {found[0]}; set trainer.graphs=auto")
    return bool(settings.graphs) and not found


class _Recording(NamedTuple):
    """Captured passes: the batch that they read, and what runs them."""

    batch: Batch
    replay: Callable[[], None]


class Replay:
    """Losses and gradients of micro-batches: plain at the first of a shape, captured at the second, then replayed.

    Replayed passes have the bits of plain ones, so a resumed run, which meets all shapes anew, repeats exactly.
    Gradients stay where the first passes have put them: `clear` sets them to 0 where an optimizer would drop them.

    Args:
        passes: The plain passes.
        parameters: All of the model.
        make: Makes the recorder, at the first capture.

    Attributes:
        counts: Passes that were "captured", "replayed" and "plain", and the "seconds" of captures.
    """

    def __init__(self, passes: Passes, parameters: Iterable[nn.Parameter], *, make: Callable[[], Recorder]) -> None:
        self.counts: dict[str, float] = {"captured": 0, "replayed": 0, "plain": 0, "seconds": 0.0}
        self._passes = passes
        self._parameters = list(parameters)
        self._make = make
        self._recorder: Recorder | None = None
        self._failed = False
        self._trained: list[bool] = []
        self._gradients: list[Tensor | None] = []
        self._sums: LossSums | None = None  # where captured passes write; made by the first plain ones
        self._seen: set[tuple[int, ...]] = set()
        self._recordings: OrderedDict[tuple[int, ...], _Recording] = OrderedDict()

    @classmethod
    def on_gpu(cls, passes: Passes, parameters: Iterable[nn.Parameter], device: torch.device) -> Replay:
        """Capture on a CUDA device."""
        return cls(passes, parameters, make=functools.partial(CudaRecorder, device))

    def clear(self) -> None:
        """Set all gradients to 0, before the first micro-batch of an update."""
        trained = [parameter.requires_grad for parameter in self._parameters]
        if trained != self._trained:
            # Frozen parameters have no gradient, and what was captured would write where it was
            self.release()
            self._trained = trained
            self._gradients = [None] * len(trained)
        # Lightning drops gradients before a validation, for example
        for parameter, gradient in zip(self._parameters, self._gradients, strict=True):
            parameter.grad = gradient
        if gradients := [gradient for gradient in self._gradients if gradient is not None]:
            torch._foreach_zero_(gradients)  # type: ignore[reportPrivateImportUsage]

    def __call__(self, batch: Batch, window: int, *, seed: Callable[[], None]) -> LossSums:
        """Return the losses of a micro-batch, detached, and add its gradients.

        Args:
            window: Micro-batches of the update.
            seed: Seeds the device's generator for this micro-batch.

        Returns:
            Sums that the next call may overwrite.
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
        """Forget all recordings, and give their memory back."""
        if self._recorder is not None:
            self._recorder.release()
        self._recordings.clear()
        self._seen.clear()
        self._recorder = None

    def _record(self, key: tuple[int, ...], batch: Batch, window: int) -> _Recording | None:
        """Capture the passes of a batch's shape, without running them; None if that fails."""
        began = time.perf_counter()
        mine = Batch(*(part.clone() for part in batch))
        assert self._sums is not None
        kept = self._sums

        def passes() -> None:
            try:
                # What captured passes compute lies in memory that others write
                for place, value in zip(kept, self._passes(mine, window), strict=True):
                    place.copy_(value)
            except (RuntimeError, ValueError) as error:
                # Here, since to end a capture that has failed is another error
                self._fail(first_line(error))
                raise

        # Autocast keeps casts of weights, which would be in memory that graphs write
        torch.clear_autocast_cache()
        try:
            if self._recorder is None:
                self._recorder = self._make()
                self._warm_up(passes)
            recording = _Recording(mine, self._recorder.record(passes))
        except (RuntimeError, ValueError) as error:
            self._fail(first_line(error))
            self.release()
            return None
        finally:
            torch.clear_autocast_cache()
            self.counts["seconds"] += time.perf_counter() - began
        if len(self._recordings) == _MOST:
            # It may be running
            self._recorder.release()
            self._recordings.popitem(last=False)
        self._recordings[key] = recording
        self.counts["captured"] += 1
        return recording

    def _warm_up(self, passes: Callable[[], None]) -> None:
        """Run passes where they are captured, so that libraries load what they need, and undo their gradients."""
        assert self._recorder is not None
        gradients = [gradient for gradient in self._gradients if gradient is not None]
        before = [gradient.clone() for gradient in gradients]
        self._recorder.warm_up(passes)
        copy: Any = torch._foreach_copy_  # type: ignore[reportPrivateImportUsage]
        if gradients:
            copy(gradients, before)

    def _fail(self, reason: str) -> None:
        """Capture nothing from here on."""
        if not self._failed:
            log.warning("training without CUDA graphs: %s", reason)
        self._failed = True
