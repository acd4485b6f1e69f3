"""Profile training steps of base: kernels by their time, launches, and the host's waits."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.decoding import waits_of
from benchmarks.gpu.steps import LENGTHS, TOKENS, trainer_of
from benchmarks.headline.data import Prepared, synthetic

if TYPE_CHECKING:
    from benchmarks.gpu.part import Job

_STEPS = 5
_SHOWN = 30


def run(job: Job) -> None:
    """Profile compiled steps at 27 tokens a sentence."""
    config = Prepared(job.data).model("base", job.words[0])
    trainer = trainer_of(config, job)
    rows, length = (TOKENS // LENGTHS[0], LENGTHS[0]) if job.on_gpu else (4, 6)
    batches = itertools.repeat(synthetic(rows, length, config["tgt_vocab_size"], trainer.device))
    trainer.warm_up(batches)
    # The optimizer's state is made in the first update
    trainer.run(batches, seconds=0.05)

    def steps() -> None:
        for _ in range(_STEPS):
            trainer._step(next(batches), share=0.5)

    job.save(**{"waits a step": waits_of(steps, trainer.device, _STEPS)})
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * job.on_gpu
    with profile(activities=activities) as found:
        steps()
        if job.on_gpu:
            torch.cuda.synchronize()
    job.save(**summary(found.events() or [], on_gpu=job.on_gpu))


def summary(events: Any, *, on_gpu: bool) -> dict[str, Any]:
    """Return the microseconds of a step by kernel (on a CPU by operation), and the launches of a step."""
    device = "CUDA" if on_gpu else "CPU"
    times: dict[str, list[float]] = {}
    launches = 0
    for event in events:
        launches += "LaunchKernel" in event.name
        # A region that was given a name spans kernels, which are counted themselves
        if event.device_type.name == device and not event.is_user_annotation:
            took = event.time_range.elapsed_us() if on_gpu else event.self_cpu_time_total
            times.setdefault(event.name[:120], []).append(took)
    total = sum(map(sum, times.values())) / _STEPS
    order = sorted(times, key=lambda name: -sum(times[name]))[:_SHOWN]
    rows = [{"name": n, "us": round(sum(times[n]) / _STEPS, 1), "calls": len(times[n]) / _STEPS} for n in order]
    return {"us a step": round(total, 1), "launches a step": launches / _STEPS, "kernels": rows}
