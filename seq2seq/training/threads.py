"""Choose the number of threads of a run on a CPU: one or all, whichever trains faster."""

from __future__ import annotations

import contextlib
import logging
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from seq2seq.data.batching import padded_width

if TYPE_CHECKING:
    from seq2seq.training.task import TranslationTask

log = logging.getLogger(__name__)

# All threads are chosen only if they are faster than one by this factor: they gain little more on small matrices, and
# lose nine tenths of their rate where another program keeps one of them waiting.
_GAIN = 1.1
# Rounds alternate, so that other work on the machine meets both choices; each takes this long, or one update.
_ROUNDS = 3
_ROUND_SECONDS = 0.25


def known_threads(setting: int | None, recorded: int | None) -> int | None:
    """Return the number of threads where it need not be measured, else None.

    Args:
        setting: `trainer.threads`, which comes first; the variable OMP_NUM_THREADS comes second.
        recorded: The number that a resumed run began with. With another one its sums would be rounded differently.
    """
    if setting is not None:
        return setting
    all_threads = torch.get_num_threads()
    if os.environ.get("OMP_NUM_THREADS") or all_threads == 1:
        return all_threads
    return recorded


def measure_threads(make_task: Callable[[], TranslationTask], shape: tuple[int, int, int], *, precision: str) -> int:
    """Train a task that is thrown away with one thread and with all, and return the better number.

    The random state is left as it was, and so are the results of the run.

    Args:
        shape: Sentences, source width and target width of a typical batch.
        precision: Lightning's name of it.
    """
    from seq2seq.training.auto_batch_size import Rehearsal

    counts = (1, torch.get_num_threads())
    began = time.monotonic()
    with torch.random.fork_rng(devices=[]):
        rehearsal = Rehearsal(make_task(), longest=shape[1:], device=torch.device("cpu"), precision=precision, copies=0)
        rates = measure_rates(lambda: rehearsal.update(*shape), counts)
    count = choose(rates)
    words = " and ".join(f"{rate:.3g} with {_threads(number)}" for number, rate in rates.items())
    log.info(
        "training with %s: updates a second are %s (measured in %.1f s; trainer.threads=%d skips this)",
        _threads(count), words, time.monotonic() - began, count,
    )  # fmt: skip
    return count


def measure_rates(update: Callable[[], object], counts: Sequence[int]) -> dict[int, float]:
    """Return the updates per second with each number of threads, the medians of a few short rounds."""
    seconds: dict[int, list[float]] = {count: [] for count in counts}
    for count in counts:  # kernels are prepared for each
        with use_threads(count):
            update()
    for _ in range(_ROUNDS):
        for count in counts:
            with use_threads(count):
                seconds[count].append(_seconds(update))
    return {count: 1 / statistics.median(values) for count, values in seconds.items()}


def choose(rates: Mapping[int, float]) -> int:
    """Return the number of threads with the best rate, but one thread unless another is clearly faster."""
    best = max(rates, key=lambda count: rates[count])
    return best if rates[best] > _GAIN * rates[1] else 1


@contextlib.contextmanager
def use_threads(count: int | None) -> Iterator[None]:
    """Compute with `count` threads in this block; None changes nothing."""
    before = torch.get_num_threads()
    if count:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def typical_shape(src_length: float, tgt_length: float, *, max_tokens: int) -> tuple[int, int, int]:
    """Return sentences, source width and target width of a full batch of sentences of these lengths."""
    src, tgt = (int(padded_width(max(1, round(length)))) for length in (src_length, tgt_length))
    return max(1, max_tokens // max(src, tgt)), src, tgt


def _seconds(update: Callable[[], object]) -> float:
    """Time an update, the mean of as many as fit into a round."""
    began = time.perf_counter()
    updates = 0
    while True:
        update()
        updates += 1
        passed = time.perf_counter() - began
        if passed >= _ROUND_SECONDS:
            return passed / updates


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"
