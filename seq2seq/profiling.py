"""Where the time of training goes: a few updates under torch's profiler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch.profiler import ProfilerActivity, profile, schedule

# Updates to pass by, because they compile and allocate, and updates to look at.
_WAIT, _WARMUP, _ACTIVE = 3, 2, 5
_ROWS = 40


class Profile(L.Callback):
    """Writes `profile.txt`, operators by their own time, and `trace.json`, to be opened in a browser's trace viewer."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._profile: profile | None = None

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Begin to wait."""
        if trainer.is_global_zero:
            kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
            plan = schedule(wait=_WAIT, warmup=_WARMUP, active=_ACTIVE, repeat=1)
            self._profile = profile(activities=kinds, schedule=plan, on_trace_ready=self._write)
            self._profile.start()

    def on_train_batch_end(self, *_: Any) -> None:
        """One batch on."""
        if self._profile:
            self._profile.step()

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Stop; a run that was shorter than the wait leaves nothing."""
        if self._profile:
            self._profile.stop()
            self._profile = None

    def _write(self, found: profile) -> None:
        on_gpu = torch.cuda.is_available()
        order = "self_cuda_time_total" if on_gpu else "self_cpu_time_total"
        table = found.key_averages().table(sort_by=order, row_limit=_ROWS, max_name_column_width=80)
        (self.folder / "profile.txt").write_text(table, encoding="utf-8")
        found.export_chrome_trace(str(self.folder / "trace.json"))
