"""A translator without a model, and calls of the service's application without a network."""

from __future__ import annotations

import asyncio
import copy
import functools
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import pytest

from seq2seq.data.languages import NO_TAGS
from seq2seq.inference import forced_text
from seq2seq.inference.forced_text import Alignment, ForcedLine, force_candidates
from seq2seq.inference.service.access import Access
from seq2seq.inference.service.app import Service, create_app
from seq2seq.inference.service.loaded_models import Models
from seq2seq.inference.service.settings import ServiceSettings
from seq2seq.inference.translator import Note, TranslatedText, Translator
from seq2seq.settings.search import SearchSettings

# Seconds after which a wait for another thread has failed.
PATIENCE = 60


class Stub:
    """Translates by turning letters around; candidate i has the score -(i + 1) / 10.

    A text with "boom" fails, one with "crash" raises, and one with "long" is cut. Nothing is translated before `gate`
    is set.

    Attributes:
        batches: The texts of every call.
        options: The other options of every call, besides the search settings.
    """

    def __init__(self, *, languages: Sequence[str] = (), beam_size: int = 3) -> None:
        self.meta: dict[str, Any] = {"src_lang": "de", "tgt_lang": "en"}
        if languages:
            self.meta["tgt_langs"] = list(languages)
        self.src_lang, self.tgt_lang = "de", "en"
        self.can_force = True
        self.settings = SearchSettings(beam_size=beam_size)
        # The target vocabulary has one piece
        pieces = SimpleNamespace(
            piece_to_id=lambda piece: int(piece == "▁dog"), id_to_piece=["<unk>", "▁dog"].__getitem__
        )
        # Each letter is a piece
        self.tokenizer = SimpleNamespace(
            tag_ids=list,
            tags_targets=False,
            src=SimpleNamespace(is_byte=lambda number: False),
            tgt=pieces,
            unk_id=0,
            patches=None,
            factors={},
            encode_src=lambda lines: [[*line, "end"] for line in lines],
        )
        self.tags = NO_TAGS
        self.glossary = None
        self.glossary_by = "search"
        self.nbytes = 1000
        self.gate = threading.Event()
        self.gate.set()
        self.begun = threading.Event()
        self.batches: list[list[str]] = []
        self.options: list[dict[str, Any]] = []

    between = Translator.between

    def translate(
        self, lines: Sequence[str], *, settings: SearchSettings, note: Callable[[Note], None], **options: Any
    ) -> list[list[TranslatedText]]:
        """Translate as described above."""
        self.batches.append(list(lines))
        step = options.pop("progress")
        self.options.append({name: value for name, value in options.items() if value})
        self.begun.set()
        until = time.monotonic() + PATIENCE
        while not self.gate.wait(0.01):
            assert time.monotonic() < until
            step(0)
        if any("crash" in line for line in lines):
            raise RuntimeError("no such weather")
        for i, line in enumerate(lines):
            if "boom" in line:
                note(Note.failed(i, "out of memory", by_input=False))
            if "long" in line:
                note(Note.cut(i, 9, 4))
        return [[self.candidate(line, i, settings) for i in range(settings.n_best)] for line in lines]

    def align(self, lines: Sequence[str], candidates: Sequence[Any]) -> list[list[Alignment | None]]:
        """Align the words of the best candidate in order."""
        return [
            [Alignment(line.split(), [best.text], [(0, 0)], [[1.0] * len(line.split())]), *[None] * len(others)]
            for line, (best, *others) in zip(lines, candidates, strict=True)
        ]

    def candidate(self, line: str, i: int, settings: SearchSettings) -> TranslatedText:
        """Return candidate i of a line; its text shows the options."""
        return TranslatedText(
            f"{line[::-1]}/{i}/{settings.beam_size}/{''.join(map(str, self.tags.source))}", -(i + 1) / 10
        )


class Answer(NamedTuple):
    """Answer to a call."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, parsed."""
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The line of an error."""
        assert set(self.json) == {"error"}
        return self.json["error"]

    @property
    def texts(self) -> list[str]:
        """The best translations."""
        return [each["text"] for each in self.json["translations"]]


class Served:
    """A running service, called without a network."""

    def __init__(self, stub: Any, service: Service) -> None:
        self.stub = stub
        self.service = service
        self.app = create_app(service)

    def call(self, body: Any = b"", **request: Any) -> Answer:
        """Send one request and return its answer; see `send`."""
        return asyncio.run(self.send(body, **request))

    async def send(
        self,
        body: Any = b"",
        *,
        method: str = "POST",
        path: str = "/translate",
        headers: dict[str, str] | None = None,
        client: str = "1.2.3.4",
        chunks: Sequence[bytes] | None = None,
        leave: asyncio.Event | None = None,
        query: bytes = b"",
        stalled: bool = False,
    ) -> Answer:
        """Send one request.

        Args:
            body: Bytes, or a value that is sent as JSON.
            chunks: Parts of the body; after these the body stalls.
            leave: Set when the client has left.
            stalled: The client reads the head of the answer alone.
        """
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        messages = [{"type": "http.request", "body": data, "more_body": False}]
        if chunks is not None:
            messages = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]
        sent: list[Any] = []
        left = leave or asyncio.Event()

        async def receive() -> Any:
            if messages:
                return messages.pop(0)
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)
            if stalled and message["type"] == "http.response.body":
                await left.wait()

        given = {"content-type": "application/json"} if headers is None else headers
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "path": path,
            "raw_path": path.encode(), "query_string": query, "root_path": "", "scheme": "http",
            "headers": [(k.encode(), v.encode()) for k, v in given.items()],
            "client": (client, 1), "server": ("test", 80),
        }  # fmt: skip
        await self.app(scope, receive, send)
        start = sent[0]
        names = {k.decode(): v.decode() for k, v in start["headers"]}
        return Answer(start["status"], names, b"".join(message.get("body", b"") for message in sent[1:]))


def _force_candidates(translator: Any, lines: Any, candidates: Any, **how: Any) -> list[list[ForcedLine]]:
    """Ask a stub for its alignments, and a real translator for its own."""
    if not isinstance(translator, Stub):
        return force_candidates(translator, lines, candidates, **how)
    return [[ForcedLine(None, [], words) for words in row] for row in translator.align(lines, candidates)]


@contextmanager
def served(stub: Any = None, others: Mapping[str, Stub] = MappingProxyType({}), **limits: Any) -> Any:
    """Run a service, with a stub and small waits unless told otherwise.

    Args:
        others: Further models by name; the first one is called model.
    """
    translator: Any = stub or Stub()
    # A busy machine must not fail a test
    given = {"batch_wait": 0.0, "timeout": 10.0 * PATIENCE, "body_timeout": PATIENCE, **limits}
    settings = ServiceSettings(**given)
    loaders = {name: functools.partial(copy.copy, each) for name, each in {"model": translator, **others}.items()}
    service = Service(Models(loaders, most=1e9 * (settings.memory or float("inf"))), Access(settings))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forced_text, "force_candidates", _force_candidates)
        service.batcher.thread.start()
        try:
            yield Served(translator, service)
        finally:
            if isinstance(translator, Stub):
                translator.gate.set()
            service.batcher.close()
            service.batcher.thread.join(PATIENCE)
            assert not service.batcher.thread.is_alive()
