"""Time the host's part of a launch: operations of torch, a layer under autocast, and a Triton operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from benchmarks.gpu.steps import microseconds
from seq2seq.kernels.dynamicconv import dynamicconv

if TYPE_CHECKING:
    from benchmarks.gpu.part import PartJob


def run(job: PartJob) -> None:
    """Save the microseconds until the host is free again; the sizes are tiny, so that the GPU is never busy."""
    device = torch.device(job.device)
    x, layer = torch.zeros(1, 8, device=device), torch.nn.Linear(8, 8).to(device)
    z, logits = (
        torch.randn(2, 16, *shape, device=device, dtype=torch.bfloat16, requires_grad=True) for shape in ((64,), (4, 7))
    )

    def with_autocast() -> None:
        with torch.autocast(device.type, torch.bfloat16):
            layer(x)

    def both_ways() -> None:
        dynamicconv(z, logits, causal=True).sum().backward()

    calls: dict[str, Callable[[], object]] = {
        "add_": lambda: x.add_(1),
        "linear": lambda: layer(x),
        "linear, autocast": with_autocast,
        "dynamicconv": lambda: dynamicconv(z, logits, causal=True),
        "dynamicconv, sum, backward": both_ways,
    }
    for name, call in calls.items():
        host_us, _ = microseconds(call, device, 200 if job.on_gpu else 2)
        job.save(**{name: round(host_us, 1)})
