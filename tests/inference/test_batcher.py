"""Test the queue of a service: which texts share a batch, its limits, and its end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from service_client import PATIENCE

from seq2seq.inference.service.batcher import Batcher, Entry
from seq2seq.inference.service.messages import Options, RefusedError, Text, Translation
from seq2seq.inference.service.metrics import Metrics
from seq2seq.inference.service.settings import ServiceSettings
from seq2seq.settings.search import SearchSettings

NARROW = Options(SearchSettings(beam_size=1), "en")
WIDE = Options(SearchSettings(beam_size=5), "en")
FRENCH = Options(SearchSettings(beam_size=1), "fr")


def some(*texts: str) -> list[Text]:
    return [Text(text) for text in texts]


def upper(texts: list[str]) -> list[Translation]:
    return [Translation(text=text.upper(), candidates=[]) for text in texts]


class Held:
    """A batcher whose thread is busy with a text, `first`, until it is released, so that the rest queues up."""

    def __init__(self, **limits: float) -> None:
        self.batches: list[tuple[list[str], Options]] = []
        self.gate = threading.Event()
        self.begun = threading.Event()
        settings = ServiceSettings(**{"batch_wait": 0.0, **limits})  # type: ignore[arg-type]
        self.batcher = Batcher(self.translate, limits=settings, metrics=Metrics())
        self.batcher.thread.start()
        self.first = self.batcher.submit([Text("first")], NARROW, "a client")
        assert self.begun.wait(PATIENCE)

    def translate(self, texts, options: Options) -> list[Translation]:
        self.batches.append(([each.text for each in texts], options))
        self.begun.set()
        assert self.gate.wait(PATIENCE)
        return upper(self.batches[-1][0])

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
        tickets = [one.batcher.submit(some(text), options, "x") for text, options in asked]
        # The oldest text decides, so that no text waits for long
        assert one.end() == [(["a", "c"], NARROW), (["b", "e"], WIDE), (["d"], FRENCH)]
        assert [texts_of(ticket) for ticket in tickets] == [["A"], ["B"], ["C"], ["D"], ["E"]]


def test_a_batch_has_limits():
    with held(batch_texts=3, batch_characters=10) as one:
        tickets = [
            one.batcher.submit(some(*texts), NARROW, "x") for texts in (["a", "b"], ["c", "d"], ["e" * 30], ["f" * 9])
        ]
        # A text beyond the limit of a batch is a batch by itself
        assert [texts for texts, _ in one.end()] == [["a", "b", "c"], ["d"], ["e" * 30], ["f" * 9]]
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
        waiting = one.batcher.submit(some("a", "b"), NARROW, "x")
        if status:
            with pytest.raises(RefusedError) as refused:
                one.batcher.submit(some(*texts), NARROW, client)
            assert refused.value.status_code == status
            assert refused.value.headers == {"retry-after": "1"}
        else:
            one.batcher.submit(some(*texts), NARROW, client)
        # A request waits as a whole or not at all
        assert sum(map(len, [texts for texts, _ in one.end()])) == 2 + (0 if status else len(texts))
        assert texts_of(waiting) == ["A", "B"]


def test_a_large_request_fits_into_an_empty_queue():
    with held(queue_texts=1, queue_characters=1, client_texts=1) as one:
        ticket = one.batcher.submit(some("abc", "def"), NARROW, "x")
        one.gate.set()
        assert texts_of(ticket) == ["ABC", "DEF"]


def test_an_abandoned_request_leaves_the_queue():
    with held(client_texts=1) as one:
        gone = one.batcher.submit(some("a", "b"), NARROW, "x")
        with pytest.raises(RefusedError):
            one.batcher.submit(some("c"), NARROW, "x")
        one.batcher.abandon(gone)
        kept = one.batcher.submit(some("c"), NARROW, "x")
        # The current batch is not interrupted, and its result is dropped
        one.batcher.abandon(one.first)
        assert one.end() == [(["c"], NARROW)]
        assert texts_of(kept) == ["C"]
        assert all(entry.future.cancelled() for entry in gone)


def test_an_idle_model_waits_for_further_texts():
    batches = []

    def translate(texts, options: Options) -> list[Translation]:
        batches.append([each.text for each in texts])
        return upper(batches[-1])

    batcher = Batcher(translate, limits=ServiceSettings(batch_wait=10.0, batch_texts=2), metrics=Metrics())
    batcher.thread.start()
    tickets = [batcher.submit(some(text), NARROW, "x") for text in "ab"]
    assert [texts_of(ticket) for ticket in tickets] == [["A"], ["B"]]
    assert batches == [["a", "b"]]
    batcher.close()
    batcher.thread.join(PATIENCE)
    assert not batcher.thread.is_alive()


def test_close_answers_waiting_texts_and_abort_does_not():
    with held() as one:
        waiting = one.batcher.submit(some("a"), NARROW, "x")
        one.batcher.close()
        with pytest.raises(RefusedError) as refused:
            one.batcher.submit(some("b"), NARROW, "x")
        assert refused.value.status_code == 503
        one.end()
        assert texts_of(waiting) == ["A"]
    with held() as one:
        waiting = one.batcher.submit(some("a"), NARROW, "x")
        one.batcher.abort()
        for entry in (*one.first, *waiting):
            assert isinstance(entry.future.exception(PATIENCE), RefusedError)
        assert one.end() == []
