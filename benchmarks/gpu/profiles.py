"""Profile training steps: kernels by their time, launches, and the host's waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.decoding import waits_of
from benchmarks.gpu.machine import wait

_SHOWN = 14


def profiled(step: Callable[[], object], device: torch.device, steps: int = 3) -> dict[str, Any]:
    """Return the microseconds of a step by kernel (on a CPU by operation), its launches and its waits."""
    on_gpu = device.type == "cuda"

    def several() -> None:
        for _ in range(steps):
            step()

    waits = waits_of(several, device, steps)
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * on_gpu
    with profile(activities=activities) as found:
        several()
        wait(device)
    return {"waits a step": waits, **summary(found.events() or [], steps, on_gpu=on_gpu)}


def summary(events: Any, steps: int, *, on_gpu: bool) -> dict[str, Any]:
    """Sum up the events of some steps."""
    device = "CUDA" if on_gpu else "CPU"
    times: dict[str, list[float]] = {}
    launches = 0
    for event in events:
        launches += "LaunchKernel" in event.name
        # A named region spans kernels, which are counted on their own
        if event.device_type.name == device and not event.is_user_annotation:
            took = event.time_range.elapsed_us() if on_gpu else event.self_cpu_time_total
            times.setdefault(event.name[:120], []).append(took)
    order = sorted(times, key=lambda name: -sum(times[name]))[:_SHOWN]
    return {
        "us a step": round(sum(map(sum, times.values())) / steps, 1),
        "launches a step": launches / steps,
        "kernels a step": sum(map(len, times.values())) / steps,
        "kernels": [
            {"name": name, "us": round(sum(times[name]) / steps, 1), "calls": len(times[name]) / steps}
            for name in order
        ],
    }
