"""Time calls on a GPU by the median of rounds over rotating buffers, queued behind a spinning kernel."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks.kernels.session import Session

Call = Callable[[], Any]


def measure(calls: Sequence[Call], session: Session, seconds: float | None = None) -> dict[str, Any]:
    """Return the median time per call over rounds of all calls, after three rounds of warm-up, as fields of a Row.

    Args:
        calls: One call per buffer.
        seconds: Time to spend after the warm-up; None takes the session's value.
    """
    # The first round compiles
    one_round(calls, session.device)
    took, _ = one_round(calls, session.device)
    if session.device.type == "cuda" and took < 1e-3 * len(calls):
        calls = list(calls) * -(-8 // len(calls))  # the events themselves take a few microseconds a round
    took, host = one_round(calls, session.device)
    seconds = session.sizes.seconds if seconds is None else seconds
    # As many rounds as fit into the time, at most 100
    rounds = max(session.sizes.rounds, min(100, int(seconds / took)))
    # The device spins longer than the host needs to queue a round, so that there are no gaps between launches
    found = [one_round(calls, session.device, spin=1.5 * host + 5e-5) for _ in range(rounds)]
    us, host_us = (1e6 * statistics.median(column) / len(calls) for column in zip(*found, strict=True))
    return {"us": us, "host_us": host_us, "rounds": rounds}


def one_round(calls: Sequence[Call], device: torch.device, spin: float = 0.0) -> tuple[float, float]:
    """Make every call once, and return seconds on the device and seconds to queue the calls.

    Outputs are kept until the round ends, so that they do not share memory.

    Args:
        spin: Seconds that the device waits first, while the host queues the calls.
    """
    on_gpu = device.type == "cuda"
    if on_gpu:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(int(min(spin, 0.05) * 2e9))  # cycles of a clock of at most 2 GHz
        start.record()
    begin = time.perf_counter()
    kept = [call() for call in calls]
    host = time.perf_counter() - begin
    if not on_gpu:
        return host, host
    end.record()
    end.synchronize()
    # Freed after the end event, since otherwise outputs would share memory
    del kept
    return start.elapsed_time(end) * 1e-3, host


def buffers(input_bytes: int, device: torch.device) -> int:
    """Count the inputs of this size that together exceed three L2 caches, at least 2."""
    cache = torch.cuda.get_device_properties(device).L2_cache_size if device.type == "cuda" else 0
    return max(2, -(-3 * cache // input_bytes))
