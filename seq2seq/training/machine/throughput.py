"""Measure how well a run uses its device: model FLOP/s, their share of the peak, padding and memory."""

from __future__ import annotations

import contextlib
import re
import resource
import sys
import warnings
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch

from seq2seq.data.batching import Batch
from seq2seq.training.machine.flops import training_flops

# TFLOP/s of dense products in bfloat16 and float32 by the makers' data sheets. Lightning's table lacks these GPUs
# ("NVIDIA H200"), takes them for others (L40S for L4), or counts with sparsity, in pairs, or without tensor cores.
_PEAK = {
    "GH200": (989, 67),
    "H200": (989, 67),
    "H100 NVL": (835, 60),
    "B200": (2250, 75),
    "A10": (125, 31),
    "A10G": (70, 35),
    "A40": (150, 37),
    "L40S": (362, 91.6),
    "RTX 4090": (165, 82.6),
}


def peak_flops(device: torch.device, dtype: torch.dtype) -> float | None:
    """Return a GPU's peak FLOP/s of matrix products in bfloat16 or float32 by the data sheet; None if it is unknown.

    Float32 that may run as TF32 has half the peak of bfloat16.
    """
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    # "high" and "medium" both allow TF32.
    tf32 = dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest"
    for key, (bf16, single) in _PEAK.items():
        # Whole words: A10 is not A100, and H200 not GH200.
        if re.search(rf"\b{key}\b", name):
            return (bf16 / 2 if tf32 else single if dtype == torch.float32 else bf16) * 1e12
    from lightning.fabric.utilities.throughput import get_available_flops

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning warns of a GPU that it does not know
        return get_available_flops(device, "tfloat32" if tf32 else dtype)


@cache
def measured_flops(device: torch.device, dtype: torch.dtype, threads: int) -> float:
    """Measure the FLOP/s of a product of large square matrices: the best of several, once per number of CPU threads.

    A model can reach this rate: an H200 multiplies in bfloat16 at 790 TFLOP/s, and its data sheet says 989.
    """
    from torch.utils.benchmark import Timer

    size = 1024 if device.type == "cpu" else 8192
    # A separate generator leaves training's random numbers as they are; zeros would take less power, and less time
    draws = torch.Generator(device).manual_seed(0)
    a, b = (torch.randn(size, size, generator=draws, device=device).to(dtype) for _ in range(2))  # (size, size)
    matrices = {"a": a, "b": b, "out": torch.empty_like(a)}
    timer = Timer("torch.mm(a, b, out=out)", globals=matrices, num_threads=threads)
    # A multiply-add counts as two operations.
    return 2 * size**3 / min(timer.blocked_autorange(min_run_time=0.1).times)


def reset_peak_memory(device: torch.device) -> None:
    """Restart the count of `memory_gib`, where the system can, so that an earlier run of this process is left out."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    # Linux: https://www.kernel.org/doc/html/latest/filesystems/proc.html, clear_refs.
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def memory_gib(device: torch.device) -> float:
    """Return the peak memory since `reset_peak_memory`, in GiB: torch's on a GPU, the process's on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    with contextlib.suppress(OSError):
        # Unlike getrusage's peak, this one can be reset
        found = re.search(r"^VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
        if found:
            return int(found[1]) / 2**20
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / 2 ** (30 if sys.platform == "darwin" else 20)  # macOS counts bytes, other systems KiB


class Meter:
    """Count the work and the padding of a run's batches, on this rank and its device.

    The meter keeps shapes and sums alone, so a batch costs the host a few additions and the device two small sums.

    Args:
        config: As for `build_model`; None counts no FLOPs.
        passes: Times that the model sees a batch: 2 with R-Drop.
    """

    def __init__(
        self, config: Mapping[str, Any] | None, *, device: torch.device, dtype: torch.dtype, passes: int = 1
    ) -> None:
        self.device, self._passes = device, passes
        self._flops = training_flops(config) if config else None
        self._peak = peak_flops(device, dtype) if self._flops else None
        self._measured: float | None = None
        if self._flops and device.type in ("cpu", "cuda"):
            self._measured = measured_flops(device, dtype, torch.get_num_threads())
        if device.type == "cpu":
            self._peak = self._peak or self._measured
        # A sweep runs several jobs in one process, and the measurement itself takes memory
        reset_peak_memory(device)
        self._memory = 0.0  # peak of earlier parts of the run
        self._shapes: Counter[tuple[int, int, int]] = Counter()
        self._tokens = torch.zeros((), dtype=torch.int64, device=device)
        # FLOPs, cells and tokens: so far, and at the last reading.
        self._done = (0, 0, 0)
        self._read = (0, 0, 0)
        self._seconds = 0.0

    def add(self, batch: Batch) -> None:
        """Count a micro-batch that was trained on."""
        # The host knows the shapes; the number of tokens stays on the device until a reading.
        self._shapes[(*batch.src.shape, batch.tgt_in.shape[1])] += 1  # type: ignore[index]
        self._tokens += batch.src_mask.sum() + batch.tgt_mask.sum()

    def take(self, seconds: float) -> dict[str, float]:
        """Return the rates since the last reading; waits for the device.

        Args:
            seconds: Training time so far.
        """
        self._settle()
        counts = [new - old for new, old in zip(self._done, self._read, strict=True)]
        values = self._values(counts, seconds - self._seconds)
        self._read = self._done
        self._seconds = seconds
        return values

    def report(self, seconds: float) -> dict[str, float | None]:
        """Return the rates over the whole run, for results.json, and the peaks that MFU is relative to.

        `mfu` is relative to `peak_flops_per_second` of the data sheet, `mfu_of_measured` to
        `measured_flops_per_second`; on a CPU both peaks are measured.
        """
        self._settle()
        values = self._values(list(self._done), seconds)
        if self._measured:
            values["mfu_of_measured"] = values["model_flops_per_second"] / self._measured
        return {key: round(value, 4 if value < 1000 else 0) for key, value in values.items()} | {
            "peak_flops_per_second": round(self._peak) if self._peak else None,
            "measured_flops_per_second": round(self._measured) if self._measured else None,
        }

    def state(self) -> dict[str, Any]:
        """Return the counts, for `load`."""
        self._settle()
        memory = max(self._memory, memory_gib(self.device))
        return {"done": list(self._done), "read": list(self._read), "seconds": self._seconds, "memory": memory}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from the counts of an earlier part of the run."""
        self._done = tuple(state["done"])
        self._read = tuple(state["read"])
        self._seconds = state["seconds"]
        self._memory = state.get("memory", 0.0)

    def _settle(self) -> None:
        """Add the batches since the last call to `_done`."""
        flops, cells, tokens = self._done
        # FLOPs are computed once for each shape, however many batches had it.
        for (rows, src_len, tgt_len), times in self._shapes.items():
            flops += times * self._flops(self._passes * rows, src_len, tgt_len) if self._flops else 0
            cells += times * rows * (src_len + tgt_len)
        self._done = flops, cells, tokens + int(self._tokens)
        self._shapes.clear()
        self._tokens.zero_()

    def _values(self, counts: list[int], seconds: float) -> dict[str, float]:
        flops, cells, tokens = counts
        # Without FLOPs (a mixer that cannot be counted) padding and memory are still reported.
        values = {
            "padding": 1 - tokens / cells if cells else 0.0,
            "memory_gib": max(self._memory, memory_gib(self.device)),
        }
        if self._flops:
            values["model_flops_per_second"] = flops / max(seconds, 1e-9)
            if self._peak:
                values["mfu"] = values["model_flops_per_second"] / self._peak
        return values
