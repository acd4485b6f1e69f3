"""Serve translations over HTTP: POST /translate, GET /languages, /health and /metrics, a page at /, and /docs.

POST /translate, POST /detect and GET /languages also serve clients of LibreTranslate.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import functools
import hashlib
import ipaddress
import json
import re
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from fastapi import FastAPI, Request, Response
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import JSONResponse, StreamingResponse
from fastapi.staticfiles import StaticFiles
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from python_multipart.multipart import parse_options_header
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import seq2seq
from seq2seq.data.language_id import other_language
from seq2seq.data.languages import primary_subtag
from seq2seq.inference.encoding import target_ids
from seq2seq.inference.parts import LINE_BREAKS
from seq2seq.inference.service.access import Access, check_key
from seq2seq.inference.service.batcher import Batcher, Entry
from seq2seq.inference.service.loaded_models import BatchTranslator, Models
from seq2seq.inference.service.messages import (
    CLOSE,
    LATER,
    ErrorAnswer,
    LibreRequest,
    Options,
    RefusedError,
    Text,
    TranslateAnswer,
    TranslateRequest,
    Translation,
    checked,
    chosen_options,
    parsed,
    status_of,
    texts_of,
)
from seq2seq.inference.service.metrics import Metrics
from seq2seq.inference.service.settings import ServiceSettings
from seq2seq.search.hypothesis import longest_target
from seq2seq.settings.values import shown

PATHS = ("/", "/translate", "/languages", "/detect", "/health", "/metrics", "/docs", "/openapi.json")
_MOST_FIELDS = 256  # of a form
_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")
# A body beyond the limit is still read, up to this many bytes: a client reads its answer only after it has sent all.
_DISCARDED = 1 << 24
# Seconds after the time limit in which a client must have read the events of a stream. The last of them says that the
# time has passed.
_LAST_SECONDS = 5.0
_HEADERS = ((b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store"))
_CLIENT_HAS_LEFT = 499  # only the metrics show it
_STATUSES = {
    400: "no JSON",
    401: "an API key is missing",
    403: "the API key is unknown, or a form comes from a page of another origin",
    408: "the request did not arrive in time",
    413: "too large",
    415: "neither application/json nor a form",
    421: "the service does not answer under this name",
    422: "a wrong field or value",
    429: "too many texts of one client wait",
    500: "no text could be translated",
    503: "too many requests are open, the queue is full, or the service is stopping",
    504: "not translated in time",
}


class Service:
    """Model, queue and limits behind the application.

    Attributes:
        open: Requests for a translation that have no answer yet.
    """

    def __init__(self, models: Models, access: Access, *, begin: Callable[[], None] = lambda: None) -> None:
        self.models = models
        self.access = access
        self.limits = limits = access.settings
        self.metrics = Metrics()
        self.batcher = Batcher(limits=limits, metrics=self.metrics, begin=begin)
        self.open = 0
        self.metrics.open.set_function(lambda: self.open)
        for name in models.by_name:
            self.metrics.model_texts.labels(name)
            self.metrics.model_bytes.labels(name).set_function(functools.partial(models.bytes_of, name))
            self.metrics.model_loaded.labels(name).set_function(functools.partial(models.loaded_at, name))

    @property
    def ready(self) -> bool:
        """True while new requests are accepted."""
        return self.batcher.thread.is_alive() and not self.batcher.closed

    async def translate(self, request: Request) -> Response | None:
        """Answer a request; None if the client has left.

        Raises:
            RefusedError: The request cannot be served.
        """
        limits = self.limits
        if not self.ready:
            raise RefusedError(503, "the service is stopping", CLOSE)
        if self.open > limits.max_requests:
            message = f"{limits.max_requests:,} requests are open, the maximum; try again later"
            raise RefusedError(503, message, LATER | CLOSE)
        given = await self.fields(request)
        form = LibreRequest if "q" in given and "text" not in given else TranslateRequest
        read = checked(form, given)
        # The model stays the same if it is loaded again meanwhile
        translator, languages = self.models.choose(read.model, read.source, read.target)
        asked = read.own(translator.settings, limits)
        texts = texts_of(asked, limits)
        options = chosen_options(asked, translator.settings, languages, limits)
        try:
            target_ids(translator.tokenizer, asked.suppress)
        except ValueError as error:
            raise RefusedError(422, f"suppress: {error}") from None
        if options.alignment and not translator.can_align:
            raise RefusedError(
                422, "alignment: this service translates with ONNX graphs, which align no words; leave it out"
            )
        if asked.stream:
            rows = [[*LINE_BREAKS.split(each.text), ""] for each in texts]
            places = [(i, gap) for i, row in enumerate(rows) for gap in row[1::2]]
            texts = [Text(line) for row in rows for line in row[::2]]
            most = limits.max_texts
            if len(texts) > most:
                raise RefusedError(413, f"{len(texts):,} lines are too many; stream at most {most:,} in a request")
            entries = self._submit(request, translator, texts, options)
            return _Events(self._events(request, entries, places), limits.timeout + _LAST_SECONDS)
        entries = self._submit(request, translator, texts, options)
        try:
            results = await _results(request, entries, limits.timeout)
        finally:
            # The time limit has passed, or the client has left; this does nothing for an answered request
            self.batcher.abandon(entries)
        if results is None:
            return None
        if all(result.error for result in results):
            raise RefusedError(status_of(results), f"the text could not be translated: {results[0].error}")
        return Response(read.answer(results, languages[0]), media_type="application/json")

    def _submit(
        self, request: Request, translator: BatchTranslator, texts: list[Text], options: Options
    ) -> list[Entry]:
        """Queue texts, which the caller abandons at the end."""
        client = request.client.host if request.client else ""
        now = time.monotonic()
        # A text of many pieces is translated in parts, to which alone the model's number of positions applies
        settings = dataclasses.replace(options.settings, max_len=None)
        pieces = translator.pieces([each.text for each in texts])
        most = self.limits.max_pieces
        if sum(pieces) > most:
            raise RefusedError(413, f"{sum(pieces):,} pieces are too many; send at most {most:,} in a request")
        beam = translator.beam(options)
        works = [beam * max(size, longest_target(size + 1, settings)) for size in pieces]
        entries = [
            Entry(text, options, client, now, size, work, translator, delay=translator.delay)
            for text, size, work in zip(texts, pieces, works, strict=True)
        ]
        self.batcher.submit(entries)
        self.metrics.characters.inc(sum(len(each.text) for each in texts))
        self.metrics.model_texts.labels(translator.name).inc(len(texts))
        return entries

    async def _events(
        self, request: Request, entries: list[Entry], places: list[tuple[int, str]]
    ) -> AsyncIterator[str]:
        """Yield a server-sent event for each entry, with its text's number and the white space after it."""
        try:
            for (index, after), entry in zip(places, entries, strict=True):
                found = await _results(request, [entry], self.limits.timeout)
                if found is None:
                    return
                event = {"index": index, "translation": found[0].model_dump(exclude_none=True), "after": after}
                yield f"data: {json.dumps(event)}\n\n"
            yield "event: done\ndata: {}\n\n"
        # The status has been sent
        except RefusedError as error:
            yield f"event: error\ndata: {json.dumps({'error': error.detail})}\n\n"
        finally:
            self.batcher.abandon(entries)

    async def fields(self, request: Request) -> dict[str, Any]:
        """Read the fields of a request, JSON or a form, and check its key.

        Raises:
            RefusedError: The body cannot be read, or the key is missing or wrong.
            ClientDisconnect: The client has left.
        """
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        is_form = kind in _FORMS or (not kind and "q" in request.query_params)
        if not is_form and kind != "application/json":
            remedy = "send application/json, or LibreTranslate's fields as a form"
            raise RefusedError(415, f"the Content-Type is '{kind[:60]}'; {remedy}")
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        has_header = scheme.lower() == "bearer"
        if has_header:
            check_key(self.access.keys, key.strip())
        body = await _body(request, self.limits)
        given = await _form(request, kind, body, self.access.origins) if is_form else parsed(body)
        field = given.pop("api_key", None)
        if not has_header:
            check_key(self.access.keys, field)
        return given

    def languages(self) -> list[dict[str, Any]]:
        """List the languages in LibreTranslate's form: each with the languages that it is translated to."""
        targets: dict[str, dict[str, None]] = {}
        for model in self.models.by_name.values():
            for code in [*model.sources, *model.languages]:
                targets.setdefault(code, {})
            for code in model.sources:
                targets[code].update(dict.fromkeys(model.languages))
        return [{"code": code, "name": language_name(code), "targets": [*own]} for code, own in targets.items()]

    def health(self) -> dict[str, Any]:
        """Describe the service: its state, defaults, limits and models; top-level languages are the first model's."""
        first, *_ = self.models.by_name.values()
        settings = first.settings
        limits = self.limits
        return {
            "status": "ok" if self.ready else "stopping",
            "version": seq2seq.__version__,
            **first.described(),
            "models": [{"name": name, **each.described()} for name, each in self.models.by_name.items()],
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


class _Events(StreamingResponse):
    """Stream of events that ends after some seconds, also if its client reads nothing."""

    def __init__(self, events: AsyncIterator[str], seconds: float) -> None:
        # nginx would hold events back
        super().__init__(events, headers={"x-accel-buffering": "no"}, media_type="text/event-stream")
        self.seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.seconds):
                await super().__call__(scope, receive, send)


def create_app(service: Service) -> ASGIApp:
    """Create the application of a service, whose batcher must have been started."""
    # FastAPI's own documentation pages load scripts from other hosts
    app = FastAPI(
        title="seq2seq", version=seq2seq.__version__, description=__doc__ or "", docs_url=None, redoc_url=None
    )
    page = _page((Path(__file__).parent / "page.html").read_text("utf-8"), style="")
    # Its first request asks for languages: read their model, which takes a second, while the visitor types
    page.background = BackgroundTask(other_language, "a", "en")
    description = get_swagger_ui_html(
        openapi_url="openapi.json",
        title="seq2seq",
        swagger_js_url="swagger/swagger-ui-bundle.js",
        swagger_css_url="swagger/swagger-ui.css",
        swagger_favicon_url="data:,",
    )
    # Swagger UI sets styles of single elements
    docs = _page(bytes(description.body).decode(), style="'self' 'unsafe-inline'", script="'self' ")
    app.mount("/swagger", StaticFiles(packages=[("fastapi_swagger", "resources")]))

    app.add_route("/", lambda request: page)
    app.add_route("/docs", lambda request: docs)

    @app.get("/languages", summary="Languages and their targets, as LibreTranslate lists them")
    async def show_languages() -> Response:
        # The first call imports the names
        return JSONResponse(await asyncio.to_thread(service.languages))

    own, libre = TranslateRequest.model_json_schema(), LibreRequest.model_json_schema()

    @app.post(
        "/detect",
        summary="The source languages of this service, as LibreTranslate's answer; it detects none",
        openapi_extra=_described(libre),
    )
    async def detect(request: Request) -> Response:
        await service.fields(request)
        codes = dict.fromkeys(code for model in service.models.by_name.values() for code in model.sources)
        return JSONResponse([{"confidence": round(100 / len(codes)), "language": code} for code in codes])

    @app.head("/health", include_in_schema=False)
    @app.get("/health", summary="State, languages and limits; 503 once the service is stopping")
    async def show_health() -> Response:
        return JSONResponse(service.health(), status_code=200 if service.ready else 503)

    @app.get("/metrics", summary="Measurements in Prometheus's text format")
    async def show_metrics() -> Response:
        return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    refusals: dict[int | str, dict[str, Any]] = {
        status: {"model": ErrorAnswer, "description": text} for status, text in _STATUSES.items()
    }

    @app.post(
        "/translate",
        summary="Translate one text or several",
        response_model=TranslateAnswer,
        responses=refusals,
        openapi_extra=_described(own, libre),
    )
    async def translate(request: Request) -> Response:
        return await service.translate(request) or Response(status_code=_CLIENT_HAS_LEFT)

    app.exception_handler(HTTPException)(_refused)
    app.exception_handler(ClientDisconnect)(lambda request, error: Response(status_code=_CLIENT_HAS_LEFT))
    failed = {"error": "the service failed; its log has more"}
    app.exception_handler(Exception)(lambda request, error: JSONResponse(failed, 500))
    return _guarded(app, service)


def _described(*schemas: dict[str, Any]) -> dict[str, Any]:
    """Describe the body of a request, which is JSON, or a form of the last schema."""
    content = {"application/json": {"schema": {"anyOf": schemas}}} | {kind: {"schema": schemas[-1]} for kind in _FORMS}
    return {"requestBody": {"required": True, "content": content}}


def _guarded(app: ASGIApp, service: Service) -> ASGIApp:
    """Wrap an application: count and time its requests, refuse other names, and add headers to every answer."""
    limits, metrics = service.limits, service.metrics
    if service.access.origins:
        allowed = ["Authorization", "Content-Type"]
        app = CORSMiddleware(
            app,
            allow_origins=service.access.origins,
            allow_methods=["GET", "POST"],
            allow_headers=allowed,
            max_age=86_400,
        )
    hosts = {"", "localhost", *map(_name_of, [limits.host, *service.access.names])}

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
            await send(message)

        host = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
        answer = app
        # The owner of any other name can let it point to this machine, and a page of that name could then read answers
        if not (hosts & {"*", name := _name_of(host)} or _is_address(name)):
            message = f"this service does not answer as '{shown(host)}'; start it with this name in --allowed-hosts"
            answer = JSONResponse({"error": message}, 421)
        # A streamed answer is open until its last event
        is_open = path == "/translate"
        service.open += is_open
        try:
            await answer(scope, receive, send_counted)
        finally:
            service.open -= is_open
            metrics.seconds.labels(path).observe(time.monotonic() - began)

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
    """Read a request's body; raise RefusedError if it is too large, or does not arrive in time."""
    message = f"the body has more than {limits.max_body:,} bytes, the maximum of a request"
    refusal = RefusedError(413, message, CLOSE)
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
        raise RefusedError(408, message, CLOSE) from None
    if size > limits.max_body:
        raise refusal
    return bytes(body)


async def _form(request: Request, kind: str, body: bytes, origins: list[str]) -> dict[str, Any]:
    """Parse a form and the URL's query; a field that is there several times becomes a list."""
    # For a form, other than for JSON, a browser asks no permission before
    origin = request.headers.get("origin", "")
    if origin and not {"*", origin} & {*origins} and urlsplit(origin).netloc != request.headers.get("host"):
        raise RefusedError(
            403, f"a page of '{shown(origin)}' may not send forms; start the service with this origin in --cors"
        )

    if body.lstrip()[:1] == b"{":
        raise RefusedError(415, f"the body looks like JSON, but its Content-Type is {kind}; send application/json")

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    pairs = request.query_params.multi_items()
    try:
        # Starlette would read other bytes as Latin-1
        text = body.decode()
        # At most 32,000 in a URL
        if len(pairs) > _MOST_FIELDS:
            raise ValueError
        if kind == "multipart/form-data":
            # Decoders of other charsets, which the client could choose, take seconds or return lone surrogates
            _, named = parse_options_header(request.headers["content-type"])
            if named.get(b"charset", b"utf-8").lower() not in (b"utf-8", b"us-ascii"):
                raise ValueError
            form = Request(request.scope, receive).form(max_files=0, max_fields=_MOST_FIELDS)
            pairs += [(name, str(value)) for name, value in (await form).multi_items()]
        else:
            # A body of escapes takes half a second, in which other requests must be answered
            how = {"keep_blank_values": True, "max_num_fields": _MOST_FIELDS, "errors": "strict"}
            pairs += await asyncio.to_thread(parse_qsl, text, **how)
    except (ValueError, HTTPException):
        message = f"the form cannot be read as UTF-8, or has over {_MOST_FIELDS} fields; send application/json"
        raise RefusedError(400, message) from None
    values = {name: [value for other, value in pairs if other == name] for name, _ in pairs}
    return {name: row[0] if len(row) == 1 else row for name, row in values.items()}


async def _results(request: Request, entries: list[Entry], seconds: float) -> list[Translation] | None:
    """Wait for results until `seconds` after their texts arrived; None if the client has left."""

    async def all_results() -> list[Translation]:
        return [await asyncio.wrap_future(entry.future) for entry in entries]

    # A task can be canceled without an error in the log, unlike the future that gather returns
    results = asyncio.ensure_future(all_results())
    # The only message after the body says that the client has closed the connection
    left = asyncio.ensure_future(request.receive())
    try:
        remaining = max(0, entries[0].arrived + seconds - time.monotonic())
        await asyncio.wait({results, left}, timeout=remaining, return_when=asyncio.FIRST_COMPLETED)
        if results.done():
            return results.result()
        if left.done():
            return None
    finally:
        left.cancel()
        results.cancel()
    raise RefusedError(504, f"not translated within {seconds:g} seconds; send less at once, or try again later", LATER)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    # Replace the messages of the router's own errors
    if error.status_code == 404:
        message = f"there is nothing at this path; the paths are {', '.join(PATHS)}"
    elif error.status_code == 405:
        message = f"this path takes {(error.headers or {}).get('Allow', 'another method')}, not {request.method}"
    else:
        message = str(error.detail)
    return JSONResponse({"error": message}, error.status_code, dict(error.headers or {}))


def _page(text: str, *, style: str, script: str = "") -> Response:
    """Return a page whose policy allows its own style and script, and no others but these sources."""

    def allowed(tag: str) -> str:
        """Return the hash of the element's content for a Content-Security-Policy."""
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, flags=re.DOTALL)
        return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"

    policy = (
        f"default-src 'none'; style-src {style or allowed('style')}; script-src {script}{allowed('script')}; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    headers = {"content-security-policy": policy, "referrer-policy": "no-referrer"}
    return Response(text, media_type="text/html", headers=headers)


def language_name(code: str) -> str:
    """Return the English name of a language; a code that is not in ISO 639 is its own name."""
    # A slow import
    import iso639

    first, *rest = re.split("[-_]", code)
    try:
        # Without the remarks on years and macrolanguages
        name = re.sub(r" \(.*\)", "", iso639.Language.match(primary_subtag(first)).name)
    except iso639.LanguageNotFoundError:
        return code
    return f"{name} ({'-'.join(rest)})" if rest else name
