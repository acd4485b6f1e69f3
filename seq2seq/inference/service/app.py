"""Serve translations over HTTP: POST /translate, GET /health, GET /metrics, and a page at /."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import hashlib
import ipaddress
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import seq2seq
from seq2seq.data.language_id import other_language
from seq2seq.inference.encoding import target_ids
from seq2seq.inference.service.batch_translator import BatchTranslator
from seq2seq.inference.service.batcher import Batcher, Entry
from seq2seq.inference.service.messages import (
    ErrorAnswer,
    RefusedError,
    TranslateAnswer,
    TranslateRequest,
    Translation,
    chosen_options,
    read_request,
    texts_of,
)
from seq2seq.inference.service.metrics import Metrics
from seq2seq.inference.service.settings import ServiceSettings
from seq2seq.search.hypothesis import longest_target
from seq2seq.settings.values import shown

PATHS = ("/", "/translate", "/health", "/metrics", "/openapi.json")
# A body beyond the limit is still read, up to this many bytes: a client reads its answer only after it has sent all.
_DISCARDED = 1 << 24
_HEADERS = ((b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store"))
_CLIENT_HAS_LEFT = 499  # only the metrics show it
_STATUSES = {
    400: "no JSON",
    408: "the request did not arrive in time",
    413: "too large",
    415: "not application/json",
    421: "the service does not answer under this name",
    422: "a wrong field or value",
    429: "too many texts of one client wait",
    500: "no text could be translated",
    503: "too many requests are open, the queue is full, or the service is stopping",
    504: "not translated in time",
}


class Service:
    """Model, queue and limits behind the application.

    Args:
        begin: Called by the thread that translates, before its first batch.

    Attributes:
        open: Requests for a translation that have no answer yet.
    """

    def __init__(
        self, translator: BatchTranslator, limits: ServiceSettings, *, begin: Callable[[], None] = lambda: None
    ) -> None:
        self.translator = translator
        self.limits = limits
        self.metrics = Metrics()
        self.batcher = Batcher(limits=limits, metrics=self.metrics, begin=begin)
        self.open = 0
        self.metrics.open.set_function(lambda: self.open)

    @property
    def ready(self) -> bool:
        """True while new requests are accepted."""
        return self.batcher.thread.is_alive() and not self.batcher.closed

    async def translate(self, request: Request) -> TranslateAnswer | None:
        """Answer a request; None if the client has left.

        Raises:
            RefusedError: The request cannot be served.
        """
        limits = self.limits
        if not self.ready:
            raise RefusedError(503, "the service is stopping", close=True)
        if self.open > limits.max_requests:
            message = f"{limits.max_requests:,} requests are open, which is the most at once; try again later"
            raise RefusedError(503, message, 1, close=True)
        try:
            body = await _body(request, limits)
        except ClientDisconnect:
            return None
        # Stays the same if the model is loaded again meanwhile
        translator = self.translator
        asked = read_request(body)
        texts = texts_of(asked, limits)
        options = chosen_options(asked, translator.settings, translator.languages, limits, translator.sources)
        pieces = translator.pieces([each.text for each in texts])
        if sum(pieces) > limits.max_pieces:
            raise RefusedError(
                413, f"{sum(pieces):,} pieces are too many; send at most {limits.max_pieces:,} in a request"
            )
        try:
            target_ids(translator.tokenizer, options.suppress)
        except ValueError as error:
            raise RefusedError(422, f"suppress: {error}") from None
        if options.alignment and not translator.can_align:
            raise RefusedError(
                422, "alignment: this service translates with ONNX graphs, which align no words; leave it out"
            )
        client = request.client.host if request.client else ""
        now = time.monotonic()
        # A text of many pieces is translated in parts, to which alone the model's number of positions applies
        settings = dataclasses.replace(options.settings, max_len=None)
        works = [settings.beam_size * max(size, longest_target(size + 1, settings)) for size in pieces]
        entries = [
            Entry(text, options, client, now, size, work, translator)
            for text, size, work in zip(texts, pieces, works, strict=True)
        ]
        self.batcher.submit(entries)
        self.metrics.characters.inc(sum(len(each.text) for each in texts))
        try:
            results = await _results(request, entries, limits.timeout)
        finally:
            # The time limit has passed, or the client has left; this does nothing for an answered request
            self.batcher.abandon(entries)
        if results is None:
            return None
        if all(result.error for result in results):
            raise RefusedError(500, f"the text could not be translated: {results[0].error}")
        return TranslateAnswer(translations=results)

    def health(self) -> dict[str, Any]:
        """Describe the service: state, languages, defaults and limits."""
        settings = self.translator.settings
        limits = self.limits
        return {
            "status": "ok" if self.ready else "stopping",
            "version": seq2seq.__version__,
            "src_lang": self.translator.sources[0],
            "src_langs": self.translator.sources,
            "tgt_lang": self.translator.languages[0],
            "tgt_langs": self.translator.languages,
            "alignment": self.translator.can_align,
            "defaults": {
                name: getattr(settings, name)
                for name in ("n_best", "beam_size", "beam_groups", "length_penalty", "max_len_ratio", "max_len_extra")
            },
            "limits": {
                "texts": limits.max_texts,
                "characters": limits.max_characters,
                "pieces": limits.max_pieces,
                "bytes": limits.max_body,
                "beam_size": max(limits.max_beam_size, settings.beam_size),
                "seconds": limits.timeout,
            },
        }


def create_app(service: Service) -> ASGIApp:
    """Create the application of a service, whose batcher must have been started."""
    # FastAPI's own documentation pages load scripts from other hosts
    app = FastAPI(
        title="seq2seq", version=seq2seq.__version__, description=__doc__ or "", docs_url=None, redoc_url=None
    )
    page = _page()
    # Its first request asks for languages: read their model, which takes a second, while the visitor types
    page.background = BackgroundTask(other_language, "", "en")

    @app.get("/", include_in_schema=False)
    async def show_page() -> Response:
        return page

    @app.get("/health", summary="State, languages and limits; 503 once the service is stopping")
    async def show_health() -> Response:
        return JSONResponse(service.health(), status_code=200 if service.ready else 503)

    @app.get("/metrics", summary="Measurements in Prometheus's text format")
    async def show_metrics() -> Response:
        return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    refusals: dict[int | str, dict[str, Any]] = {
        status: {"model": ErrorAnswer, "description": text} for status, text in _STATUSES.items()
    }
    body = {"required": True, "content": {"application/json": {"schema": TranslateRequest.model_json_schema()}}}

    @app.post(
        "/translate",
        summary="Translate one text or several",
        response_model=TranslateAnswer,
        responses=refusals,
        openapi_extra={"requestBody": body},
    )
    async def translate(request: Request) -> Response:
        service.open += 1
        try:
            answered = await service.translate(request)
        finally:
            service.open -= 1
        if answered is None:
            return Response(status_code=_CLIENT_HAS_LEFT)
        return Response(answered.model_dump_json(exclude_none=True), media_type="application/json")

    app.exception_handler(HTTPException)(_refused)
    app.exception_handler(Exception)(_broken)
    return _guarded(app, service.metrics, service.limits)


def _guarded(app: ASGIApp, metrics: Metrics, limits: ServiceSettings) -> ASGIApp:
    """Wrap an application: count and time its requests, refuse other names, and add headers to every answer."""
    named = (limits.allowed_hosts or "").replace(",", " ").split()
    hosts = {"", "localhost", *map(_name_of, [limits.host, *named])}

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        # Without a lifespan and web sockets, every scope is a request
        assert scope["type"] == "http"
        began = time.monotonic()
        # Paths that clients make up must not become labels of the metrics
        path = scope["path"] if scope["path"] in PATHS else "other"

        async def send_counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *_HEADERS]
                metrics.requests.labels(path, str(message["status"])).inc()
                metrics.seconds.labels(path).observe(time.monotonic() - began)
            await send(message)

        host = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
        answer = app
        # The owner of any other name can let it point to this machine, and a page of that name could then read answers
        if not (hosts & {"*", name := _name_of(host)} or _is_address(name)):
            message = f"this service does not answer as '{shown(host)}'; start it with --allowed-hosts and this name"
            answer = JSONResponse({"error": message}, 421)
        await answer(scope, receive, send_counted)

    return wrapped


def _is_address(name: str) -> bool:
    try:
        return bool(ipaddress.ip_address(name))
    except ValueError:
        return False


def _name_of(host: str) -> str:
    """Return the name in a Host, as a browser sends it; what is no Host is returned as it is."""
    try:
        name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
        return name if name.isascii() else name.encode("idna").decode()
    except ValueError:
        return host


async def _body(request: Request, limits: ServiceSettings) -> bytes:
    """Read a request's body.

    Raises:
        RefusedError: Its type is not JSON, it is too large, or it does not arrive in time.
    """
    kind = request.headers.get("content-type", "")
    # A form on a malicious page in the same browser cannot send this type
    if kind.partition(";")[0].strip().lower() != "application/json":
        raise RefusedError(415, f"the Content-Type is '{kind[:60]}'; send application/json")
    message = f"the body has more than {limits.max_body:,} bytes, which is the most in a request"
    refusal = RefusedError(413, message, close=True)
    declared = request.headers.get("content-length", "")
    # A client that waits for "100 Continue" is refused before it sends the body
    if declared.isdecimal() and len(declared) < 20 and int(declared) > limits.max_body and "expect" in request.headers:
        raise refusal
    body = bytearray()
    size = 0
    try:
        async with asyncio.timeout(limits.body_timeout):
            async for chunk in request.stream():
                size += len(chunk)
                if size > max(limits.max_body, _DISCARDED):
                    raise refusal
                if size <= limits.max_body:
                    body += chunk
    except TimeoutError:
        message = f"the request did not arrive within {limits.body_timeout:g} seconds"
        raise RefusedError(408, message, close=True) from None
    if size > limits.max_body:
        raise refusal
    return bytes(body)


async def _results(request: Request, entries: list[Entry], seconds: float) -> list[Translation] | None:
    """Wait at most `seconds` for the results of a request; return None if the client has left.

    Raises:
        RefusedError: The time limit has passed, or the service has stopped.
    """

    async def all_results() -> list[Translation]:
        return [await asyncio.wrap_future(entry.future) for entry in entries]

    # A task can be canceled without an error in the log, unlike the future that gather returns
    results = asyncio.ensure_future(all_results())
    # The only message after the body says that the client has closed the connection
    left = asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait({results, left}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if results.done():
            return results.result()
        if left.done():
            return None
    finally:
        left.cancel()
        results.cancel()
    raise RefusedError(504, f"not translated within {seconds:g} seconds; send less at once, or try again later", 1)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    # Replace the messages of the router's own errors
    if error.status_code == 404:
        message = f"there is nothing at this path; there are {', '.join(PATHS)}"
    elif error.status_code == 405:
        message = f"this path takes {(error.headers or {}).get('Allow', 'another method')}, not {request.method}"
    else:
        message = str(error.detail)
    return JSONResponse({"error": message}, error.status_code, dict(error.headers or {}))


async def _broken(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": "the service failed; its log has more"}, 500)


def _page() -> Response:
    """Read the page; its policy allows its own style and script, and no others."""
    text = (Path(__file__).parent / "page.html").read_text("utf-8")

    def allowed(tag: str) -> str:
        """Return the hash of the element's content for a Content-Security-Policy."""
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, flags=re.DOTALL)
        return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"

    policy = (
        f"default-src 'none'; style-src {allowed('style')}; script-src {allowed('script')}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    headers = {"content-security-policy": policy, "referrer-policy": "no-referrer"}
    return Response(text, media_type="text/html", headers=headers)
