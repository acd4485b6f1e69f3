"""Choose the number of threads of a run on a CPU: one or all, whichever trains faster."""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch
from lightning.fabric.utilities.distributed import _suggested_max_num_threads

from seq2seq.data.batching import padded_width
from seq2seq.data.preparation import PreparedData
from seq2seq.training.auto_batch_size import Rehearsal

log = logging.getLogger(__name__)

# All threads are used only if they are faster than one thread by this factor. On small matrices they gain little, and
# they lose nine tenths of their rate when another program keeps one of them waiting.
_GAIN = 1.1
# Rounds with one thread and with all threads alternate, so that other work on the machine affects both alike. A round
# takes _ROUND_SECONDS, or one update if that is longer. After _LIMIT seconds, no further round begins.
_ROUNDS, _ROUND_SECONDS, _LIMIT = 3, 0.25, 2.0
# On a machine so busy that one thread waits longer than it computes, an update with all threads may take minutes.
_BUSY = 2.0
# Torch reads this variable when it is imported, and Lightning when it starts processes.
_VARIABLE = "OMP_NUM_THREADS"
# Assumed length of a typical sentence of a stream, whose lengths are unknown before it is read.
_STREAMED_LENGTH = 24


def known_threads(setting: int | None, recorded: int | None, devices: int = 1) -> int | None:
    """Return the number of threads if it need not be measured, else None.

    Args:
        setting: `trainer.threads`, which comes first; the variable OMP_NUM_THREADS comes second.
        recorded: The number of threads that a resumed run began with; another number would round sums differently. It
            is not used if this machine has fewer cores.
        devices: Processes that share the cores of this machine.
    """
    if setting is not None:
        return setting
    # torch read the variable when it was imported.
    if os.environ.get(_VARIABLE):
        return torch.get_num_threads()
    if recorded and recorded <= _suggested_max_num_threads(devices):
        return recorded
    return 1 if torch.get_num_threads() == 1 else None


def measure_threads(rehearse: Callable[[], Rehearsal], shape: tuple[int, int, int]) -> int:
    """Train a temporary task with one thread and with all threads, and return the better number of threads.

    The random state of the run does not change.

    Args:
        rehearse: Makes the rehearsal, on a CPU.
        shape: Sentences, source width and target width of a typical batch.
    """
    began = time.monotonic()
    with torch.random.fork_rng(devices=[]):
        rehearsal = rehearse()
        rates = measure_rates(functools.partial(rehearsal.update, *shape), (1, torch.get_num_threads()))
    # Reference cycles may keep the task, which is as large as the run's own.
    del rehearsal
    gc.collect()
    count = choose(rates)
    more = max(rates)
    text = f", with {more}: {rates[more]:.3g}" if more > 1 else "; other programs keep the cores busy"
    log.info(
        "updates a second with 1 thread: %.3g%s (measured in %.1f s; trainer.threads=%d skips this)",
        rates[1], text, time.monotonic() - began, count,
    )  # fmt: skip
    return count


def measure_rates(update: Callable[[], object], counts: Sequence[int]) -> dict[int, float]:
    """Return the updates per second with each number of threads, the medians of a few short rounds.

    If the first number, 1, shows that the machine is busy, no other number is tried.
    """
    began = time.perf_counter()
    with use_threads(counts[0]):
        update()  # prepares kernels
    seconds: dict[int, list[float]] = {}
    for number in range(_ROUNDS):
        if number and time.perf_counter() - began > _LIMIT:
            break
        for count in counts:
            with use_threads(count):
                start, computed = time.perf_counter(), time.process_time()
                passed = updates = 0.0
                while not updates or passed < _ROUND_SECONDS:
                    update()
                    updates += 1
                    passed = time.perf_counter() - start
            seconds.setdefault(count, []).append(passed / updates)
            if count == 1 and passed > _BUSY * (time.process_time() - computed):
                return {count: 1 / seconds[count][-1]}
    return {count: 1 / statistics.median(values) for count, values in seconds.items()}


def choose(rates: Mapping[int, float]) -> int:
    """Return the number of threads with the best rate, or 1 unless another number is clearly faster."""
    best = max(rates, key=lambda count: rates[count])
    return best if rates[best] > _GAIN * rates[1] else 1


@contextlib.contextmanager
def use_threads(count: int | None) -> Iterator[None]:
    """Compute with `count` threads in this block; None leaves the number to torch and Lightning."""
    before = torch.get_num_threads()
    variable = os.environ.get(_VARIABLE)
    if count:
        torch.set_num_threads(count)
        # Otherwise Lightning would divide the cores among several processes.
        os.environ[_VARIABLE] = str(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        # Lightning also sets the variable; the next job of a sweep must choose its own number.
        os.environ.pop(_VARIABLE, None)
        if variable is not None:
            os.environ[_VARIABLE] = variable


def typical_shape(prepared: PreparedData) -> tuple[int, int, int]:
    """Return sentences, source width and target width of a full batch of sentences of median length."""
    if prepared.plan.stream:
        # The longest sentences are known from the settings; typical ones are not.
        lengths = [min(length, _STREAMED_LENGTH) for length in prepared.longest]
    else:
        data = prepared.split("train")
        lengths = [int(np.median(side)) for side in data.lengths]
    src, tgt = (int(padded_width(max(1, length))) for length in lengths)
    tokens = min(prepared.plan.require_max_tokens(), prepared.plan.part_tokens)
    return max(1, tokens // max(src, tgt)), src, tgt
