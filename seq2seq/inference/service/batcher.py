"""Batch the texts of concurrent requests: a queue with limits, and the thread that owns the model."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError

from seq2seq.inference.service.messages import CLOSE, LATER, Options, RefusedError, Text, Translation
from seq2seq.inference.service.metrics import Metrics
from seq2seq.inference.service.settings import ServiceSettings

log = logging.getLogger(__name__)

# A batch may interrupt one whose longest text takes so many times the work, so that only a few are in progress at once.
# Texts whose work differs by more do not share a batch.
_MUCH_LONGER = 4
# An interrupted batch gets at least this share of the time. Between two interruptions it works for so many seconds, the
# longer time while it has less than its share.
_SHARE = 0.25
_SLICE, _LONG_SLICE = 0.05, 0.25
# Each second of waiting counts like so many tokens less, so that long texts are not put off for ever.
_TOKENS_A_SECOND = 1000

# Translates texts with the same options; the function must be called after each step, and raises to end the work.
Translate = Callable[[Sequence[Text], Options, Callable[[], None]], list[Translation]]


@dataclasses.dataclass(eq=False)
class Entry:
    """Text of a request in the queue, and the future of its translation.

    Attributes:
        work: Tokens that a search may have to compute for it.
        delay: Returns the seconds until `translate` could begin, while its model is not loaded.
    """

    text: Text
    options: Options
    client: str
    arrived: float
    pieces: int
    work: float
    translate: Translate
    delay: Callable[[], float] = lambda: 0.0
    future: Future[Translation] = dataclasses.field(default_factory=Future)


class _AbandonedError(Exception):
    """All clients of a batch have left."""


class Batcher:
    """Translates texts of many requests, in one thread, so that neither a client nor a long text delays the others.

    A batch begins with the most urgent text: urgency falls with the work of the text and of its client's shorter texts,
    and rises with the time that the text has waited. Other texts with the same options join the batch. Between two
    steps of a search, a batch of much less work may interrupt it. A search ends when all of its clients have left.

    Args:
        begin: Called by the thread before its first batch.

    Attributes:
        thread: The thread that translates; the caller starts it.
        closed: New texts are refused.
    """

    def __init__(self, *, limits: ServiceSettings, metrics: Metrics, begin: Callable[[], None] = lambda: None) -> None:
        self.begin = begin
        self.limits = limits
        self.metrics = metrics
        self.closed = False
        self._changed = threading.Condition()
        # Guarded by _changed: texts that wait, and texts of the batches in progress. The queue is replaced, never
        # changed in place, so that it can be read without the lock
        self._queue: list[Entry] = []
        self._working: list[Entry] = []
        # A daemon: a batch that outlasts the shutdown must not keep the process alive
        self.thread = threading.Thread(target=self._run, name="translate", daemon=True)
        metrics.queue_texts.set_function(lambda: len(self._queue))
        metrics.queue_characters.set_function(self._waiting_characters)

    def submit(self, entries: Sequence[Entry]) -> None:
        """Queue all texts of a request, or none.

        Raises:
            RefusedError: The service is stopping, or the queue is full.
        """
        limits = self.limits
        with self._changed:
            if self.closed or not self.thread.is_alive():
                raise RefusedError(503, "the service is stopping", CLOSE)
            # A request that is within its own limits always fits into an empty queue
            if self._queue and len(self._queue) + len(entries) > limits.queue_texts:
                raise RefusedError(503, f"the queue is full ({len(self._queue):,} texts wait); try again later", LATER)
            waiting = self._waiting_characters()
            if waiting and waiting + sum(each.text.size for each in entries) > limits.queue_characters:
                raise RefusedError(503, f"the queue is full ({waiting:,} characters wait); try again later", LATER)
            mine = sum(entry.client == entries[0].client for entry in self._queue)
            if mine and mine + len(entries) > limits.client_texts:
                raise RefusedError(
                    429, f"{mine:,} of your texts are waiting; try again when they are translated", LATER
                )
            self._queue = [*self._queue, *entries]
            self._changed.notify()

    def abandon(self, entries: Sequence[Entry]) -> None:
        """Drop the texts of a request whose client has left; a search ends when all of its clients have left."""
        with self._changed:
            for entry in entries:
                entry.future.cancel()
            self._remove(entries)

    def close(self) -> None:
        """Refuse new texts; the thread ends when all accepted texts are translated."""
        with self._changed:
            self.closed = True
            self._changed.notify()

    def abort(self) -> None:
        """Refuse new texts, and the accepted texts that have no translation yet."""
        self.close()
        with self._changed:
            unanswered = [*self._working, *self._queue]
            self._queue = []
        for entry in unanswered:
            # Another thread may settle or cancel the future at any time
            with contextlib.suppress(InvalidStateError):
                entry.future.set_exception(RefusedError(503, "the service stopped before this was translated"))

    def _run(self) -> None:
        """Translate until the batcher is closed and the queue is empty."""
        self.begin()
        while batch := self._next_batch():
            self._work(batch)
            # While the thread waits, its last batch would keep a model that has been replaced in memory
            del batch

    def _work(self, batch: list[Entry]) -> None:
        """Translate a batch, which much shorter ones may interrupt."""
        began = time.monotonic()
        for entry in batch:
            self.metrics.waiting.observe(began - entry.arrived)
        most = max(entry.work for entry in batch) / _MUCH_LONGER
        uninterrupted = began + _SLICE
        owed = 0.0

        def step() -> None:
            nonlocal uninterrupted, owed
            if all(entry.future.done() for entry in batch):
                raise _AbandonedError
            now = time.monotonic()
            # Sorting the queue takes longer than this look at it
            if now < uninterrupted or not any(entry.work <= most and not entry.delay() for entry in self._queue):
                return
            with self._changed:
                shorter = self._choose(most, loaded=True)
            if shorter:
                self._work(shorter)
                ended = time.monotonic()
                owed += (ended - now) * _SHARE / (1 - _SHARE)
                uninterrupted = ended + min(max(owed, _SLICE), _LONG_SLICE)
                owed = max(0.0, owed - _LONG_SLICE)

        with contextlib.suppress(_AbandonedError):
            self._translate(batch, step)
        with self._changed:
            self._working = [entry for entry in self._working if entry not in batch]
        self.metrics.batch_texts.observe(len(batch))
        self.metrics.batch_seconds.observe(time.monotonic() - began)

    def _translate(self, batch: list[Entry], step: Callable[[], None]) -> None:
        """Translate texts with the same options; a text that raises an error fails alone."""
        try:
            results = batch[0].translate([entry.text for entry in batch], batch[0].options, step)
        except _AbandonedError:
            raise
        # Errors of any type, also a panic of a library in Rust: the thread must survive
        except BaseException as error:
            if len(batch) > 1:
                for entry in batch:
                    if not entry.future.done():
                        self._translate([entry], step)
                return
            # Log neither the message nor the trace, which may contain the text
            frame = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{frame.filename}:{frame.lineno}"
            log.error("a text could not be translated: %s in %s", type(error).__name__, place)
            failed = f"{type(error).__name__} while translating; the service's log has more"
            results = [Translation(candidates=[], error=failed)]
        for entry, result in zip(batch, results, strict=True):
            self.metrics.texts.labels("failed" if result.error else "translated").inc()
            with contextlib.suppress(InvalidStateError):
                entry.future.set_result(result)

    def _next_batch(self) -> list[Entry]:
        """Wait for texts and take the next batch out of the queue; return [] when the batcher is closed and idle."""
        with self._changed:
            while True:
                while not self._queue and not self.closed:
                    self._changed.wait()
                if not self._queue:
                    return []
                # Texts that queued up during the last batch have waited long enough
                left = self._queue[0].arrived + self.limits.batch_wait - time.monotonic()
                if left <= 0 or len(self._queue) >= self.limits.batch_texts or self.closed:
                    return self._choose(float("inf"))
                self._changed.wait(left)

    def _choose(self, most: float, *, loaded: bool = False) -> list[Entry]:
        """Take the next batch of texts with at most `most` tokens each out of the queue; [] if no such text waits.

        Args:
            loaded: Only texts whose model is loaded.
        """
        now = time.monotonic()
        of_client: Counter[str] = Counter()
        urgency: dict[Entry, float] = {}
        for entry in sorted(self._queue, key=lambda each: each.work):
            of_client[entry.client] += entry.work  # type: ignore[assignment]
            delay = entry.delay()
            if entry.work <= most and not (loaded and delay):
                # A text that has to wait for its model anyway lets others go first for so long
                urgency[entry] = of_client[entry.client] - _TOKENS_A_SECOND * (now - entry.arrived - delay)
        waiting = sorted(urgency, key=urgency.__getitem__)
        batch = waiting[:1]
        pieces = sum(entry.pieces for entry in batch)
        for entry in waiting[1:]:
            same = (entry.translate, entry.options) == (batch[0].translate, batch[0].options)
            # A short text must not wait for a long one of its batch
            if not same or max(entry.work, batch[0].work) > _MUCH_LONGER * min(entry.work, batch[0].work):
                continue
            pieces += entry.pieces
            if len(batch) >= self.limits.batch_texts or pieces > self.limits.batch_pieces:
                break
            batch.append(entry)
        self._remove(batch)
        self._working += batch
        return batch

    def _remove(self, entries: Sequence[Entry]) -> None:
        """Remove entries from the queue; entries that are not in it are ignored."""
        gone = set(entries)
        self._queue = [entry for entry in self._queue if entry not in gone]

    def _waiting_characters(self) -> int:
        return sum(entry.text.size for entry in self._queue)
