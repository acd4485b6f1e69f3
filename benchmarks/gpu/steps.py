"""Time compiled training steps of a published size at two lengths, and count graphs, breaks and recompilations."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from torch import nn
from torch._dynamo.utils import counters

from benchmarks.headline.data import Prepared, synthetic
from benchmarks.headline.training import Trainer
from seq2seq.data.batching import Batch
from seq2seq.training.compilation import eager

if TYPE_CHECKING:
    from benchmarks.gpu.part import Job

LENGTHS = (27, 1024)
TOKENS = 16384
# Rows and tokens a sentence of batches as text gives them: widths are multiples of 8.
_SHAPES = ((64, 8), (1, 16), (40, 24), (37, 32), (32, 40), (16, 48), (9, 72), (2, 136))


class Warnings(logging.Handler):
    """Collector of what the compiler says about its limit of recompilations."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep messages about the limit."""
        message = record.getMessage()
        if "recompile_limit" in message or "cache_size_limit" in message:
            self.found.append(message.splitlines()[0][:160])


def run(job: Job) -> None:
    """Time both lengths with one model, then serve batches of other shapes and a validation, counting graphs."""
    size, mixer = job.words
    config = Prepared(job.data).model(size, mixer)
    limit = Warnings()
    logging.getLogger("torch._dynamo").addHandler(limit)
    lengths, tokens = (LENGTHS, TOKENS) if job.on_gpu else ((6, 10), 60)
    timer = Timer(config, job)
    # Compilation is the longest part, and may not end: what needs none comes first
    if timer.trainer.compiled:
        job.save(eager=eager_rate(timer.trainer, config, lengths[0], tokens, job))
    for length in lengths:
        job.save(**{f"length {length}": timer.measure(length, max(1, tokens // length)) | graphs()})
    job.save(compiled=timer.trainer.compiled, error=timer.error, limit=limit.found)
    if timer.trainer.compiled:
        other_shapes(timer.trainer, config, limit, job)


class Timer:
    """Timer of training steps; all lengths share one model, which is so compiled once.

    Attributes:
        error: Why the model does not compile, "" if it does.
    """

    def __init__(self, config: dict[str, Any], job: Job) -> None:
        self.config, self.job, self.error = config, job, ""
        self.trainer = trainer_of(config, job)

    def measure(self, length: int, rows: int) -> dict[str, Any]:
        """Time batches of `length`, with fewer rows if memory does not suffice, and uncompiled if it must be."""
        while True:
            try:
                return self._attempt(length, rows)
            except torch.OutOfMemoryError:
                if rows == 1:
                    raise
                rows //= 2
            except Exception as error:
                if not self.trainer.compiled:
                    raise
                self.error = f"{type(error).__name__}: {str(error)[:300]}"
                torch._dynamo.reset()
            # The failed model must be gone before its memory can be returned
            del self.trainer
            if self.job.on_gpu:
                torch.cuda.empty_cache()
            self.trainer = trainer_of(self.config, self.job, compile=not self.error)

    def _attempt(self, length: int, rows: int) -> dict[str, Any]:
        if self.job.on_gpu:
            torch.cuda.reset_peak_memory_stats()
        batches = itertools.repeat(synthetic(rows, length, self.config["tgt_vocab_size"], self.trainer.device))
        warm = self.trainer.warm_up(batches)
        seconds = max(1.0, min(6.0, self.job.left(reserve=5.0))) if self.job.on_gpu else 0.1
        measured = self.trainer.run(batches, seconds=seconds)
        return {"rows": rows, "length": length, "warm_up_seconds": round(warm, 1), **measured}


def trainer_of(config: dict[str, Any], job: Job, *, compile: bool = True) -> Trainer:
    """Create a trainer; in a rehearsal graphs are only captured: their compilation would take minutes."""
    compile_ = nn.Module.compile

    def captured(module: nn.Module, **given: Any) -> None:
        compile_(module, backend="eager", **given)

    with nullcontext() if job.on_gpu else mock.patch.object(nn.Module, "compile", captured):
        return Trainer(config, device=torch.device(job.device), compile=compile)


def graphs() -> dict[str, int]:
    """Return how many graphs there are so far, and how many breaks."""
    return {"graphs": counters["stats"]["unique_graphs"], "breaks": sum(counters["graph_break"].values())}


def eager_rate(trainer: Trainer, config: dict[str, Any], length: int, tokens: int, job: Job) -> float:
    """Return the target tokens/s of the same model without compilation."""
    batches = itertools.repeat(synthetic(max(1, tokens // length), length, config["tgt_vocab_size"], trainer.device))
    with torch.compiler.set_stance("force_eager"):
        trainer.warm_up(batches)
        return trainer.run(batches, seconds=2.0 if job.on_gpu else 0.1)["target_tokens_per_second"]


def other_shapes(trainer: Trainer, config: dict[str, Any], limit: Warnings, job: Job) -> None:
    """Count the graphs that batches as text gives them add, in training and in evaluation, twice each.

    The second time nothing may be added.
    """
    drawn = list(padded(config, trainer.device, _SHAPES if job.on_gpu else _SHAPES[1:3]))
    found = [graphs()["graphs"]]
    for _ in range(2):
        trainer.warm_up(itertools.cycle(drawn))
        found.append(graphs()["graphs"])
    trainer.model.eval()
    for _ in range(2):
        # As training validates: without compiling
        with eager(trainer.model), torch.no_grad(), torch.autocast(trainer.device.type, torch.bfloat16):
            for batch in drawn:
                trainer.model.features(batch.src, batch.src_mask, batch.tgt_in, batch.tgt_mask)
        found.append(graphs()["graphs"])
    names = ("before", "training", "training again", "validation", "validation again")
    job.save(graphs=dict(zip(names, found, strict=True)), breaks=graphs()["breaks"], limit=limit.found)


def padded(config: dict[str, Any], device: torch.device, shapes: Sequence[tuple[int, int]]) -> Iterator[Batch]:
    """Draw a batch of each shape (rows, tokens a sentence), whose sentences have different lengths."""
    for rows, length in shapes:
        batch = synthetic(rows, length, config["tgt_vocab_size"], device)
        place = torch.arange(length, device=device)
        # The first sentence is full, as in every batch of text
        masks = [place < torch.randint(2, length + 1, (rows, 1), device=device) for _ in range(2)]
        for mask in masks:
            mask[0] = True
        yield batch._replace(src_mask=masks[0], tgt_mask=masks[1])
