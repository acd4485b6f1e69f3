"""Run a service until a signal stops it; accepted requests are answered, new ones are refused."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from seq2seq.inference.service.app import Service, create_app
from seq2seq.inference.service.settings import ServiceSettings

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# Most seconds to send finished answers, and to wait for the end of the thread.
_LAST_SECONDS = 5


def bound_socket(limits: ServiceSettings) -> socket.socket:
    """Bind the service's address, without listening on it yet.

    Raises:
        ValueError: The address cannot be used.
    """
    try:
        found = socket.getaddrinfo(limits.host, limits.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        bound = socket.socket(family, kind, protocol)
        # A restart must not wait until the connections of the last run time out
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        where = f"{limits.host} port {limits.port}"
        raise ValueError(f"cannot listen on {where} ({reason}); choose another --host or --port") from None
    return bound


def url_of(bound: socket.socket) -> str:
    """Return the URL of a bound socket."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Connection(H11Protocol):
    """Connection that is closed if it has no whole request for too long, or if a newer one needs its place."""

    @property
    def is_idle(self) -> bool:
        """True while no request is answered."""
        return not self.transport.is_closing() and (self.cycle is None or self.cycle.response_complete)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a place among the connections, at worst from the one that has been idle longest."""
        super().connection_made(transport)
        self._wait()
        if len(self.connections) > self.config.backlog:
            others: Any = self.connections
            idle = (each for each in others if each.is_idle)
            min(idle, key=lambda each: each.idle_since, default=self).transport.abort()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._wait()
        super().on_response_complete()

    def _wait(self) -> None:
        self.idle_since = self.loop.time()
        self.loop.call_later(self.timeout_keep_alive, self._expire, self.idle_since)

    def _expire(self, since: float) -> None:
        if self.is_idle and since == self.idle_since:
            self.transport.close()


def _places(limits: ServiceSettings) -> int:
    """Return how many connections fit into the process's limit of open files, which is raised if it can be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Files of the process itself; as many connections again may be accepted before the oldest are closed
    own = 32
    wanted = 2 * limits.max_connections + own
    if 0 <= soft < wanted:
        soft = wanted if hard < 0 else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return limits.max_connections if soft < 0 else max(1, min(limits.max_connections, (soft - own) // 2))


async def run(
    service: Service, bound: socket.socket, *, ready: Callable[[], None], reload: Callable[[], None] = lambda: None
) -> int:
    """Serve until a signal arrives, and return the exit status.

    After the first signal new requests are refused, and accepted requests are answered for at most `grace` seconds. A
    second signal ends the service at once.

    Args:
        ready: Called once connections are accepted.
        reload: Loads the model again; called by another thread after the signal SIGUSR1.

    Returns:
        0 if all accepted requests were answered, 1 if not, 128 + the signal's number after a second signal.
    """
    # After each operation of torch the thread that translates asks for the interpreter, for which it would wait 5 ms
    # whenever the event loop is busy
    sys.setswitchinterval(0.0005)
    service.batcher.thread.start()
    limits = service.limits
    server = uvicorn.Server(
        uvicorn.Config(
            create_app(service),
            http=_Connection,
            # Also how many connections are accepted at once
            backlog=_places(limits),
            timeout_keep_alive=limits.idle_timeout,  # type: ignore[arg-type]
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",
            access_log=False,
            server_header=False,
            # By default uvicorn would believe these headers from any client on this machine
            proxy_headers=bool(service.access.proxies),
            forwarded_allow_ips=service.access.proxies,
            timeout_graceful_shutdown=_LAST_SECONDS,
        )
    )
    # Leave signals to the handlers below
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign]
    asked = asyncio.Event()
    signals: list[int] = []

    def on_signal(number: int) -> None:
        signals.append(number)
        asked.set()
        if len(signals) > 1:
            service.batcher.abort()
            server.force_exit = True

    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        # SIGHUP stays ignored under nohup
        if signal.getsignal(number) != signal.SIG_IGN:
            loop.add_signal_handler(number, on_signal, number)

    def on_reload() -> None:
        if not asked.is_set():
            threading.Thread(target=reload, name="reload", daemon=True).start()

    loop.add_signal_handler(signal.SIGUSR1, on_reload)
    serving = asyncio.create_task(server.serve(sockets=[bound]))
    while not server.started and not serving.done():
        await asyncio.sleep(0.01)
    ready()
    await asyncio.wait({serving, asyncio.create_task(asked.wait())}, return_when=asyncio.FIRST_COMPLETED)
    # Refuse new requests, and wait for the answers to accepted ones
    service.batcher.close()
    until = loop.time() + limits.grace
    while service.open and loop.time() < until and len(signals) < 2:
        await asyncio.sleep(0.02)
    whole = not service.open
    if not whole:
        service.batcher.abort()
    server.should_exit = True
    await serving
    service.batcher.thread.join(_LAST_SECONDS if whole and len(signals) < 2 else 0)
    if len(signals) > 1:
        return 128 + signals[1]
    return 0 if whole else 1
