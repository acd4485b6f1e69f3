"""Batches of training steps for several parts, and eager steps: tokens/s by the size of a batch, and a profile."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.gpu.machine import wait
from benchmarks.gpu.profiles import profiled
from benchmarks.gpu.trainer import Trainer
from benchmarks.gpu.training_data import Prepared, synthetic
from seq2seq.data.batching import Batch

if TYPE_CHECKING:
    from benchmarks.gpu.part import PartJob

LENGTHS = (27, 1024)
TOKENS = 16384
# Two sentences show the cost of the host alone; four times the tokens show the GPU without waiting for the host.
_SIZES = ((TOKENS, 27), (56, 27), (4 * TOKENS, 27), (TOKENS, 1024))
_TINY = ((24, 6), (60, 10))
_MODELS = (
    *("base/transformer", "base/dynamicconv", "big/transformer", "big/dynamicconv", "base/lightconv"),
    *("base/bahdanau", "big/lightconv"),
)
# Minimum seconds that a model takes.
_LEAST = 15.0


def run(job: PartJob) -> None:
    """Time eager steps, model by model."""
    for name in job.while_time(_MODELS, _LEAST):
        _measure(job, name)
        if job.on_gpu:
            torch.cuda.empty_cache()


def _measure(job: PartJob, name: str) -> None:
    trainer = Trainer(Prepared(job.data).model(*name.split("/")), device=torch.device(job.device), compile=False)
    row: dict[str, Any] = {}
    for tokens, length in _SIZES if job.on_gpu else _TINY:
        batches = itertools.repeat(synthetic_batch(trainer, tokens, length))
        try:
            trainer.warm_up(batches)
            row[f"{tokens} x {length}"] = trainer.run(batches, seconds=1.5 if job.on_gpu else 0.1)
        except torch.OutOfMemoryError:
            row[f"{tokens} x {length}"] = {"error": "out of memory"}
        if not job.result.get(name):
            row["profile"] = profiled(functools.partial(trainer._step, next(batches), share=0.5), trainer.device)
        job.save(**{name: row})


def microseconds(call: Callable[[], object], device: torch.device, calls: int) -> tuple[float, float]:
    """Return the microseconds of a call until the host is free again, and until the device is done."""
    for _ in range(max(1, calls // 10)):
        call()
    wait(device)
    began = time.perf_counter()
    for _ in range(calls):
        call()
    asked = time.perf_counter() - began
    wait(device)
    done = time.perf_counter() - began
    return 1e6 * asked / calls, 1e6 * done / calls


def synthetic_batch(trainer: Trainer, tokens: int, length: int) -> Batch:
    """Draw as many full sentences of `length` as `tokens` allow, at least one."""
    return synthetic(max(1, tokens // length), length, trainer.config["tgt_vocab_size"], trainer.device)


def padded(config: dict[str, Any], device: torch.device, shapes: Sequence[tuple[int, int, int]]) -> Iterator[Batch]:
    """Draw a batch of each shape (rows, tokens of a source, of a target), whose sentences have different lengths."""
    for rows, *lengths in shapes:
        batch = synthetic(rows, max(lengths), config["tgt_vocab_size"], device)
        masks = [
            torch.arange(length, device=device) < torch.randint(2, length + 1, (rows, 1), device=device)
            for length in lengths
        ]
        for mask in masks:
            # The first sentence is full, as in every batch of text
            mask[0] = True
        src = batch.src[:, : lengths[0]].contiguous()
        tgt_in, tgt_out = (part[:, : lengths[1]].contiguous() for part in (batch.tgt_in, batch.tgt_out))
        yield Batch(src, masks[0], tgt_in, tgt_out, masks[1], batch.index)
