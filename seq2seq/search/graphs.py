"""Decoding steps that a GPU replays: a step is captured once for each number of slots in use, with its addresses.

Between two steps all that a step reads and writes on the device stays where it is: hypotheses and caches are written in
place, and what a model returns as its next state is written over the old one within the captured step. What changes on
the host, the counters of caches, changes at a replay as it did at the capture.
"""

from __future__ import annotations

import functools
import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from seq2seq.network.state import ancestries, caches, difference, overwrite
from seq2seq.search.rows import Rows
from seq2seq.system.errors import first_line

log = logging.getLogger(__name__)


class Recorder(Protocol):
    """Captures steps of one search; what it captures is replayed in any order, one after another.

    Attributes:
        stale: True once random numbers of what was captured would repeat.
    """

    @property
    def stale(self) -> bool: ...

    def warm_up(self, step: Callable[[], None]) -> None:
        """Run a step where later ones are captured."""
        ...

    def record(self, step: Callable[[], None]) -> Callable[[], None]:
        """Capture a step without running it, and return what runs it; RuntimeError if it cannot be captured."""
        ...

    def release(self) -> None:
        """Wait until nothing that was captured is running."""
        ...


class CudaRecorder:
    """Recorder of CUDA graphs, which share a pool of memory: none keeps anything there from one replay to the next."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = _side_stream(device)
        self._pool = torch.cuda.graph_pool_handle()
        self._renewals = _RENEWALS[device]

    @property
    def stale(self) -> bool:
        """True once a failed capture, of whatever recorder, has made the device's generator a new one."""
        return self._renewals != _RENEWALS[self.device]

    def warm_up(self, step: Callable[[], None]) -> None:
        """Run a step on the stream of captures, after all work of the current one and before its next."""
        current = torch.cuda.current_stream(self.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            step()
        current.wait_stream(self._stream)

    def record(self, step: Callable[[], None]) -> Callable[[], None]:
        """Capture a step without running it, and return what runs it; RuntimeError if it cannot be captured."""
        graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self.device)
        # What other threads ask of the device is their own
        how: dict[str, Any] = {"pool": self._pool, "stream": self._stream, "capture_error_mode": "thread_local"}
        try:
            with torch.cuda.graph(graph, **how):
                step()
        except BaseException:
            renew_generator(torch.cuda.default_generators[self.device.index or 0])
            _RENEWALS[self.device] += 1
            raise
        finally:
            # A capture that fails leaves its own stream the current one
            torch.cuda.set_stream(current)
        return graph.replay

    def release(self) -> None:
        """Wait until nothing that was captured is running."""
        torch.cuda.current_stream(self.device).synchronize()


# How often the generator of each device has become a new one.
_RENEWALS: Counter[torch.device] = Counter()


def renew_generator(generator: torch.Generator) -> None:
    """Give a generator a new state with the numbers of its own.

    Torch leaves the state in the middle of a capture that has failed, and every later draw would be an error ("Offset
    increment outside graph capture"). Graphs that were captured before draw from the old state on.
    """
    generator.graphsafe_set_state(generator.clone_state())


@functools.cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    # One for all searches: cuBLAS keeps memory for every stream
    return torch.cuda.Stream(device)


class Graphs:
    """CUDA-graph capture that several searches share; `count` and `seconds` are the number and the time of captures.

    Args:
        make: Makes the recorder of a search.
        quiet: Do not log that steps are not captured: nobody has asked for it.
    """

    def __init__(self, make: Callable[[], Recorder], *, quiet: bool = False) -> None:
        self.make = make
        self.quiet = quiet
        self.count = 0
        self.seconds = 0.0
        self.failed = False
        self._said: set[str] = set()

    def warn(self, reason: str) -> None:
        """Log, once, why steps are not captured."""
        if reason not in self._said:
            self._said.add(reason)
            level = logging.DEBUG if self.quiet else logging.WARNING
            log.log(level, "decoding without CUDA graphs: %s", reason)

    def fail(self, reason: str) -> None:
        """Capture nothing from here on."""
        if not self.failed:
            self.warn(reason)
        self.failed = True


def cuda_graphs(device: torch.device, *, quiet: bool = False) -> Graphs:
    """Return what lets searches on a GPU capture their steps; ValueError on any other device."""
    if device.type != "cuda":
        raise ValueError(f"CUDA graphs need a GPU, and this runs on '{device}'; leave out --cuda-graphs")
    return Graphs(functools.partial(CudaRecorder, device), quiet=quiet)


def choose_graphs(device: torch.device, asked: bool | None) -> Graphs | None:
    """Return what captures steps on a GPU, quietly where it is not asked for (None); None for plain steps."""
    wanted = device.type == "cuda" if asked is None else asked
    return cuda_graphs(device, quiet=asked is None) if wanted else None


class Steps:
    """The steps of some rows: plain ones, or, with `graphs`, captured and replayed."""

    def __init__(self, rows: Rows, graphs: Graphs | None) -> None:
        self.rows = rows
        self.graphs = graphs
        self._captured: _Captured | None = None

    def __call__(self) -> Tensor:
        """Extend all hypotheses by a token, as `Rows.advance` does: (B, 6 beam), which the next call may overwrite."""
        if self.graphs is None or not self._may_capture(self.graphs):
            # A plain step leaves its results elsewhere
            self.release()
            return self.rows.advance()
        self._captured = self._captured or _Captured(self.rows, self.graphs)
        return self._captured.advance()

    def release(self) -> None:
        """Forget what was captured, as before rows leave and when the search ends."""
        if self._captured is not None:
            self._captured.recorder.release()
        self._captured = None

    def _may_capture(self, graphs: Graphs) -> bool:
        if self.rows.selection.waits:
            graphs.warn("phrases are searched by the host")
            return False
        if self.rows.narrowed:
            graphs.warn("a shortlist gives every set of sentences an output layer of its own")
            return False
        # Casts of weights would be kept where the next graph writes
        if torch.is_autocast_enabled(self.rows.open.last.device.type):
            graphs.warn("autocast is on")
            return False
        return not graphs.failed


class _Recording(NamedTuple):
    """A captured step, and what it adds to the counters of the host."""

    replay: Callable[[], None]
    counts: list[int]


class _Captured:
    """Rows whose tensors stay where they are, and the steps that have been captured with them.

    The first step with some numbers of slots is plain, which loads and tunes what it needs; the second is captured.
    """

    def __init__(self, rows: Rows, graphs: Graphs) -> None:
        self.rows = rows
        self.graphs = graphs
        self.recorder = graphs.make()
        self._state = rows.state
        self._ancestries, self._caches = ancestries(rows.state), caches(rows.state)
        batch_size, beam = rows.open.last.shape
        self._packed = torch.empty(batch_size, 6 * beam, dtype=torch.int32, device=rows.open.last.device)
        self._recordings: dict[tuple[int, ...], _Recording | None] = {}

    def advance(self) -> Tensor:
        """Extend all hypotheses by a token, (B, 6 beam)."""
        # What the host knows and a step depends on
        key = tuple(each.next_limit for each in self._ancestries)
        if key not in self._recordings:
            self._recordings[key] = None
            self.recorder.warm_up(self._step)
            return self._packed
        recording = self._recordings[key] = self._recordings[key] or self._record()
        if recording is None:
            return self.rows.advance()
        recording.replay()
        self._set_counters([old + more for old, more in zip(self._counters(), recording.counts, strict=True)])
        return self._packed

    def _step(self) -> None:
        """Take a step whose results lie where those of the last did."""
        for each in self._ancestries:
            each.forget()
        self._packed.copy_(self.rows.advance())
        problem = difference(self._state, self.rows.state)
        if problem:
            self.graphs.fail(problem)
        else:
            overwrite(self._state, self.rows.state)
            self.rows.state = self._state

    def _record(self) -> _Recording | None:
        """Capture a step; None if that fails, with everything as before."""
        before, began = self._counters(), time.perf_counter()

        def step() -> None:
            try:
                self._step()
            except (RuntimeError, ValueError) as error:
                # Here, since to end a capture that has failed is another error
                self.graphs.fail(first_line(error))
                raise

        replay = None
        try:
            replay = self.recorder.record(step)
        except (RuntimeError, ValueError) as error:
            self.graphs.fail(first_line(error))
        counts = [new - old for new, old in zip(self._counters(), before, strict=True)]
        # A captured step has not run
        self._set_counters(before)
        self.rows.state = self._state
        self.graphs.seconds += time.perf_counter() - began
        if replay is None or self.graphs.failed:
            return None
        self.graphs.count += 1
        return _Recording(replay, counts)

    def _counters(self) -> list[int]:
        """Return what steps count on the host."""
        places = [count for each in self._ancestries for count in (each.steps, each.length)]
        return places + [cache.steps for cache in self._caches]

    def _set_counters(self, counts: list[int]) -> None:
        """Set the counters; what a step has computed beside them lies in memory that others overwrite."""
        numbers = iter(counts)
        for each in self._ancestries:
            each.steps, each.length = next(numbers), next(numbers)
            each.forget()
        for cache in self._caches:
            cache.steps = next(numbers)
