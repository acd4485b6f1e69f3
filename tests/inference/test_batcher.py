"""Test the queue of a service: which texts share a batch, its limits, and its end."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from service_client import PATIENCE

from seq2seq.inference.service.batcher import Batcher, Entry
from seq2seq.inference.service.messages import Options, RefusedError, Text, Translation
from seq2seq.inference.service.metrics import Metrics
from seq2seq.inference.service.settings import ServiceSettings
from seq2seq.settings.search import SearchSettings

NARROW = Options(SearchSettings(beam_size=1), "de", "en")
WIDE = Options(SearchSettings(beam_size=5), "de", "en")
FRENCH = Options(SearchSettings(beam_size=1), "de", "fr")


def some(*texts: str) -> list[Text]:
    return [Text(text) for text in texts]


def upper(texts: list[str]) -> list[Translation]:
    return [Translation(text=text.upper(), candidates=[]) for text in texts]


def entries(translate, texts: list[Text], options: Options, client: str) -> list[Entry]:
    """Return entries of texts whose letters are pieces; a letter takes a token for each hypothesis."""
    beam = options.settings.beam_size
    now = time.monotonic()
    return [Entry(each, options, client, now, each.size, each.size * beam, translate) for each in texts]


class Held:
    """A batcher whose thread is busy with a text, `first`, until it is released, so that the rest queues up.

    Each letter is a piece, and a text takes a token for each piece of each hypothesis. While the first text is held,
    it takes a step whenever `step` is called.
    """

    def __init__(self, **limits: float) -> None:
        self.batches: list[tuple[list[str], Options]] = []
        self.gate = threading.Event()
        self.begun = threading.Event()
        self.steps = threading.Semaphore(0)
        settings = ServiceSettings(**{"batch_wait": 0.0, **limits})  # type: ignore[arg-type]
        self.batcher = Batcher(limits=settings, metrics=Metrics())
        self.batcher.thread.start()
        self.first = self.submit([Text("first")], NARROW, "a client")
        assert self.begun.wait(PATIENCE)

    def submit(self, texts: list[Text], options: Options, client: str) -> list[Entry]:
        found = entries(self.translate, texts, options, client)
        self.batcher.submit(found)
        return found

    def translate(self, texts, options: Options, step) -> list[Translation]:
        self.batches.append(([each.text for each in texts], options))
        self.begun.set()
        while not self.gate.wait(0.001):
            if self.steps.acquire(blocking=False):
                step()
        return upper([each.text for each in texts])

    def end(self) -> list[tuple[list[str], Options]]:
        """Release the thread, wait for its end, and return the batches after the first."""
        self.gate.set()
        self.batcher.close()
        self.batcher.thread.join(PATIENCE)
        assert not self.batcher.thread.is_alive()
        return self.batches[1:]


@contextmanager
def held(**limits: float) -> Iterator[Held]:
    found = Held(**limits)
    yield found
    found.end()


def texts_of(entries: list[Entry]) -> list[str | None]:
    return [entry.future.result(PATIENCE).text for entry in entries]


def test_only_texts_with_the_same_options_share_a_batch():
    with held() as one:
        asked = [("a", NARROW), ("b", WIDE), ("c", NARROW), ("d", FRENCH), ("e", WIDE)]
        tickets = [one.submit(some(text), options, "x") for text, options in asked]
        # The texts with a wide beam take the most work
        assert one.end() == [(["a", "c"], NARROW), (["d"], FRENCH), (["b", "e"], WIDE)]
        assert [texts_of(ticket) for ticket in tickets] == [["A"], ["B"], ["C"], ["D"], ["E"]]


def test_a_batch_has_limits():
    with held(batch_texts=3, batch_pieces=10) as one:
        tickets = [one.submit(some(*texts), NARROW, "x") for texts in (["a", "b"], ["c", "d"], ["e" * 30], ["f" * 9])]
        # A text beyond the limit of a batch is a batch by itself, and short texts do not wait for long ones
        assert [texts for texts, _ in one.end()] == [["a", "b", "c"], ["d"], ["f" * 9], ["e" * 30]]
        assert texts_of(tickets[1]) == ["C", "D"]


@pytest.mark.parametrize(
    ("limits", "texts", "client", "status"),
    [
        ({"queue_texts": 3}, ["c", "d"], "y", 503),
        ({"queue_characters": 3}, ["cd"], "y", 503),
        ({"client_texts": 3}, ["c", "d"], "x", 429),
        ({"client_texts": 3}, ["c", "d"], "y", None),
        ({"queue_texts": 3, "queue_characters": 3, "client_texts": 3}, ["c"], "x", None),
    ],
)
def test_a_queue_has_limits(limits, texts, client, status):
    with held(**limits) as one:
        waiting = one.submit(some("a", "b"), NARROW, "x")
        if status:
            with pytest.raises(RefusedError) as refused:
                one.submit(some(*texts), NARROW, client)
            assert refused.value.status_code == status
            assert refused.value.headers == {"retry-after": "1"}
        else:
            one.submit(some(*texts), NARROW, client)
        # A request waits as a whole or not at all
        assert sum(map(len, [texts for texts, _ in one.end()])) == 2 + (0 if status else len(texts))
        assert texts_of(waiting) == ["A", "B"]


def test_a_client_does_not_delay_another():
    with held(batch_texts=2, batch_pieces=10**7, queue_characters=10**7) as one:
        # So much work that the time of waiting does not count
        for text in "abc":
            one.submit(some(text * 10**6), NARROW, "x")
        one.submit(some("z" * 10**6), NARROW, "y")
        assert [[text[0] for text in texts] for texts, _ in one.end()] == [["a", "z"], ["b", "c"]]


def test_a_long_text_is_not_put_off_for_ever():
    with held() as one:
        (old,) = entries(one.translate, some("a" * 400), NARROW, "x")
        old.arrived -= 1.0
        one.batcher.submit([old])
        one.submit(some("b"), NARROW, "x")
        assert [texts for texts, _ in one.end()] == [["a" * 400], ["b"]]


class Stepping:
    """Translates texts of more than 40 letters in steps until `done` is set, and others at once."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.begun = threading.Event()
        self.ended: list[str] = []

    def __call__(self, texts, options: Options, step) -> list[Translation]:
        lines = [each.text for each in texts]
        while len(lines[0]) > 40 and not self.done.is_set():
            self.begun.set()
            step()
        self.ended += lines
        return upper(lines)


@contextmanager
def stepping() -> Iterator[tuple[Batcher, Stepping, list[Entry]]]:
    """A batcher in the middle of a long text."""
    translate = Stepping()
    batcher = Batcher(limits=ServiceSettings(batch_wait=0.0), metrics=Metrics())
    batcher.thread.start()
    long = entries(translate, some("a" * 50), NARROW, "x")
    batcher.submit(long)
    assert translate.begun.wait(PATIENCE)
    yield batcher, translate, long
    translate.done.set()
    batcher.close()
    batcher.thread.join(PATIENCE)
    assert not batcher.thread.is_alive()


def test_much_shorter_texts_interrupt_a_long_one():
    with stepping() as (batcher, translate, long):
        similar, shorter = (entries(translate, some(text), NARROW, "x") for text in ("b" * 20, "c"))
        batcher.submit(similar)
        batcher.submit(shorter)
        assert texts_of(shorter) == ["C"]
        assert translate.ended == ["c"]
        translate.done.set()
        assert texts_of([*long, *similar]) == ["A" * 50, "B" * 20]


@pytest.mark.parametrize("leave", [lambda batcher, long: batcher.abandon(long), lambda batcher, long: batcher.abort()])
def test_a_search_ends_when_its_clients_have_left(leave):
    with stepping() as (batcher, translate, long):
        similar = entries(translate, some("b" * 20), NARROW, "x")
        batcher.submit(similar)
        leave(batcher, long)
        # An abort refuses the waiting text, too
        if not batcher.closed:
            assert texts_of(similar) == ["B" * 20]
        batcher.close()
        batcher.thread.join(PATIENCE)
        assert not batcher.thread.is_alive()
        assert "a" * 50 not in translate.ended


def test_a_large_request_fits_into_an_empty_queue():
    with held(queue_texts=1, queue_characters=1, client_texts=1) as one:
        ticket = one.submit(some("abc", "def"), NARROW, "x")
        one.gate.set()
        assert texts_of(ticket) == ["ABC", "DEF"]


def test_an_abandoned_request_leaves_the_queue():
    with held(client_texts=1) as one:
        gone = one.submit(some("a", "b"), NARROW, "x")
        with pytest.raises(RefusedError):
            one.submit(some("c"), NARROW, "x")
        one.batcher.abandon(gone)
        kept = one.submit(some("c"), NARROW, "x")
        one.batcher.abandon(one.first)
        assert one.end() == [(["c"], NARROW)]
        assert texts_of(kept) == ["C"]
        assert all(entry.future.cancelled() for entry in gone)


def test_an_idle_model_waits_for_further_texts():
    batches = []

    def translate(texts, options: Options, step) -> list[Translation]:
        batches.append([each.text for each in texts])
        return upper(batches[-1])

    batcher = Batcher(limits=ServiceSettings(batch_wait=10.0, batch_texts=2), metrics=Metrics())
    batcher.thread.start()
    tickets = [entries(translate, some(text), NARROW, "x") for text in "ab"]
    for ticket in tickets:
        batcher.submit(ticket)
    assert [texts_of(ticket) for ticket in tickets] == [["A"], ["B"]]
    assert batches == [["a", "b"]]
    batcher.close()
    batcher.thread.join(PATIENCE)
    assert not batcher.thread.is_alive()


def test_an_idle_thread_keeps_no_model():
    batcher = Batcher(limits=ServiceSettings(batch_wait=0.0), metrics=Metrics())
    batcher.thread.start()
    translate = Stepping()
    ticket = entries(translate, some("a"), NARROW, "x")
    batcher.submit(ticket)
    assert texts_of(ticket) == ["A"]
    model = weakref.ref(translate)
    del translate, ticket
    until = time.monotonic() + PATIENCE
    while model():
        assert time.monotonic() < until
        time.sleep(0.002)
    batcher.close()
    batcher.thread.join(PATIENCE)


def test_texts_whose_clients_have_left_are_not_tried_alone():
    alone = []

    def translate(texts, options: Options, step) -> list[Translation]:
        if len(texts) > 1:
            batcher.abandon(batch[:1])
            raise BaseException  # as a library in Rust raises
        alone.append(texts[0].text)
        return upper(alone[-1:])

    batcher = Batcher(limits=ServiceSettings(), metrics=Metrics())
    batch = entries(translate, some("a", "b"), NARROW, "x")
    batcher._work(batch)
    assert alone == ["b"]
    assert texts_of(batch[1:]) == ["B"]


def test_close_answers_waiting_texts_and_abort_does_not():
    with held() as one:
        waiting = one.submit(some("a"), NARROW, "x")
        one.batcher.close()
        with pytest.raises(RefusedError) as refused:
            one.submit(some("b"), NARROW, "x")
        assert refused.value.status_code == 503
        one.end()
        assert texts_of(waiting) == ["A"]
    with held() as one:
        waiting = one.submit(some("a"), NARROW, "x")
        one.batcher.abort()
        for entry in (*one.first, *waiting):
            assert isinstance(entry.future.exception(PATIENCE), RefusedError)
        assert one.end() == []
