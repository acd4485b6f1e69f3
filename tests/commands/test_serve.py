"""Test the serve command: its options, real connections, and its end by signals."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlencode, urlsplit
from urllib.request import urlopen

import pytest
import tiny
from conftest import PATIENCE

from seq2seq import checkpoint, serve
from seq2seq.inference.service.server import bound_socket, url_of
from seq2seq.inference.service.settings import ServiceSettings
from seq2seq.inference.translator import Translator
from seq2seq.settings.declare import keys
from seq2seq.settings.search import SearchSettings

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--port", "65536"], "'65536' is not a whole number from 0 to 65,535"),
        (["--timeout", "nan"], "'nan' is not a number above 0 and at most 86,400"),
        (["--memory", "0"], "argument --memory: '0' is not a number above 0"),
        (["--timeout", "0"], "argument --timeout: '0' is not a number above 0"),
        (["--max-body", "1"], "'1' is not a whole number from 1024"),
        (["--host", ""], "argument --host: the name is empty"),
        (["--workers", "4"], "there is no --workers"),
    ],
)
def test_wrong_options(capsys, options, message):
    with pytest.raises(SystemExit) as stopped:
        serve.main(["--ckpt", "none.safetensors", *options])
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_what_is_refused_before_the_model_is_loaded(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for options, message in [
            (["--port", str(port)], f"cannot listen on 127.0.0.1 port {port} (Address already in use)"),
            (["--host", "a..b"], "cannot listen on a..b port 8000"),
            (["--host", "203.0.113.1"], "cannot listen on 203.0.113.1 port 8000"),
            (["--api-key-file", "none.txt"], "--api-key-file none.txt: cannot be read"),
            (["--proxy", "proxy"], "--proxy proxy: is not an address"),
            (["--port", "0"], "none.safetensors: no such file"),
        ]:
            assert serve.main(["--ckpt", "none.safetensors", *options]) == 2
            error = capsys.readouterr().err
            assert message in error
            assert error.count("\n") == 1


def test_the_help_has_every_setting(capsys):
    with pytest.raises(SystemExit) as stopped:
        serve.main(["--help"])
    assert not stopped.value.code
    shown = capsys.readouterr().out
    for name in keys(ServiceSettings):
        assert f"--{name.replace('_', '-')} " in shown


def test_addresses():
    assert ServiceSettings().host == "127.0.0.1"
    with bound_socket(ServiceSettings(port=0)) as bound:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", url_of(bound))
    if socket.has_ipv6:
        with bound_socket(ServiceSettings(host="::1", port=0)) as bound:
            assert re.fullmatch(r"http://\[::1\]:\d+", url_of(bound))


# Processes and real connections. Each takes some seconds to start.

# A service around the stub of tests/service_client.py, which takes 0.02 seconds for each batch.
STUBBED = """
import asyncio, sys, time
sys.path.insert(0, "tests")
import service_client
from seq2seq.inference.service.settings import ServiceSettings
from seq2seq.inference.service import server
from seq2seq.inference.service.access import Access
from seq2seq.inference.service.app import Service
from seq2seq.inference.service.loaded_models import Models

class Slow(service_client.Stub):
    def translate(self, lines, **rest):
        time.sleep(float(sys.argv[1]))
        return super().translate(lines, **rest)

limits = ServiceSettings(port=0, **dict((k, float(v)) for k, v in (word.split("=") for word in sys.argv[2:])))
with server.bound_socket(limits) as bound:
    ready = lambda: print("on", server.url_of(bound), file=sys.stderr, flush=True)
    sys.exit(asyncio.run(server.run(Service(Models({"slow": Slow}), Access(limits)), bound, ready=ready)))
"""


class Running:
    """A service in a process of its own."""

    def __init__(self, *command: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *command],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        assert self.process.stderr
        line = self.process.stderr.readline()
        found = re.search(r"http://\S+", line)
        assert found, line + self.process.stderr.read()
        self.address = urlsplit(found[0])

    def connect(self) -> http.client.HTTPConnection:
        """Open a connection."""
        assert self.address.hostname
        return http.client.HTTPConnection(self.address.hostname, self.address.port, timeout=PATIENCE)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Stop the service and return its exit status."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stderr:
            self.process.stderr.close()


def post(connection: http.client.HTTPConnection, body: dict) -> tuple[int, dict]:
    connection.request("POST", "/translate", json.dumps(body), {"Content-Type": "application/json"})
    with connection.getresponse() as response:
        return response.status, json.loads(response.read())


def stubbed(text: str, beam: int = 3) -> str:
    """The stub's best translation."""
    return f"{text[::-1]}/0/{beam}/"


@pytest.mark.slow
def test_a_model_over_a_connection(tmp_path):
    path = tiny.save(tmp_path)
    texts = tiny.sentences(tiny.GERMAN, 5)
    expected = Translator.load(path, settings=SearchSettings(beam_size=2), device="cpu").texts(texts)
    options = ["--port", "0", "--beam-size", "2", "--threads", "1", "--max-body", "4096"]
    with Running("-m", "seq2seq.serve", "--ckpt", str(path), *options) as service:
        connection = service.connect()
        status, answer = post(connection, {"text": texts})
        assert (status, [each["text"] for each in answer["translations"]]) == (200, expected)
        # The connection stays open after a refusal, and a body that is too large is answered
        assert post(connection, {"text": 1})[0] == 422
        assert post(connection, {"text": texts[0]})[0] == 200
        assert post(service.connect(), {"text": "x" * 5_000_000})[0] == 413
        # As libretranslatepy sends it
        form = urlencode({"q": texts[0], "source": "de", "target": "en"}).encode()
        with urlopen(f"{service.address.geturl()}/translate", form) as response:
            assert json.load(response) == {"translatedText": expected[0]}
        connection.request("GET", "/")
        assert b"<!doctype html>" in connection.getresponse().read()
        assert service.end() == 0


@pytest.mark.slow
def test_connections_without_a_request_make_room_and_are_closed():
    def idle() -> socket.socket:
        held = socket.create_connection((service.address.hostname, service.address.port), timeout=PATIENCE)
        held.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nA: ")
        return held

    def is_closed(held: socket.socket) -> bool:
        try:
            return held.recv(1) == b""
        # Closed with unread data
        except ConnectionResetError:
            return True

    with Running("-c", STUBBED, "0", "max_connections=4", "idle_timeout=300") as service:
        held = [idle() for _ in range(4)]
        kept = service.connect()
        assert post(kept, {"text": "ab"})[0] == 200
        # The oldest has made room
        assert is_closed(held[0])
        held.append(idle())
        assert is_closed(held[1])
        assert post(service.connect(), {"text": "ab"})[0] == 200
        for each in held:
            each.close()
        assert service.end() == 0
        assert service.process.stderr
        assert service.process.stderr.read() == ""
    with Running("-c", STUBBED, "0", "idle_timeout=0.5") as service:
        with idle() as slow:
            slow.sendall(b"b")
            assert is_closed(slow)
        assert service.end() == 0
        assert service.process.stderr
        assert service.process.stderr.read() == ""


@pytest.mark.slow
def test_a_model_is_loaded_again_and_no_request_is_lost(tmp_path):
    path = tmp_path / "model.safetensors"
    texts = tiny.sentences(tiny.GERMAN, 3)
    expected = []
    for seed in (1, 0):
        checkpoint.save(path, tiny.payload(seed))
        expected.insert(0, Translator.load(path, device="cpu").texts(texts))
    new = tiny.payload(1)

    def client() -> list[list[str]]:
        connection = service.connect()
        found = []
        while not found or found[-1] != expected[1]:
            status, answer = post(connection, {"text": texts})
            assert status == 200
            found.append([each["text"] for each in answer["translations"]])
        return found

    with Running("-m", "seq2seq.serve", "--ckpt", str(path), "--port", "0") as service, ThreadPoolExecutor(4) as pool:
        assert service.process.stderr
        clients = [pool.submit(client) for _ in range(4)]
        # A file that is no model leaves the old one in use
        for damage in (True, False):
            checkpoint.save(path, new)
            if damage:
                os.truncate(path, 1000)
            service.process.send_signal(signal.SIGUSR1)
            assert service.process.stderr.readline().startswith("error: " if damage else "translating")
        for each in clients:
            *before, last = each.result(PATIENCE)
            assert before
            assert all(found == expected[0] for found in before)
            assert last == expected[1]
        assert service.end() == 0


@pytest.mark.slow
def test_models_take_turns_in_memory(tmp_path):
    texts = tiny.sentences(tiny.GERMAN, 3)
    expected = {}
    for seed, name in enumerate("ab"):
        path = tmp_path / f"{name}.safetensors"
        checkpoint.save(path, tiny.payload(seed))
        expected[name] = Translator.load(path, device="cpu").texts(texts)
    assert expected["a"] != expected["b"]
    paths = [str(tmp_path / "a.safetensors"), f"second={tmp_path / 'b.safetensors'}"]
    with Running("-m", "seq2seq.serve", "--ckpt", *paths, "--port", "0", "--memory", "1e-6") as service:
        assert service.process.stderr
        for again in range(2):
            for model, name in (("a", "a"), ("second", "b")) * 2:
                status, answer = post(service.connect(), {"text": texts, "model": model})
                assert (status, [each["text"] for each in answer["translations"]]) == (200, expected[name])
            if not again:
                service.process.send_signal(signal.SIGUSR1)
                assert service.process.stderr.readline().startswith("translating")
        assert service.end() == 0


@pytest.mark.slow
def test_64_clients_lose_and_mix_up_nothing():
    def client(number: int) -> list[str]:
        connection = service.connect()
        wrong = []
        for i in range(20):
            beam = 3 + number % 3
            texts = [f"client {number} request {i} text {j}" for j in range(1 + (number + i) % 4)]
            status, answer = post(connection, {"text": texts, "beam_size": beam})
            found = [each["text"] for each in answer.get("translations", [])]
            if status != 200 or found != [stubbed(text, beam) for text in texts]:
                wrong.append(f"{status} {answer}")
        return wrong

    with Running("-c", STUBBED, "0.02") as service, ThreadPoolExecutor(64) as pool:
        assert not [wrong for all_wrong in pool.map(client, range(64)) for wrong in all_wrong]
        connection = service.connect()
        connection.request("GET", "/metrics")
        measured = connection.getresponse().read().decode()
        assert re.search(r'seq2seq_http_requests_total\{path="/translate",status="200"\} 1280\.0', measured)
        (batches,) = re.findall(r"seq2seq_batch_texts_count (\S+)", measured)
        (texts,) = re.findall(r"seq2seq_batch_texts_sum (\S+)", measured)
        # Dynamic batching: texts of several clients share a batch
        assert float(texts) == sum(1 + (n + i) % 4 for n in range(64) for i in range(20))
        assert float(texts) / float(batches) > 4
        assert service.end() == 0


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_under_load(number):
    """Every request gets its right answer or is refused: with 503, or because the port is closed."""
    seen: Counter[str] = Counter()
    stop = threading.Event()

    def client(number: int) -> None:
        i = 0
        while not stop.is_set():
            i += 1
            text = f"client {number} request {i}"
            connection = service.connect()
            try:
                connection.connect()
            except OSError:
                seen["no connection"] += 1
                return
            try:
                status, answer = post(connection, {"text": text})
            # The listener was closed with this connection in its queue: nothing was accepted
            except (ConnectionError, http.client.HTTPException):
                seen["closed"] += 1
                return
            finally:
                connection.close()
            if status == 200:
                assert answer["translations"][0]["text"] == stubbed(text)
            else:
                assert (status, answer) == (503, {"error": "the service is stopping"})
            seen[str(status)] += 1

    with Running("-c", STUBBED, "0.05") as service:
        with ThreadPoolExecutor(16) as pool:
            clients = [pool.submit(client, n) for n in range(16)]
            while seen["200"] < 50:
                time.sleep(0.01)
                assert not any(each.done() for each in clients)
            assert service.end(number) == 0
            stop.set()
            for each in clients:
                each.result()
        assert seen["200"] >= 50
        assert seen["503"] + seen["no connection"] + seen["closed"] > 0


@pytest.mark.slow
def test_what_is_being_translated_is_answered_and_a_second_signal_hurries():
    for signals, grace, expected, answered in (
        ((signal.SIGTERM,), 30, 0, 200),
        ((signal.SIGTERM,), 0.2, 1, 503),
        ((signal.SIGTERM, signal.SIGINT), 30, 128 + signal.SIGINT, 503),
    ):
        with Running("-c", STUBBED, "2", f"grace={grace}") as service, ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(post, service.connect(), {"text": "abc"})
            time.sleep(1)
            for number in signals:
                service.process.send_signal(number)
                time.sleep(0.3)
            assert waiting.result()[0] == answered
            assert service.process.wait(PATIENCE) == expected
