"""Choose the number of threads of a run on a CPU: one or all, whichever trains faster."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from seq2seq.data.batching import padded_width
from seq2seq.training.auto_batch_size import Rehearsal

if TYPE_CHECKING:
    from seq2seq.data.preparation import PreparedData
    from seq2seq.training.lightning_parts.task import TranslationTask

log = logging.getLogger(__name__)

# All threads are chosen only if they are faster than one by this factor: they gain little more on small matrices, and
# lose nine tenths of their rate where another program keeps one of them waiting.
_GAIN = 1.1
# Rounds alternate, so that other work on the machine meets both choices; each takes this long, or one update.
_ROUNDS = 3
_ROUND_SECONDS = 0.25
# Seconds after which no further round begins; and the ratio of first updates, all threads to one, beyond which none
# begins at all.
_LIMIT = 2.0
_HOPELESS = 5.0
# Read by torch when it is imported, and by Lightning when it starts processes.
_VARIABLE = "OMP_NUM_THREADS"
# Of a stream, whose lengths are not known before it is read.
_STREAMED_LENGTH = 24


def known_threads(setting: int | None, recorded: int | None) -> int | None:
    """Return the number of threads where it need not be measured, else None.

    Args:
        setting: `trainer.threads`, which comes first; the variable OMP_NUM_THREADS comes second.
        recorded: The number that a resumed run began with. With another one its sums would be rounded differently.
    """
    if setting is not None:
        return setting
    # torch has read the variable when it was imported.
    if os.environ.get(_VARIABLE):
        return torch.get_num_threads()
    return recorded or (1 if torch.get_num_threads() == 1 else None)


def measure_threads(make_task: Callable[[], TranslationTask], shape: tuple[int, int, int], *, precision: str) -> int:
    """Train a task that is thrown away with one thread and with all, and return the better number.

    The random state is left as it was, and so are the results of the run.

    Args:
        shape: Sentences, source width and target width of a typical batch.
        precision: Lightning's name of it.
    """
    began = time.monotonic()
    with torch.random.fork_rng(devices=[]):
        rates = _rehearse(make_task, shape, precision, (1, torch.get_num_threads()))
    # The measured task may be kept by reference cycles, and is as large as the run's own.
    gc.collect()
    count = choose(rates)
    words = " and ".join(f"{rate:.3g} with {_threads(number)}" for number, rate in rates.items())
    log.info(
        "training with %s: updates a second are %s (measured in %.1f s; trainer.threads=%d skips this)",
        _threads(count), words, time.monotonic() - began, count,
    )  # fmt: skip
    return count


def _rehearse(
    make_task: Callable[[], TranslationTask], shape: tuple[int, int, int], precision: str, counts: Sequence[int]
) -> dict[int, float]:
    """Measure updates of a task that ends with this function."""
    cpu = torch.device("cpu")
    rehearsal = Rehearsal(make_task(), longest=shape[1:], device=cpu, precision=precision, copies=0)
    return measure_rates(lambda: rehearsal.update(*shape), counts)


def measure_rates(update: Callable[[], object], counts: Sequence[int]) -> dict[int, float]:
    """Return the updates per second with each number of threads, the medians of a few short rounds.

    The first update with each number also prepares kernels. Its rate is returned only if another number than the first
    is so much slower in it that further rounds would be wasted.
    """
    began = time.perf_counter()
    seconds: dict[int, list[float]] = {count: [] for count in counts}
    # Least 0 seconds: one update each.
    first = {count: _seconds(update, count, least=0.0) for count in counts}
    if max(first.values()) > _HOPELESS * first[counts[0]]:
        return {count: 1 / value for count, value in first.items()}
    for number in range(_ROUNDS):
        if number and time.perf_counter() - began > _LIMIT:
            break
        # The choices take turns within a round.
        for count in counts:
            seconds[count].append(_seconds(update, count, least=_ROUND_SECONDS))
    return {count: 1 / statistics.median(values) for count, values in seconds.items()}


def choose(rates: Mapping[int, float]) -> int:
    """Return the number of threads with the best rate, but one thread unless another is clearly faster."""
    # 1 is always among the choices.
    best = max(rates, key=lambda count: rates[count])
    return best if rates[best] > _GAIN * rates[1] else 1


@contextlib.contextmanager
def use_threads(count: int | None) -> Iterator[None]:
    """Compute with `count` threads in this block; None leaves the number to torch and Lightning."""
    before = torch.get_num_threads()
    variable = os.environ.get(_VARIABLE)
    if count:
        torch.set_num_threads(count)
        # Without it Lightning would divide the cores among several processes, whatever is set here.
        os.environ[_VARIABLE] = str(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        # Lightning sets it as well; the next job of a sweep must choose for itself.
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
        lengths = [int(np.median(side)) for side in (data.src_lengths, data.tgt_lengths)]
    src, tgt = (int(padded_width(max(1, length))) for length in lengths)
    tokens = min(prepared.plan.require_max_tokens(), prepared.plan.part_tokens)
    return max(1, tokens // max(src, tgt)), src, tgt


def _seconds(update: Callable[[], object], count: int, *, least: float) -> float:
    """Time an update with `count` threads: the mean of as many as take `least` seconds."""
    with use_threads(count):
        began = time.perf_counter()
        updates = 0
        while True:
            update()
            updates += 1
            passed = time.perf_counter() - began
            if passed >= least:
                return passed / updates


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"
