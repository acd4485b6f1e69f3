"""Time compiled training steps of a published size at two lengths, and count graphs, breaks and recompilations."""

from __future__ import annotations

import functools
import itertools
import logging
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from torch import nn
from torch._dynamo.utils import counters

from benchmarks.gpu.profiles import profiled
from benchmarks.gpu.replays import ReplayedTrainer
from benchmarks.gpu.steps import LENGTHS, TOKENS, padded, synthetic_batch
from benchmarks.gpu.trainer import Trainer
from benchmarks.gpu.training_data import Prepared
from seq2seq.training.machine.compilation import eager

if TYPE_CHECKING:
    from benchmarks.gpu.part import PartJob

# Shapes of typical batches of text: rows, and tokens of a source and of a target sentence.
_SHAPES = ((64, 8, 8), (40, 16, 20), (1, 16, 16), (40, 24, 28), (37, 32, 32), (32, 44, 40), (16, 48, 40), (2, 128, 136))


class Warnings(logging.Handler):
    """Collector of warnings about the limit of recompilations."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep messages about the limit."""
        message = record.getMessage()
        if "recompile_limit" in message or "cache_size_limit" in message:
            self.found.append(message.splitlines()[0][:160])


def run(job: PartJob) -> None:
    """Time both lengths with one model, then serve batches of other shapes and a validation, counting graphs."""
    size, mixer = job.words
    trainer = trainer_of(Prepared(job.data).model(size, mixer), job)
    job.save(compiled=trainer.compiled, error="")
    if not trainer.compiled:
        return
    limit = Warnings()
    logging.getLogger("torch._dynamo").addHandler(limit)
    try:
        _measure(trainer, job)
        other_shapes(trainer, limit, job)
        _replay(trainer, job)
    except Exception as error:
        job.save(error=f"{type(error).__name__}: {str(error)[:300]}", limit=limit.found)


def trainer_of(config: dict[str, Any], job: PartJob) -> ReplayedTrainer:
    """Create a trainer; a rehearsal only captures graphs, since compiling them would take minutes."""
    compile_ = nn.Module.compile

    def captured(module: nn.Module, **given: Any) -> None:
        compile_(module, backend="eager", **given)

    with nullcontext() if job.on_gpu else mock.patch.object(nn.Module, "compile", captured):
        trainer = ReplayedTrainer(config, device=torch.device(job.device), compile=True)
    trainer.replaying = False
    return trainer


def _measure(trainer: ReplayedTrainer, job: PartJob) -> None:
    for length in LENGTHS if job.on_gpu else (6, 10):
        batches = itertools.repeat(synthetic_batch(trainer, _tokens(job), length))
        # The first batches trigger compilation
        warm = trainer.warm_up(batches)
        job.save(**{f"length {length}": {"warm_up_seconds": round(warm, 1)}})
        seconds = max(1.0, min(3.0, job.left(reserve=5.0))) if job.on_gpu else 0.1
        row = {"length": length, "warm_up_seconds": round(warm, 1), **trainer.run(batches, seconds=seconds), **graphs()}
        job.save(**{f"length {length}": row})
        if "profile" not in job.result:
            step = functools.partial(trainer._step, next(batches), share=0.5)
            job.save(profile=profiled(step, trainer.device))


def _replay(trainer: ReplayedTrainer, job: PartJob) -> None:
    """Time the compiled passes as a CUDA graph."""
    trainer.replaying = True
    trainer.model.train()
    length = LENGTHS[0] if job.on_gpu else 6
    batches = itertools.repeat(synthetic_batch(trainer, _tokens(job), length))
    try:
        trainer.warm_up(batches)
        found = trainer.run(batches, seconds=2.0 if job.on_gpu else 0.1)
    except RuntimeError as error:
        # The passes compile even if they cannot be captured
        found = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
    job.save(replayed={"length": length, **found})


def _tokens(job: PartJob) -> int:
    return TOKENS if job.on_gpu else 60


def graphs() -> dict[str, int]:
    """Return the numbers of graphs and of graph breaks so far."""
    return {"graphs": counters["stats"]["unique_graphs"], "breaks": sum(counters["graph_break"].values())}


def other_shapes(trainer: Trainer, limit: Warnings, job: PartJob) -> None:
    """Count the graphs that typical batches of text add, in training and in evaluation, twice each.

    The second time, no graph may be added.
    """
    drawn = list(padded(trainer.config, trainer.device, _SHAPES if job.on_gpu else _SHAPES[1:3]))
    found, took = [graphs()["graphs"]], []
    for _ in range(2):
        took.append(round(trainer.warm_up(itertools.cycle(drawn)), 1))
        found.append(graphs()["graphs"])
    trainer.model.eval()
    for _ in range(2):
        # Training validates without compilation, too
        with eager(trainer.model), torch.no_grad(), torch.autocast(trainer.device.type, torch.bfloat16):
            for batch in drawn:
                trainer.model.features(batch.src, batch.src_mask, batch.tgt_in, batch.tgt_mask)
        found.append(graphs()["graphs"])
    names = ("before", "training", "training again", "validation", "validation again")
    counts = dict(zip(names, found, strict=True))
    job.save(graphs=counts, breaks=graphs()["breaks"], limit=limit.found, **{"other shapes s": took})
