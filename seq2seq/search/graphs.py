"""Decoding steps as CUDA graphs: a step is captured once for each number of cache slots in use, and then replayed.

A graph reads and writes fixed addresses. Hypotheses and caches are written in place, and a captured step copies the
model's next state over the old one. A replay changes the counters of caches, on the host, as the captured step did.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from seq2seq.network.state import ancestries, caches, difference, overwrite
from seq2seq.search.rows import Rows
from seq2seq.system.errors import first_line

log = logging.getLogger(__name__)


class CudaRecorder:
    """Captures steps as CUDA graphs, to be replayed in any order.

    The graphs share a memory pool, in which they keep nothing between replays.
    """

    def __init__(self, device: torch.device) -> None:
        # "cuda" is the current device, which may change
        self.index = torch.cuda.current_device() if device.index is None else device.index
        self._stream = _side_stream(self.index)
        self._pool = torch.cuda.graph_pool_handle()
        self._renewals = _RENEWALS[self.index]

    @property
    def stale(self) -> bool:
        """True if replays would repeat random numbers: a failed capture has renewed the device's generator."""
        return self._renewals != _RENEWALS[self.index]

    def warm_up(self, step: Callable[[], None]) -> None:
        """Run a step without capturing it, on the stream of captures, between earlier and later work."""
        current = torch.cuda.current_stream(self.index)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            step()
        current.wait_stream(self._stream)

    def record(self, step: Callable[[], None]) -> Callable[[], None]:
        """Capture a step without running it, and return its replay; RuntimeError if it cannot be captured."""
        # A graph is captured on the current device
        with torch.cuda.device(self.index):
            graph = torch.cuda.CUDAGraph()
            current = torch.cuda.current_stream()
            try:
                # Other threads may use the device meanwhile
                with torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"):
                    step()
            except BaseException:
                # Torch believes that the state of the generator is still being captured, and refuses later draws
                # ("Offset increment outside graph capture"). A copy of the state is free; earlier graphs keep the old
                generator = torch.cuda.default_generators[self.index]
                generator.graphsafe_set_state(generator.clone_state())
                _RENEWALS[self.index] += 1
                # Until torch 2.12 the allocator believes so, too, and frees no memory that another stream has used
                with contextlib.suppress(RuntimeError):
                    torch._C._cuda_endAllocateToPool(self.index, self._pool)
                raise
            finally:
                # A failed capture does not restore the current stream
                torch.cuda.set_stream(current)
            return graph.replay

    def release(self) -> None:
        """Wait for the replays that are running."""
        torch.cuda.current_stream(self.index).synchronize()


# How often the generator of each device has been renewed.
_RENEWALS: Counter[int] = Counter()


@functools.cache
def _side_stream(index: int) -> torch.cuda.Stream:
    # One stream for all searches, since cuBLAS keeps memory for each stream
    return torch.cuda.Stream(index)


class Graphs:
    """Captures of CUDA graphs in all searches: how many (`count`), how long they took (`seconds`), and failures.

    Args:
        make: Makes the recorder of a search.
        quiet: Do not warn about steps that are not captured, since the user did not request graphs.
    """

    def __init__(self, make: Callable[[], CudaRecorder], *, quiet: bool = False) -> None:
        self.make = make
        self.quiet = quiet
        self.count = 0
        self.seconds = 0.0
        self.failed = False
        self._said: set[str] = set()

    def warn(self, reason: str) -> None:
        """Log why steps are not captured, once for each reason."""
        if reason not in self._said:
            self._said.add(reason)
            level = logging.DEBUG if self.quiet else logging.WARNING
            log.log(level, "decoding without CUDA graphs: %s", reason)

    def fail(self, reason: str) -> None:
        """Stop capturing."""
        if not self.failed:
            self.warn(reason)
        self.failed = True


def cuda_graphs(device: torch.device, *, quiet: bool = False) -> Graphs:
    """Return captures for searches on a GPU; ValueError for another device."""
    if device.type != "cuda":
        raise ValueError(f"CUDA graphs need a GPU, and this runs on '{device}'; leave out --cuda-graphs")
    return Graphs(functools.partial(CudaRecorder, device), quiet=quiet)


def choose_graphs(device: torch.device, asked: bool | None) -> Graphs | None:
    """Return captures if `asked` is True, or quiet ones if it is None on a GPU; else None, for plain steps."""
    wanted = device.type == "cuda" if asked is None else asked
    return cuda_graphs(device, quiet=asked is None) if wanted else None


class Steps:
    """The steps of some rows: plain steps or, if `graphs` are given, captured and replayed steps."""

    def __init__(self, rows: Rows, graphs: Graphs | None) -> None:
        self.rows = rows
        self.graphs = graphs
        self._captured: _Captured | None = None

    def __call__(self) -> Tensor:
        """Extend all hypotheses by a token, as `Rows.advance` does; the next call may overwrite the result."""
        if self.graphs is None or not self._may_capture(self.graphs):
            # A plain step does not keep tensors in place
            self.release()
            return self.rows.advance()
        self._captured = self._captured or _Captured(self.rows, self.graphs)
        return self._captured.advance()

    def release(self) -> None:
        """Discard captured steps, which is necessary before rows leave and at the end of the search."""
        if self._captured is not None:
            self._captured.recorder.release()
        self._captured = None

    def _may_capture(self, graphs: Graphs) -> bool:
        if self.rows.selection.waits:
            graphs.warn("phrases are searched by the host")
            return False
        if self.rows.narrowed:
            graphs.warn("with a shortlist the output layer changes with the sentences")
            return False
        # Autocast caches its casts of weights in memory that the next graph overwrites
        if torch.is_autocast_enabled(self.rows.open.last.device.type):
            graphs.warn("autocast is on")
            return False
        return not graphs.failed


class _Recording(NamedTuple):
    """A captured step, and how much it adds to each counter of the host."""

    replay: Callable[[], None]
    counts: list[int]


class _Captured:
    """Rows whose tensors stay in place, and the steps captured with them.

    For each number of slots in use, the first step is plain, which loads and tunes kernels; the second is captured.
    """

    def __init__(self, rows: Rows, graphs: Graphs) -> None:
        self.rows = rows
        self.graphs = graphs
        self.recorder = graphs.make()
        self._state = rows.state
        self._ancestries = ancestries(rows.state)
        self._caches = caches(rows.state)
        batch_size, beam = rows.open.last.shape
        self._packed = torch.empty(batch_size, 6 * beam, dtype=torch.float64, device=rows.open.last.device)
        self._recordings: dict[tuple[int, ...], _Recording | None] = {}

    def advance(self) -> Tensor:
        """Extend all hypotheses by a token, (B, 6 beam)."""
        # The numbers on the host that a step depends on
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
        """Run a step that writes into the same output buffers."""
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
        """Capture a step; None if that fails, with the state unchanged."""
        before = self._counters()
        began = time.perf_counter()

        def step() -> None:
            try:
                self._step()
            except (RuntimeError, ValueError) as error:
                # Caught here, since ending a failed capture raises another error
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
        """Return the counters of ancestries and caches."""
        places = [count for each in self._ancestries for count in (each.steps, each.length)]
        return places + [cache.steps for cache in self._caches]

    def _set_counters(self, counts: list[int]) -> None:
        """Set the counters, and drop the masks of the last step, whose memory is overwritten."""
        numbers = iter(counts)
        for each in self._ancestries:
            each.steps = next(numbers)
            each.length = next(numbers)
            each.forget()
        for cache in self._caches:
            cache.steps = next(numbers)
