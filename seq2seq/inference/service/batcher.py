"""Batch the texts of concurrent requests: a queue with limits, and the thread that owns the model."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError

from seq2seq.inference.service.messages import Options, RefusedError, Text, Translation
from seq2seq.inference.service.metrics import Metrics
from seq2seq.inference.service.settings import ServiceSettings

log = logging.getLogger(__name__)


@dataclasses.dataclass(eq=False)
class Entry:
    """Text of a request in the queue, and the future of its translation."""

    text: Text
    options: Options
    client: str
    arrived: float
    future: Future[Translation] = dataclasses.field(default_factory=Future)


class Batcher:
    """Translates texts of many requests with one model, in one thread, in the order of their arrival.

    A batch starts with the text that has waited longest; other texts with the same options join it.

    Args:
        translate: Translates texts with the same options; only the batcher's thread calls it.
        limits: Limits of a batch and of the queue.
        begin: Called by the thread before its first batch.

    Attributes:
        thread: The thread that translates; the caller starts it.
        closed: New texts are refused.
    """

    def __init__(
        self,
        translate: Callable[[Sequence[Text], Options], list[Translation]],
        *,
        limits: ServiceSettings,
        metrics: Metrics,
        begin: Callable[[], None] = lambda: None,
    ) -> None:
        self.translate = translate
        self.begin = begin
        self.limits = limits
        self.metrics = metrics
        self.closed = False
        self._changed = threading.Condition()
        # Guarded by _changed: texts that wait, and the current batch. The queue is replaced, never changed in place, so
        # that the metrics can read it without the lock
        self._queue: list[Entry] = []
        self._working: list[Entry] = []
        # A daemon: a batch that outlasts the shutdown must not keep the process alive
        self.thread = threading.Thread(target=self._run, name="translate", daemon=True)
        metrics.queue_texts.set_function(lambda: len(self._queue))
        metrics.queue_characters.set_function(self._waiting_characters)

    def submit(self, texts: Sequence[Text], options: Options, client: str) -> list[Entry]:
        """Queue all texts of a request, or none.

        Raises:
            RefusedError: The service is stopping, or the queue is full.
        """
        now = time.monotonic()
        entries = [Entry(text, options, client, now) for text in texts]
        limits = self.limits
        with self._changed:
            if self.closed or not self.thread.is_alive():
                raise RefusedError(503, "the service is stopping", close=True)
            # A request that is within its own limits always fits into an empty queue
            if self._queue and len(self._queue) + len(texts) > limits.queue_texts:
                raise RefusedError(503, f"the queue is full ({len(self._queue):,} texts wait); try again later", 1)
            waiting = self._waiting_characters()
            if waiting and waiting + sum(each.size for each in texts) > limits.queue_characters:
                raise RefusedError(503, f"the queue is full ({waiting:,} characters wait); try again later", 1)
            mine = sum(entry.client == client for entry in self._queue)
            if mine and mine + len(texts) > limits.client_texts:
                raise RefusedError(429, f"{mine:,} of your texts wait already; ask again when they are answered", 1)
            self._queue = self._queue + entries
            self._changed.notify()
        return entries

    def abandon(self, entries: Sequence[Entry]) -> None:
        """Drop the texts of a request whose client has left; the current batch is not interrupted."""
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
            began = time.monotonic()
            for entry in batch:
                self.metrics.waiting.observe(began - entry.arrived)
            self._translate(batch)
            self.metrics.batch_texts.observe(len(batch))
            self.metrics.batch_seconds.observe(time.monotonic() - began)

    def _translate(self, batch: list[Entry]) -> None:
        """Translate texts with the same options; a text that raises an error fails alone."""
        try:
            results = self.translate([entry.text for entry in batch], batch[0].options)
        # Catch errors of any type: the thread must survive
        except Exception as error:
            if len(batch) > 1:
                for entry in batch:
                    self._translate([entry])
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
            self._working = []
            while True:
                while not self._queue and not self.closed:
                    self._changed.wait()
                if not self._queue:
                    return []
                # Texts that queued up during the last batch have waited long enough
                left = self._queue[0].arrived + self.limits.batch_wait - time.monotonic()
                if left <= 0 or len(self._queue) >= self.limits.batch_texts or self.closed:
                    break
                self._changed.wait(left)
            self._working = self._choose()
            self._remove(self._working)
            return self._working

    def _choose(self) -> list[Entry]:
        """Choose the first text, and further texts with its options within the limits of a batch."""
        options = self._queue[0].options
        batch: list[Entry] = []
        characters = 0
        for entry in self._queue:
            if entry.options != options:
                continue
            characters += entry.text.size
            if batch and (len(batch) >= self.limits.batch_texts or characters > self.limits.batch_characters):
                break
            batch.append(entry)
        return batch

    def _remove(self, entries: Sequence[Entry]) -> None:
        """Remove entries from the queue; entries that are not in it are ignored."""
        gone = set(entries)
        self._queue = [entry for entry in self._queue if entry not in gone]

    def _waiting_characters(self) -> int:
        return sum(entry.text.size for entry in self._queue)
