"""Batch the texts of concurrent requests: a queue with limits, and the thread that owns the model."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import TYPE_CHECKING, NamedTuple

from seq2seq.inference.service.settings import ServiceSettings
from seq2seq.settings.search import SamplingSettings, SearchSettings

if TYPE_CHECKING:
    from seq2seq.inference.forced_text import Alignment
    from seq2seq.inference.service.metrics import Metrics
    from seq2seq.inference.translator import TranslatedText

log = logging.getLogger(__name__)


class RefusedError(Exception):
    """Request that is not served.

    Args:
        status: HTTP status code.
        message: One line for the client, with the remedy.
        retry_after: Seconds after which it makes sense to ask again.
        close: Close the connection: the rest of a body that was not read cannot be told from the next request.
    """

    def __init__(self, status: int, message: str, retry_after: int | None = None, *, close: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_after = retry_after
        self.close = close


class Options(NamedTuple):
    """Options of a request; only texts with the same ones are translated together.

    Attributes:
        sampling: Draw beam_size translations instead of searching.
        mbr: Rank the samples by how well they agree, as this metric measures it.
        suppress: Pieces that no translation has.
        constrained: There are phrases that translations must have.
        alignment: Align the words of each candidate.
        sentences: How texts are divided into parts; None for the service's way.
    """

    settings: SearchSettings
    tgt_lang: str
    sampling: SamplingSettings | None = None
    mbr: str | None = None
    suppress: tuple[str, ...] = ()
    constrained: bool = False
    alignment: bool = False
    sentences: str | None = None


class Text(NamedTuple):
    """Text to translate, what its translation begins with, and what it must have somewhere."""

    text: str
    prefix: str = ""
    phrases: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Characters of all."""
        return len(self.text) + len(self.prefix) + sum(map(len, self.phrases))


class Result(NamedTuple):
    """Translation of one text: its candidates, best first; a warning about it, or the reason why there is none.

    Attributes:
        alignments: One for each candidate, if they were asked for.
    """

    candidates: list[TranslatedText]
    warning: str = ""
    error: str = ""
    alignments: Sequence[Alignment | None] = ()


class Ticket:
    """Request that was accepted, and the future of its results, one for each text."""

    def __init__(self, texts: Sequence[Text], options: Options, client: str) -> None:
        self.texts = list(texts)
        self.options = options
        self.client = client
        self.arrived = time.monotonic()
        self.results: dict[int, Result] = {}
        self.future: Future[list[Result]] = Future()

    def settle(self, position: int, result: Result) -> None:
        """Store the result of one text; the last one completes the future."""
        self.results[position] = result
        if len(self.results) == len(self.texts):
            # Another thread may cancel the future at any time, so that asking first would not help
            with contextlib.suppress(InvalidStateError):
                self.future.set_result([self.results[i] for i in range(len(self.texts))])


Entry = tuple[Ticket, int]  # a text that waits: its request, and its position there


class Batcher:
    """Translates texts of many requests with one model, in one thread, in the order in which they arrived.

    A batch starts with the text that has waited longest; others join it if they have the same options.

    Args:
        translate: Translates texts with the same options; only the batcher's thread calls it.
        limits: Of a batch and of the queue.
        begin: Called by the thread before its first batch.
    """

    def __init__(
        self,
        translate: Callable[[Sequence[Text], Options], list[Result]],
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
        # Guarded by _changed: texts that wait, those of each client, their characters, and what is being translated
        self._queue: deque[Entry] = deque()
        self._clients: Counter[str] = Counter()
        self._characters = 0
        self._working: list[Entry] = []
        # A daemon: a batch that outlasts the time of a shutdown must not keep the process
        self._thread = threading.Thread(target=self._run, name="translate", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        """True while the thread runs."""
        return self._thread.is_alive()

    def submit(self, texts: Sequence[Text], options: Options, client: str) -> Ticket:
        """Queue all texts of a request, or none.

        Raises:
            RefusedError: The service is stopping, or the queue is full.
        """
        ticket = Ticket(texts, options, client)
        characters = sum(each.size for each in texts)
        limits = self.limits
        with self._changed:
            if self.closed or not self.alive:
                raise RefusedError(503, "the service is stopping", close=True)
            # A request that is within its own limits always fits into an empty queue
            if self._queue and len(self._queue) + len(texts) > limits.queue_texts:
                raise RefusedError(503, f"the queue is full ({len(self._queue):,} texts wait); try again later", 1)
            if self._queue and self._characters + characters > limits.queue_characters:
                raise RefusedError(503, f"the queue is full ({self._characters:,} characters wait); try again later", 1)
            mine = self._clients[client]
            if mine and mine + len(texts) > limits.client_texts:
                raise RefusedError(429, f"{mine:,} of your texts wait already; ask again when they are answered", 1)
            self._queue.extend((ticket, position) for position in range(len(texts)))
            self._count(client, len(texts), characters)
            self._changed.notify()
        return ticket

    def abandon(self, ticket: Ticket) -> None:
        """Forget a request that nobody waits for; what is being translated goes on."""
        with self._changed:
            ticket.future.cancel()
            waiting = [entry for entry in self._queue if entry[0] is ticket]
            self._remove(waiting)

    def close(self) -> None:
        """Refuse new texts; the thread ends when all that were accepted are translated."""
        with self._changed:
            self.closed = True
            self._changed.notify()

    def abort(self) -> None:
        """Refuse new texts, and those that were accepted and have no result."""
        self.close()
        with self._changed:
            unanswered = {entry[0] for entry in (*self._working, *self._queue)}
            self._remove(list(self._queue))
        for ticket in unanswered:
            with contextlib.suppress(InvalidStateError):
                ticket.future.set_exception(RefusedError(503, "the service stopped before this was translated"))

    def join(self, timeout: float) -> bool:
        """Wait for the thread's end; return False if it still runs."""
        self._thread.join(timeout)
        return not self.alive

    def _run(self) -> None:
        """Translate until the batcher is closed and the queue is empty."""
        self.begin()
        while batch := self._next_batch():
            began = time.monotonic()
            for ticket, _ in batch:
                self.metrics.waiting.observe(began - ticket.arrived)
            self._translate(batch)
            self.metrics.batch_texts.observe(len(batch))
            self.metrics.batch_seconds.observe(time.monotonic() - began)

    def _translate(self, batch: list[Entry]) -> None:
        """Translate texts with the same options, and settle each; an error is that of its own text alone."""
        try:
            results = self.translate([ticket.texts[i] for ticket, i in batch], batch[0][0].options)
        # An error of any type: the thread must live on
        except Exception as error:
            if len(batch) > 1:
                for entry in batch:
                    self._translate([entry])
                return
            # Neither its message nor its trace, which may have the text
            frame = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{frame.filename}:{frame.lineno}"
            log.error("a text could not be translated: %s in %s", type(error).__name__, place)
            results = [Result([], error=f"{type(error).__name__} while translating; the service's log has more")]
        for (ticket, i), result in zip(batch, results, strict=True):
            self.metrics.texts.labels("failed" if result.error else "translated").inc()
            ticket.settle(i, result)

    def _next_batch(self) -> list[Entry]:
        """Wait for texts and take those of the next batch; [] at the end."""
        with self._changed:
            self._working = []
            while True:
                while not self._queue and not self.closed:
                    self._changed.wait()
                if not self._queue:
                    return []
                # Those that queued up during the last batch have waited long enough
                left = self._queue[0][0].arrived + self.limits.batch_wait - time.monotonic()
                if left <= 0 or len(self._queue) >= self.limits.batch_texts or self.closed:
                    break
                self._changed.wait(left)
            self._working = self._choose()
            self._remove(self._working)
            return self._working

    def _choose(self) -> list[Entry]:
        """Choose the first text, and further ones with its options as far as the limits of a batch go."""
        options = self._queue[0][0].options
        batch: list[Entry] = []
        characters = 0
        for ticket, i in self._queue:
            if ticket.options != options:
                continue
            characters += ticket.texts[i].size
            if batch and (len(batch) >= self.limits.batch_texts or characters > self.limits.batch_characters):
                break
            batch.append((ticket, i))
        return batch

    def _remove(self, entries: list[Entry]) -> None:
        """Take entries out of the queue."""
        if not entries:
            return
        gone = {(id(ticket), i) for ticket, i in entries}
        self._queue = deque(entry for entry in self._queue if (id(entry[0]), entry[1]) not in gone)
        for ticket, i in entries:
            self._count(ticket.client, -1, -ticket.texts[i].size)

    def _count(self, client: str, texts: int, characters: int) -> None:
        self._characters += characters
        self._clients[client] += texts
        # Addresses of clients must not pile up
        if not self._clients[client]:
            del self._clients[client]
        self.metrics.queue_texts.set(len(self._queue))
        self.metrics.queue_characters.set(self._characters)
