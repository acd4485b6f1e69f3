"""Measure the peak memory of uncompiled training steps, and the memory of an additional token."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import torch

from benchmarks.gpu.plan import MIXERS, SIZES
from benchmarks.gpu.trainer import Trainer
from benchmarks.gpu.training_data import Prepared, synthetic
from seq2seq.training.machine.throughput import memory_gib, reset_peak_memory

if TYPE_CHECKING:
    from benchmarks.gpu.part import PartJob


def run(job: PartJob) -> None:
    """Measure two batches of each model and length."""
    prepared, device = Prepared(job.data), torch.device(job.device)
    lengths, tokens = ((27, 1024), (8192, 16384)) if job.on_gpu else ((6,), (30, 60))
    # The recurrent mixer comes last, since it is the slowest
    for mixer, size, length in itertools.product(MIXERS, SIZES, lengths):
        config, rows = prepared.model(size, mixer), [count // length for count in tokens]
        try:
            peaks = [peak_gib(config, length, count, device) for count in rows]
        except torch.OutOfMemoryError:
            job.save(**{f"{size} {mixer} {length}": "out of memory"})
            continue
        slope = 2**20 * (peaks[1] - peaks[0]) / ((rows[1] - rows[0]) * length)
        job.save(**{f"{size} {mixer} {length}": {"gib": round(peaks[1], 3), "kib a token": round(slope, 1)}})


def peak_gib(config: dict, length: int, rows: int, device: torch.device) -> float:
    """Return the peak of some steps with this batch, model and optimizer included."""
    trainer = Trainer(config, device=device, compile=False)
    batches = itertools.repeat(synthetic(rows, length, config["tgt_vocab_size"], device))
    if device.type == "cuda":
        torch.cuda.empty_cache()
    reset_peak_memory(device)
    # One update creates the optimizer's state
    trainer.run(batches, seconds=0.01)
    trainer.run(batches, seconds=0.01)
    return memory_gib(device)
