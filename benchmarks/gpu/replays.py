"""Compare replayed training steps, captured once for each shape of batches, with plain ones."""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.gpu.profiles import profiled
from benchmarks.gpu.steps import LENGTHS, TOKENS, padded, synthetic_batch
from benchmarks.gpu.trainer import Trainer
from benchmarks.gpu.training_data import Prepared, synthetic
from seq2seq.data.batching import Batch
from seq2seq.kernels.fused import fused
from seq2seq.search.graphs import CudaRecorder

if TYPE_CHECKING:
    from benchmarks.gpu.part import PartJob

# The most important cases come first. `bf16_residual` has the residual stream in bf16, `one_tile` the attention
# kernels of short rows.
CASES = (
    *("base/transformer", "base/transformer/one_tile", "base/dynamicconv", "base/transformer/bf16_residual"),
    *("big/transformer", "base/lightconv", "big/dynamicconv", "base/bahdanau"),
)
# Target lengths of the batches whose captures are timed.
_MORE_LENGTHS = range(16, 128, 8)
# Minimum seconds that a model takes.
_LEAST = 15.0


def run(job: PartJob) -> None:
    """Compare gradients bit for bit, time steps and captures, model by model."""
    for case in job.while_time(CASES, _LEAST):
        try:
            with fused() if case.endswith("/one_tile") else contextlib.nullcontext():
                _measure(job, case)
        # The next model may still work; Triton's errors are of types of its own
        except Exception as error:
            job.save(**{case: {"error": f"{type(error).__name__}: {str(error)[:300]}"}})
        # A trainer and its recordings refer to each other
        gc.collect()
        if job.on_gpu:
            torch.cuda.empty_cache()


def _measure(job: PartJob, case: str) -> None:
    size, mixer, *more = case.split("/")
    trainer = ReplayedTrainer(Prepared(job.data).model(size, mixer), device=torch.device(job.device), compile=False)
    if more == ["bf16_residual"]:
        from seq2seq.training.make_trainer import keep_stream_in_bf16

        keep_stream_in_bf16(trainer.model)
    length, tokens = (LENGTHS[0], TOKENS) if job.on_gpu else (6, 24)
    row: dict[str, Any] = same_gradients(trainer, tokens // length, length)
    job.save(**{case: row})
    batches = itertools.repeat(synthetic_batch(trainer, tokens, length))
    trainer.warm_up(batches)
    row |= trainer.run(batches, seconds=2.0 if job.on_gpu else 0.1)
    row |= {"length": length, "capture s": [round(took, 3) for took in trainer.capture_seconds]}
    job.save(**{case: row})
    row["profile"] = profiled(functools.partial(trainer._step, next(batches), share=0.5), trainer.device)
    job.save(**{case: row})
    if case == CASES[0]:
        row["captures"] = cost_of_captures(trainer, tokens, _MORE_LENGTHS if job.on_gpu else (4, 8))
        job.save(**{case: row})


class ReplayedTrainer(Trainer):
    """Trainer that captures forward and backward pass at the first batch of a shape, and replays them afterwards.

    Gradients have fixed buffers. On a CPU nothing is captured: the passes run plainly, into the same buffers.

    Attributes:
        replaying: Whether passes are replayed; if False, they run plainly.
        capture_seconds: Seconds of each capture, after its warm-up.
    """

    def __init__(self, config: dict[str, Any], **how: Any) -> None:
        super().__init__(config, **how)
        self.replaying = True
        self.capture_seconds: list[float] = []
        self.weights = [weight for weight in self.model.parameters() if weight.requires_grad]
        self._gradients: list[Tensor] = []
        self._recorder = CudaRecorder(self.device) if self.device.type == "cuda" else None
        self._recordings: dict[tuple[int, ...], _Recording] = {}

    def plain(self, batch: Batch) -> Any:
        """Run the passes without a capture; gradients accumulate."""
        return super()._backward(batch)

    def _backward(self, batch: Batch) -> Any:
        if not self.replaying:
            return self.plain(batch)
        self._gradients = self._gradients or [torch.zeros_like(weight) for weight in self.weights]
        for weight, gradient in zip(self.weights, self._gradients, strict=True):
            weight.grad = gradient
        shape = (*batch.src.shape, *batch.tgt_in.shape)
        if shape not in self._recordings:
            self._recordings[shape] = self._record(batch)
        recording = self._recordings[shape]
        for mine, given in zip(recording.batch, batch, strict=True):
            mine.copy_(given)
        torch._foreach_zero_(self._gradients)  # type: ignore[attr-defined]
        recording.replay()
        return recording.sums[0]

    def _record(self, batch: Batch) -> _Recording:
        mine = Batch(*(part.clone() for part in batch))
        sums: list[Any] = []

        def passes() -> None:
            sums[:] = [self.plain(mine)]

        if self._recorder is None:
            return _Recording(mine, passes, sums)
        for _ in range(2):
            self._recorder.warm_up(passes)
        began = time.perf_counter()
        replay = self._recorder.record(passes)
        self.capture_seconds.append(time.perf_counter() - began)
        return _Recording(mine, replay, sums)


class _Recording(NamedTuple):
    """A captured pass: the batch that it reads, the function that replays it, and its sums of losses and tokens."""

    batch: Batch
    replay: Callable[[], None]
    sums: list[Any]


def same_gradients(trainer: ReplayedTrainer, rows: int, length: int) -> dict[str, Any]:
    """Count the weights whose gradients have equal bits in plain and replayed passes, and in two plain passes.

    The captured batch differs from the compared ones, and each seed gives different dropout masks.
    """
    shape = ((max(1, rows), length, length),)
    first, *others = (next(padded(trainer.config, trainer.device, shape)) for _ in range(3))
    trainer._backward(first)
    found: dict[str, Any] = {"weights": len(trainer.weights), "same": [], "plain twice": []}
    replayed: list[Tensor] = []
    for seed, batch in enumerate(others):
        plain = _gradients(trainer, batch, seed, replaying=False)
        found["plain twice"].append(_equal(plain, _gradients(trainer, batch, seed, replaying=False)))
        replayed = _gradients(trainer, batch, seed, replaying=True)
        found["same"].append(_equal(plain, replayed))
    # The same batch under another seed
    other = _gradients(trainer, others[-1], len(others), replaying=True)
    return found | {"seeds differ": _equal(replayed, other) < len(trainer.weights)}


def _gradients(trainer: ReplayedTrainer, batch: Batch, seed: int, *, replaying: bool) -> list[Tensor]:
    trainer.replaying = replaying
    trainer.optimizer.zero_grad(set_to_none=True)
    torch.manual_seed(seed)
    trainer._backward(batch)
    trainer.replaying = True
    return [torch.zeros_like(w) if w.grad is None else w.grad.clone() for w in trainer.weights]


def _equal(some: list[Tensor], others: list[Tensor]) -> int:
    return sum(torch.equal(one, other) for one, other in zip(some, others, strict=True))


def cost_of_captures(trainer: ReplayedTrainer, tokens: int, lengths: Any) -> dict[str, Any]:
    """Return the seconds and the GiB that the captures of further shapes take."""
    on_gpu = trainer.device.type == "cuda"
    free = torch.cuda.mem_get_info()[0] if on_gpu else 0
    before, began = len(trainer.capture_seconds), time.perf_counter()
    for length in lengths:
        trainer._backward(synthetic(max(1, tokens // length), length, trainer.config["tgt_vocab_size"], trainer.device))
    found = {"shapes": len(lengths), "s": round(time.perf_counter() - began, 2)}
    found["capture s"] = [round(took, 3) for took in trainer.capture_seconds[before:]]
    return found | ({"GiB": round((free - torch.cuda.mem_get_info()[0]) / 2**30, 2)} if on_gpu else {})
