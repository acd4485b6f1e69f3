"""Measure how long a client of a translation service waits while other clients attack the service.

Starts `python -m seq2seq.serve`. A client sends 50 sentences, one at a time and each over a new connection, first alone
and then during each attack. All clients have the same address, so that no limit per address protects the first one.

- pieces: texts of characters without a piece, which have three pieces or more each; half of the senders leave early
- connections: more connections than the service has descriptors, whose headers never end
- bodies: bodies of a megabyte of wrong values
- mixtures of these, drawn by the seed

A failed request of the first client counts as a wait without end. The floor: the 95th percentile of its seconds is at
most 2 s above the percentile alone (exit status 1 otherwise).
"""

from __future__ import annotations

import functools
import http.client
import itertools
import json
import multiprocessing
import random
import resource
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult

from benchmarks import harness
from benchmarks.service import address_of, sentences

FLOOR = 2.0  # seconds
TEXTS = 50
PATIENCE = 120.0  # seconds after which a client sends no further sentence
JSON = {"Content-Type": "application/json"}
# The texts of most pieces that the default limits allow, and shorter ones
MANY = ("\U0001f600" * 2000, "\u4e00" * 2500, "\u0300" * 4000, "\U0001f600" * 4000, "\u0300" * 9000)
# Bodies of 1 MB and, within the default --max-body, of 250 KB
BODIES = [
    body
    for size in (1, 4)
    for body in (
        '{"text":[' + "1," * (500_000 // size) + "1]}",
        '{"text":[' + '"",' * (340_000 // size) + '""]}',
        '{"text":"a","phrases":[' + "null," * (190_000 // size) + "null]}",
        "{" + "".join(f'"{number}":1,' for number in range(90_000 // size)) + '"text":"a"}',
        '{"text":"a","suppress":["' + "x" * (900_000 // size) + '"]}',
    )
]
Attack = Callable[[SplitResult, random.Random], None]


def post(address: SplitResult, body: str, *, seconds: float = 100.0) -> tuple[int, bytes]:
    """Send a body over a connection of its own; return the status and the answer."""
    assert address.hostname
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=seconds)
    try:
        connection.request("POST", "/translate", body, JSON)
        with connection.getresponse() as response:
            return response.status, response.read()
    finally:
        connection.close()


def send_pieces(address: SplitResult, random: random.Random) -> None:
    """Send texts of many pieces."""
    while True:
        body = json.dumps({"text": random.choice(MANY)})
        try:
            post(address, body, seconds=random.choice((0.3, 100.0)))
        except (OSError, http.client.HTTPException):
            time.sleep(0.05)


def send_bodies(address: SplitResult, random: random.Random) -> None:
    """Send bodies of wrong values."""
    while True:
        try:
            post(address, random.choice(BODIES))
        except (OSError, http.client.HTTPException):
            time.sleep(0.05)


def hold_connections(address: SplitResult, random: random.Random) -> None:
    """Keep 40 connections open with headers that never end, and replace lost ones."""
    held: list[socket.socket] = []
    while True:
        try:
            held.append(socket.create_connection((address.hostname, address.port), timeout=1))
            held[-1].sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nA: ")
        except OSError:
            time.sleep(0.05)
        if len(held) >= 40:
            held.pop(random.randrange(40)).close()
            time.sleep(0.02)


ATTACKS: dict[str, Attack] = {"pieces": send_pieces, "connections": hold_connections, "bodies": send_bodies}


def waits(address: SplitResult, expected: dict[str, bytes]) -> list[float]:
    """Translate sentences one by one and return the seconds of each; infinity for a failed or wrong answer."""
    found = []
    start = time.perf_counter()
    for text in sentences(TEXTS):
        if time.perf_counter() > start + PATIENCE:
            break
        began = time.perf_counter()
        try:
            status, answer = post(address, json.dumps({"text": text}))
            right = status == 200 and expected.setdefault(text, answer) == answer
        except (OSError, http.client.HTTPException):
            right = False
        found.append(time.perf_counter() - began if right else float("inf"))
    return sorted(found)


def attacked(address: SplitResult, senders: dict[str, int], expected: dict[str, bytes], seed: int) -> list[float]:
    """Return the seconds of each sentence during an attack by so many senders of each kind."""
    # A process of their own: the senders must not delay the client
    process = multiprocessing.Process(target=attack, args=(address, senders, seed))
    process.start()
    time.sleep(2)
    try:
        return waits(address, expected)
    finally:
        process.kill()
        process.join()


def attack(address: SplitResult, senders: dict[str, int], seed: int) -> None:
    """Run so many senders of each kind, until the process is killed."""
    for kind, count in senders.items():
        for number in range(count):
            threading.Thread(target=ATTACKS[kind], args=(address, random.Random(seed + number))).start()


def main() -> int:
    """Run the benchmark and return its exit status."""
    parser = harness.parser_for("service_attacks", __doc__)
    parser.add_argument("--ckpt", required=True, help="checkpoint that translates from German")
    parser.add_argument("--mixtures", type=int, default=10, help="random mixtures of the attacks (10)")
    parser.add_argument("--descriptors", type=int, default=256, help="open files that the service may have (256)")
    parser.add_argument("--seed", type=int, default=1, help="draws the mixtures (1)")
    parser.add_argument("rest", nargs="*", metavar="OPTION", help="options of seq2seq.serve, after --")
    options = parser.parse_args()
    drawn = random.Random(options.seed)
    plans = {"pieces": {"pieces": 8}, "connections": {"connections": 8}, "bodies": {"bodies": 4}}
    for number in range(1, options.mixtures + 1):
        plans[f"mixture {number}"] = {kind: drawn.randint(0, 6) for kind in ATTACKS}
    command = [sys.executable, "-m", "seq2seq.serve", "--ckpt", options.ckpt, "--port", "0", *options.rest]
    limit = functools.partial(resource.setrlimit, resource.RLIMIT_NOFILE, (options.descriptors, options.descriptors))
    root = Path(__file__).resolve().parent.parent
    rows: list[dict[str, Any]] = []
    for name, senders in {"alone": {}, **plans}.items():
        # A service of its own for each attack: what one leaves behind must not count for the next
        with subprocess.Popen(command, stderr=subprocess.PIPE, cwd=root, preexec_fn=limit) as service:
            address = address_of(service)
            log = threading.Thread(target=functools.partial(_count, service.stderr, log_bytes := [0]))
            log.start()
            expected: dict[str, bytes] = {}
            before = waits(address, expected)
            seconds = attacked(address, senders, expected, options.seed) if senders else before
            service.kill()
            log.join()
        row = {
            "attack": name,
            "senders": senders,
            "alone": _p95(before),
            "median": statistics.median(seconds),
            "p95": _p95(seconds),
            "failed": sum(each == float("inf") for each in seconds),
            "log_bytes": log_bytes[0],
        }
        rows.append(row)
        print(row, flush=True)
    text = table(rows)
    print(text)
    harness.write(options.out, "service_attacks", {"rows": rows, "command": command[1:], **harness.machine()}, text)
    return int(any(row["p95"] > row["alone"] + FLOOR for row in rows))


def _p95(seconds: list[float]) -> float:
    return seconds[int(0.95 * (len(seconds) - 1))]


def _count(stream: Any, total: list[int]) -> None:
    for chunk in iter(lambda: stream.read1(1 << 16), b""):
        total[0] += len(chunk)


def table(rows: list[dict[str, Any]]) -> str:
    """Format the result as a table."""
    head = [
        "| attack | senders | alone, 95% s | median s | 95% s | failed | log, bytes |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    lines = [
        f"| {row['attack']} | {', '.join(f'{kind} {count}' for kind, count in row['senders'].items())} "
        f"| {row['alone']:.2f} | {row['median']:.2f} | {row['p95']:.2f} | {row['failed']} | {row['log_bytes']:,} |"
        for row in rows
    ]
    return "\n".join(itertools.chain(head, lines))


if __name__ == "__main__":
    sys.exit(main())
