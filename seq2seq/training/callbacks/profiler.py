"""Profile a few micro-batches of training with torch's profiler."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from seq2seq.training.lightning_parts.task import FORWARD

# Micro-batches to pass by, because those of new shapes compile and allocate, and those to profile.
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
        updates: After which the run ends, if a count of updates bounds it.
    """

    def __init__(self, folder: Path, *, updates: int | None) -> None:
        self.folder = folder
        self.updates = updates
        self._profile: profile | None = None
        self._backward: record_function | None = None

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start the schedule."""
        if trainer.is_global_zero:
            # One rank writes; the others do the same work.
            kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
            left = None if self.updates is None else self.updates - trainer.global_step
            wait = _wait(None if left is None else left * trainer.accumulate_grad_batches)
            plan = schedule(wait=wait, warmup=_WARMUP, active=_ACTIVE, repeat=1)
            self._profile = profile(activities=kinds, schedule=plan, on_trace_ready=self._write)
            self._profile.start()

    def on_before_backward(self, *_: Any) -> None:
        """Name the backward pass in the profile."""
        self._backward = record_function(_BACKWARD)
        # Opened and closed by hand: the block spans two hooks.
        self._backward.__enter__()

    def on_after_backward(self, *_: Any) -> None:
        """End the name."""
        assert self._backward
        self._backward.__exit__(None, None, None)

    def on_train_batch_end(self, *_: Any) -> None:
        """Advance the schedule by a micro-batch."""
        if self._profile:
            self._profile.step()

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Stop; a run that the clock or its epochs end during the wait leaves no files."""
        if self._profile:
            self._profile.stop()
            self._profile = None

    def _write(self, result: profile) -> None:
        on_gpu = torch.cuda.is_available()
        # By own time: the total of an outer range would include its operators twice.
        order = "self_cuda_time_total" if on_gpu else "self_cpu_time_total"
        averages = result.key_averages()
        table = averages.table(sort_by=order, row_limit=_ROWS, max_name_column_width=80)
        (self.folder / "profile.txt").write_text(f"{summary(averages, on_gpu=on_gpu)}\n{table}\n", encoding="utf-8")
        result.export_chrome_trace(str(self.folder / "trace.json"))


def _wait(micro_batches: int | None) -> int:
    """Return how many to pass by: fewer in a run that has only so many micro-batches."""
    return _WAIT if micro_batches is None else max(0, min(_WAIT, micro_batches - _WARMUP - _ACTIVE))


def summary(averages: Iterable[Any], *, on_gpu: bool) -> str:
    """Summarize the time of the parts of an update, with a note on how to read the table.

    Args:
        averages: Events of a torch profile, in microseconds.
        on_gpu: Add a note on the columns of the GPU.
    """
    events = {event.key: event for event in averages}
    seconds = {key: event.cpu_time_total / 1e6 for key, event in events.items()}  # they are in microseconds
    forward, backward = seconds.get(FORWARD, 0.0), seconds.get(_BACKWARD, 0.0)
    batches, inside = events[FORWARD].count if FORWARD in events else 0, forward + backward
    # The outermost: an optimizer may have another inside
    steps = [(seconds[key], event.count) for key, event in events.items() if key.startswith(_STEP)]
    total, updates = max(steps, default=(0.0, 0))
    # Of a window's micro-batches the last is computed inside the step, the others before it
    update = total - updates * inside / max(batches, 1)
    # One line for each part, then how the table below is to be read.
    lines = [f"{batches} micro-batches, {updates} updates; milliseconds of this process, in all:"]
    for name, value in ((FORWARD, forward), (_BACKWARD, backward), ("clipping and update of the weights", update)):
        lines.append(f"  {name:<36}{1000 * value:>10.1f}")
    note = ["", f"Below, operators by their own time. {_STEP}... holds forward and backward pass: Lightning computes"]
    note += ["them inside the optimizer's step. Names with autograd::engine belong to the backward pass."]
    if on_gpu:
        note += ["A GPU works behind this process: its own time is in the columns of CUDA, and in trace.json."]
    return "\n".join([*lines, *note])
