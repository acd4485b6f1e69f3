"""Time updates by AdamW and Muon, and the host's part of them, in which it must not wait for the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from benchmarks.gpu.plan import SIZES
from benchmarks.gpu.steps import microseconds
from benchmarks.gpu.training_data import Prepared
from seq2seq.network.build import build_model, hidden_matrices
from seq2seq.settings.optim import OptimSettings
from seq2seq.training.objective.optim import build_optimizer

if TYPE_CHECKING:
    from benchmarks.gpu.part import PartJob

UPDATES = 20


def run(job: PartJob) -> None:
    """Time some updates of the Transformer in each size: milliseconds of an update, and of the host to queue it."""
    prepared = Prepared(job.data)
    for size in SIZES:
        model = build_model(prepared.model(size, "transformer")).to(job.device)
        for name in ("adam", "muon"):
            job.save(**{f"{size} {name}": timed(model, name, UPDATES if job.on_gpu else 2)})


def timed(model: torch.nn.Module, name: str, updates: int) -> dict[str, float]:
    """Return the milliseconds of an update, and until the host is free again."""
    settings = OptimSettings(name=name, warmup_steps=0)
    optimizer = build_optimizer(model.parameters(), settings, hidden_matrices(model))  # type: ignore[arg-type]
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    device = next(model.parameters()).device
    optimizer.found_inf = torch.zeros((), device=device)  # type: ignore[attr-defined]
    host, done = microseconds(optimizer.step, device, updates)
    return {"ms": round(done / 1000, 3), "host ms": round(host / 1000, 3)}
