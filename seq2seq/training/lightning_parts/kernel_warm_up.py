"""Compile the Triton kernels of a run's batches on all cores, before its clock starts.

Triton compiles a kernel at its first launch, one kernel after another, so a GPU would wait in a run's first seconds.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import Any

import torch

from seq2seq.data.batching import Batch
from seq2seq.kernels.launch_config import ONE_TILE, columns
from seq2seq.network.model import Seq2Seq
from seq2seq.settings.optim import OptimSettings
from seq2seq.system.errors import first_line
from seq2seq.training.machine.fsdp import is_sharded
from seq2seq.training.objective.batch_loss import sum_losses

log = logging.getLogger(__name__)

# Rows, source width and target width of a batch.
Shape = tuple[int, int, int]
# A function that compiles one kernel.
Compilation = Callable[[], object]


def warm_kernels(
    model: Seq2Seq,
    optim: OptimSettings,
    shapes: Iterable[Shape],
    *,
    device: torch.device,
    context: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
) -> None:
    """Compile the kernels that training steps over batches of `shapes` launch on a GPU, and load libraries.

    Weights, gradients and random states do not change. If this fails, the run continues and compiles kernels when they
    are launched.

    Args:
        model: In training mode, on `device`; nothing happens if it is sharded, or on a CPU.
        optim: The settings of the loss.
        context: Makes the context of a training step, such as autocast.
    """
    if device.type != "cuda" or is_sharded(model) or find_spec("triton") is None:
        return
    began = time.monotonic()
    try:
        with torch.random.fork_rng(devices=[device]):
            found = _compilations(model, optim, representatives(shapes), device, context)
        threads = min(len(found), os.cpu_count() or 1)
        _compile(found, threads, device)
    except Exception as error:  # of a mixer, a compiler or the driver; training itself will report a real problem
        log.warning("kernels are compiled as they are launched: %s", first_line(error))
        return
    if found:
        log.info("%d kernels compiled on %d threads in %.1f s", len(found), threads, time.monotonic() - began)


def representatives(shapes: Iterable[Shape]) -> list[Shape]:
    """Select a few of `shapes` that together launch the kernels of all shapes.

    A kernel is compiled for sentences up to a power of two, or for all sentences longer than one tile; it depends
    neither on the number of rows nor on the other side's width.
    """
    chosen: dict[Shape, None] = {}
    seen: set[tuple[int, int]] = set()
    for shape in sorted(shapes, key=lambda shape: shape[1:], reverse=True):
        kinds = {(side, columns(shape[side], most=2 * ONE_TILE)) for side in (1, 2)}
        if kinds - seen:
            chosen[shape] = None
        seen |= kinds
    return list(chosen)


def _compilations(
    model: Seq2Seq,
    optim: OptimSettings,
    shapes: Iterable[Shape],
    device: torch.device,
    context: Callable[[], contextlib.AbstractContextManager[Any]],
) -> list[Compilation]:
    """Run training steps in which Triton's kernels are listed instead of compiled and launched.

    The results of these kernels are arbitrary. Everything else is computed, so that torch's own kernels and libraries
    are loaded, also in the thread of backward passes.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    # A batch norm would count these batches
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    with collected() as found:
        for rows, src_len, tgt_len in shapes:
            src = torch.zeros(rows, src_len, dtype=torch.int64, device=device)  # (B, S)
            tgt = torch.zeros(rows, tgt_len, dtype=torch.int64, device=device)  # (B, T)
            real = torch.ones_like(src, dtype=torch.bool), torch.ones_like(tgt, dtype=torch.bool)
            with context():
                loss = sum_losses(model, Batch(src, real[0], tgt, tgt, real[1], src[:, 0]), optim).loss
            # `backward` would add to the parameters' gradients
            torch.autograd.grad(loss, trained, allow_unused=True)
    for buffer, value in before:
        buffer.copy_(value)
    return list(found.values())


@contextlib.contextmanager
def collected() -> Iterator[dict[Any, Compilation]]:
    """In this block, skip launches of kernels that are not compiled yet; yield their compilations, each once."""
    from triton import knobs

    found: dict[Any, Compilation] = {}

    def skip(*, key: str, fn: Any, compile: dict[str, Any], **_: Any) -> bool:
        kernel, data = fn.jit_function, compile["specialization_data"]
        found.setdefault((fn.module, fn.name, key), lambda: kernel.preload(data))
        return True

    before = knobs.runtime.jit_cache_hook
    knobs.runtime.jit_cache_hook = skip  # type: ignore[assignment]
    try:
        yield found
    finally:
        knobs.runtime.jit_cache_hook = before


def _compile(compilations: Iterable[Compilation], threads: int, device: torch.device) -> None:
    """Compile in threads, which release the interpreter for most of the time."""

    def compile_one(compilation: Compilation) -> None:
        # Each thread has its own current device
        with torch.cuda.device(device):
            compilation()

    with ThreadPoolExecutor(max(1, threads)) as pool:
        # `list` waits for the results, so that errors are raised here
        list(pool.map(compile_one, compilations))
