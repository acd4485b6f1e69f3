"""Profile a few micro-batches of training with torch's profiler."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from seq2seq.training.lightning_parts.task import FORWARD

log = logging.getLogger(__name__)

# Micro-batches to skip, as new shapes compile and allocate, to warm up the profiler with, and to profile.
_WAIT = 120
_WARMUP = 2
_ACTIVE = 5
# Rows of the table, which begins with the most expensive operators.
_ROWS = 40
# Names of ranges: ours around the backward pass, torch's around the optimizer's step.
_BACKWARD = "backward pass"
_STEP = "Optimizer.step#"


class Profile(L.Callback):
    """Callback that writes `profile.txt`, operators by their own time, and `trace.json` for a trace viewer.

    Args:
        updates: The run's limit of updates, if it has one.
    """

    def __init__(self, folder: Path, *, updates: int | None) -> None:
        self.folder = folder
        self.updates = updates
        self._profile: profile | None = None
        self._backward: record_function | None = None
        self._written = False

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start the schedule."""
        if trainer.is_global_zero:
            # One rank writes; the others do the same work.
            kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
            wait = _WAIT
            if self.updates is not None:
                # A short run skips fewer.
                left = (self.updates - trainer.global_step) * trainer.accumulate_grad_batches
                wait = max(0, min(_WAIT, left - _WARMUP - _ACTIVE))
            plan = schedule(wait=wait, warmup=_WARMUP, active=_ACTIVE, repeat=1)
            self._profile = profile(activities=kinds, schedule=plan, on_trace_ready=self._write)
            self._profile.start()

    def on_before_backward(self, *_: Any) -> None:
        """Name the backward pass in the profile."""
        self._backward = record_function(_BACKWARD)
        # Not a `with` block, as it spans two hooks.
        self._backward.__enter__()

    def on_after_backward(self, *_: Any) -> None:
        """End the range of the backward pass."""
        assert self._backward
        self._backward.__exit__(None, None, None)

    def on_train_batch_end(self, *_: Any) -> None:
        """Advance the schedule by a micro-batch."""
        if self._profile:
            self._profile.step()

    def on_train_end(self, *_: Any) -> None:
        """Stop the profiler, and warn if the run was too short for a profile."""
        if self._profile:
            self._profile.stop()
            self._profile = None
            if not self._written:
                log.warning(
                    "trainer.profile=true: the run ended before the micro-batches to profile (%d, after up to %d "
                    "others), so no profile is written; train longer, or set trainer.max_steps",
                    _ACTIVE,
                    _WAIT + _WARMUP,
                )

    def _write(self, result: profile) -> None:
        on_gpu = torch.cuda.is_available()
        # Sort by own time, because the total of an outer range includes the time of its operators.
        order = "self_cuda_time_total" if on_gpu else "self_cpu_time_total"
        averages = result.key_averages()
        table = averages.table(sort_by=order, row_limit=_ROWS, max_name_column_width=80)
        (self.folder / "profile.txt").write_text(f"{summary(averages, on_gpu=on_gpu)}\n{table}\n", encoding="utf-8")
        result.export_chrome_trace(str(self.folder / "trace.json"))
        self._written = True


def summary(averages: Iterable[Any], *, on_gpu: bool) -> str:
    """Summarize the time of the parts of an update, with a note on how to read the table.

    Args:
        averages: Events of a torch profile, in microseconds.
        on_gpu: Add a note on the columns of the GPU.
    """
    events = {event.key: event for event in averages}
    seconds = {key: event.cpu_time_total / 1e6 for key, event in events.items()}  # events are in microseconds
    forward, backward = seconds.get(FORWARD, 0.0), seconds.get(_BACKWARD, 0.0)
    batches, inside = events[FORWARD].count if FORWARD in events else 0, forward + backward
    # The longest range is the outermost: an optimizer may call another optimizer
    steps = [(seconds[key], event.count) for key, event in events.items() if key.startswith(_STEP)]
    total, updates = max(steps, default=(0.0, 0))
    # The last micro-batch of a window is computed inside the step, the others before the step
    update = total - updates * inside / max(batches, 1)
    lines = [f"{batches} micro-batches, {updates} updates; milliseconds of this process, in all:"]
    for name, value in ((FORWARD, forward), (_BACKWARD, backward), ("clipping and update of the weights", update)):
        lines.append(f"  {name:<36}{1000 * value:>10.1f}")
    note = ["", f"Below, operators by their own time. {_STEP}... holds forward and backward pass: Lightning computes"]
    note += ["them inside the optimizer's step. Names with autograd::engine belong to the backward pass."]
    if on_gpu:
        note += ["A GPU works behind this process: its own time is in the columns of CUDA, and in trace.json."]
    return "\n".join([*lines, *note])
