"""How a mixer's time and memory grow with the length of the sequence: a training step, measured."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from seq2seq.analysis.atlas.properties import Settings, sized
from seq2seq.build import build_self_mixer
from seq2seq.mixer import SelfMixer

LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096)
DIM, HEADS = 64, 4
FITTED = 4  # of the longest lengths measured: shorter ones measure the cost of calling
REPEATS = 3


class Growth(NamedTuple):
    """Seconds and peak bytes of a forward and backward pass by length, as far as time allowed."""

    lengths: list[int]
    seconds: list[float]
    peak_bytes: list[int]

    @property
    def time_exponent(self) -> float:
        """p of seconds ~ N^p."""
        return exponent(self.lengths[-FITTED:], self.seconds[-FITTED:])

    @property
    def memory_exponent(self) -> float:
        """p of bytes ~ N^p."""
        return exponent(self.lengths[-FITTED:], self.peak_bytes[-FITTED:])


def measure(settings: Settings, *, lengths: Sequence[int] = LENGTHS, limit: float = 10.0, dim: int = DIM) -> Growth:
    """Growth of the bidirectional form at width `dim`, HEADS heads and the YAML's values; max_len is each length.

    A length is left out, and all after it, when the time spent and what it would take by the last one's growth exceed
    `limit` seconds.
    """
    found, start = Growth([], [], []), time.perf_counter()
    for length in lengths:
        spent = time.perf_counter() - start
        if found.seconds and spent + 4 * (REPEATS + 2) * found.seconds[-1] > limit:
            break
        step = _step(settings, length, dim)
        step()
        found.lengths.append(length)
        found.seconds.append(min(_seconds(step) for _ in range(REPEATS)))
        found.peak_bytes.append(peak_bytes(step))
    return found


def exponent(lengths: Sequence[int], values: Sequence[float]) -> float:
    """The slope of log value against log length, least squares; nan of fewer than two points."""
    if len(lengths) < 2:
        return math.nan
    x, y = ([math.log(each) for each in column] for column in (lengths, values))
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    covariance = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return covariance / sum((a - mean_x) ** 2 for a in x)


def peak_bytes(work: Callable[[], Any]) -> int:
    """The most bytes of CPU memory that torch held at once for `work`, beyond what it held before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        work()
    assert record.profiler
    result: Any = record.profiler.kineto_results
    changes = [(event.start_ns(), event.nbytes()) for event in result.events() if event.name() == "[memory]"]
    held = peak = 0
    for _, size in sorted(changes, key=lambda change: change[0]):
        held += size
        peak = max(peak, held)
    return peak


def _step(settings: Settings, length: int, dim: int) -> Callable[[], None]:
    mixer: SelfMixer = build_self_mixer(sized(settings, dim, HEADS, length), dim=dim, causal=False)
    x, mask = torch.randn(1, length, dim), torch.ones(1, length, dtype=torch.bool)
    upstream = torch.randn(1, length, mixer.out_dim)

    def step() -> None:
        y: Tensor = mixer(x.requires_grad_(), mask)
        torch.autograd.grad(y, [x, *mixer.parameters()], upstream)

    return step


def _seconds(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
