"""Measure how time and memory of a mixer's training step grow with the length of the sequence."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
import timeit
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from seq2seq.analysis.atlas.properties import SizedSettings, sized
from seq2seq.network.build import build_self_mixer
from seq2seq.network.mixer import SelfMixer

# Lengths of the sequence, each twice the one before.
LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096)
DIM, HEADS = 64, 4
# Number of the longest lengths in the fit; short lengths show the overhead of a call.
FITTED = 4
REPEATS = 5  # timed runs of each length


@dataclasses.dataclass(frozen=True)
class Growth:
    """Cost of a forward and backward pass by length.

    Attributes:
        lengths: The lengths measured within the time limit.
        seconds: The shortest CPU time of several runs.
        peak_bytes: Peak of CPU memory.
    """

    lengths: list[int]
    seconds: list[float]
    peak_bytes: list[int]

    @property
    def time_exponent(self) -> float:
        """The p of seconds ~ N^p."""
        return exponent(self.lengths[-FITTED:], self.seconds[-FITTED:])

    @property
    def memory_exponent(self) -> float:
        """The p of bytes ~ N^p."""
        return exponent(self.lengths[-FITTED:], self.peak_bytes[-FITTED:])


def measure(settings: SizedSettings, *, lengths: Sequence[int] = LENGTHS, limit: float = 10.0) -> Growth:
    """Measure the bidirectional form, of width DIM, with the values of its YAML.

    Args:
        settings: The mixer's settings by width, heads and longest sequence.
        lengths: Lengths of the sequence, ascending; each is also the mixer's max_len.
        limit: Maximum time in seconds. The first length that would probably exceed it ends the measurement, as does a
            length that the mixer refuses.
    """
    growth = Growth([], [], [])
    start = time.perf_counter()
    for length in lengths:
        spent = time.perf_counter() - start
        # Assume quadratic time; a length has a warm-up, REPEATS timed runs and a profiled run
        if growth.seconds and spent + 4 * (REPEATS + 2) * growth.seconds[-1] > limit:
            break
        try:
            step = _step(settings, length)
        except ValueError:  # a mixer with weights for each position may lack the memory
            if not growth.lengths:
                raise
            break
        step()  # warm-up
        growth.lengths.append(length)
        # CPU time does not count waiting for the core. Take the minimum, since other programs can only add time
        growth.seconds.append(min(timeit.repeat(step, timer=time.process_time, repeat=REPEATS, number=1)))
        growth.peak_bytes.append(peak_bytes(step))
    return growth


def exponent(lengths: Sequence[int], values: Sequence[float]) -> float:
    """Fit p of values ~ lengths^p by least squares in logarithms; nan for fewer than two points."""
    if len(lengths) < 2:
        return math.nan
    x = [math.log(length) for length in lengths]
    y = [math.log(value) for value in values]
    return statistics.linear_regression(x, y).slope


def peak_bytes(work: Callable[[], Any]) -> int:
    """Return the peak of CPU memory that torch allocated in `work`, without earlier allocations."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        work()
    assert record.profiler
    # torch has no peak counter for the CPU; the profiler records every allocation and release
    result: Any = record.profiler.kineto_results
    changes = [(event.start_ns(), event.nbytes()) for event in result.events() if event.name() == "[memory]"]
    held = 0
    peak = 0
    # In the order of time; releases have negative sizes
    for _, size in sorted(changes, key=lambda change: change[0]):
        held += size
        peak = max(peak, held)
    return peak


def _step(settings: SizedSettings, length: int) -> Callable[[], None]:
    """Build a mixer and return its forward and backward pass on a random sequence."""
    values = sized(settings, DIM, HEADS, length)
    mixer: SelfMixer = build_self_mixer(values, dim=DIM, causal=False)
    x = torch.randn(1, length, DIM)  # (B, T, D)
    mask = torch.ones(1, length, dtype=torch.bool)
    upstream = torch.randn(1, length, mixer.out_dim)

    def step() -> None:
        y: Tensor = mixer(x.requires_grad_(), mask)
        torch.autograd.grad(y, [x, *mixer.parameters()], upstream)

    return step
