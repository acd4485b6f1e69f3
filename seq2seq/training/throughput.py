"""How well a training run uses its device: model FLOPs/s, their share of the device's peak, padding and memory."""

from __future__ import annotations

import resource
import sys
import time
from collections import Counter
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch

from seq2seq.data.batching import Batch
from seq2seq.training.flops import training_flops

# Dense matrix products, TFLOP/s: (bf16, float32), from the makers' data sheets; the first name that fits counts.
_PEAK = {
    "GH200": (989, 67),
    "H200": (989, 67),
    "H100 PCIe": (756, 51),
    "H100 NVL": (835, 60),
    "H100": (989, 67),
    "B200": (2250, 75),
    "A100": (312, 19.5),
    "A10G": (70, 35),
    "A10": (125, 31),
    "A40": (150, 37),
    "L40S": (362, 91.6),
    "L4": (121, 30),
    "RTX 4090": (165, 82.6),
    "RTX 3090": (71, 35.6),
}


def peak_flops(device: torch.device, dtype: torch.dtype) -> float | None:
    """FLOP/s of the device's matrix products in bfloat16 or float32: from a table, or, on a CPU, measured once.

    Float32 that is allowed to run as TF32 has half the peak of bfloat16. None for a device that is not in the table.
    """
    if device.type == "cpu":
        return matrix_rate(dtype)
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    found = next((peak for key, peak in _PEAK.items() if key in name), None)
    if found is None:
        return None
    if dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest":
        return found[0] / 2 * 1e12
    return found[dtype == torch.float32] * 1e12


@cache
def matrix_rate(dtype: torch.dtype, size: int = 1024, seconds: float = 0.1) -> float:
    """FLOP/s of a CPU's product of two `size`-square matrices with the current number of threads, the best of some."""
    a, b = (torch.randn(size, size).to(dtype) for _ in range(2))
    best, began = float("inf"), time.perf_counter()
    while time.perf_counter() - began < seconds or best == float("inf"):
        start = time.perf_counter()
        torch.mm(a, b)
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best


def memory_gib(device: torch.device) -> float:
    """The most memory that was in use so far, in GiB: torch's on a GPU, the process's on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / 2 ** (30 if sys.platform == "darwin" else 20)  # bytes there, KiB elsewhere


class Meter:
    """Counts the work and the padding of a run's batches; rates are those of this process and its one device.

    Only shapes and sums are kept, so a batch costs the host a few additions and the device two small sums. `config`
    is build_model's.
    """

    def __init__(self, config: Mapping[str, Any], *, device: torch.device, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype
        self._flops = training_flops(config)
        self._peak = peak_flops(device, dtype) if self._flops else None
        self._shapes: Counter[tuple[int, int, int]] = Counter()
        self._tokens = torch.zeros((), dtype=torch.int64, device=device)
        self._done = self._read = (0, 0, 0)  # FLOPs, cells, tokens: so far, and at the last reading
        self._seconds = 0.0

    def add(self, batch: Batch) -> None:
        """Count a micro-batch that was trained on."""
        self._shapes[(*batch.src.shape, batch.tgt_in.shape[1])] += 1  # type: ignore[index]
        self._tokens += batch.src_mask.sum() + batch.tgt_mask.sum()

    def take(self, seconds: float) -> dict[str, float]:
        """Rates since the last reading, `seconds` being those of training so far; waits for the device."""
        self._settle()
        values = self._values(
            [new - old for new, old in zip(self._done, self._read, strict=True)], seconds - self._seconds
        )
        self._read, self._seconds = self._done, seconds
        return values

    def report(self, seconds: float) -> dict[str, float | None]:
        """The same over the whole run, under the names of results.json."""
        self._settle()
        values = self._values(list(self._done), seconds)
        return {key: round(value, 4 if value < 1000 else 0) for key, value in values.items()} | {
            "peak_flops_per_second": round(self._peak) if self._peak else None
        }

    def state(self) -> dict[str, Any]:
        """What `load` takes up."""
        self._settle()
        return {"done": list(self._done), "read": list(self._read), "seconds": self._seconds}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from an earlier part's counts."""
        self._done, self._read = tuple(state["done"]), tuple(state["read"])
        self._seconds = state["seconds"]

    def _settle(self) -> None:
        """Move what the batches since the last time amount to into `_done`."""
        flops, cells, tokens = self._done
        for (rows, src_len, tgt_len), times in self._shapes.items():
            flops += times * self._flops(rows, src_len, tgt_len) if self._flops else 0
            cells += times * rows * (src_len + tgt_len)
        self._done = flops, cells, tokens + int(self._tokens)
        self._shapes.clear()
        self._tokens.zero_()

    def _values(self, counts: list[int], seconds: float) -> dict[str, float]:
        flops, cells, tokens = counts
        values = {"padding": 1 - tokens / cells if cells else 0.0, "memory_gib": memory_gib(self.device)}
        if self._flops:
            values["model_flops_per_second"] = flops / max(seconds, 1e-9)
            if self._peak:
                values["mfu"] = values["model_flops_per_second"] / self._peak
        return values
