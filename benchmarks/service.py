"""Measure a translation service: texts a second of concurrent clients, against one request at a time.

Starts `python -m seq2seq.serve` and sends it single sentences over open connections. Concurrent and sequential rounds
alternate, so that both see the same machine. Every answer is compared with the first answer for the same sentence; a
missing, late or different answer is an error (exit status 1).
"""

from __future__ import annotations

import http.client
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

from benchmarks import harness
from seq2seq.system.resources import data_dir


class Client:
    """Client with one connection and sequential requests."""

    def __init__(self, address: SplitResult) -> None:
        assert address.hostname
        self.connection = http.client.HTTPConnection(address.hostname, address.port, timeout=600)

    def translate(self, texts: Sequence[str]) -> list[tuple[str, str, float]]:
        """Translate texts in separate requests; return text, translation and seconds of each."""
        answers = []
        # The service closes idle connections; closing ours makes the next request reopen it
        self.connection.close()
        for text in texts:
            began = time.perf_counter()
            body = json.dumps({"text": text})
            self.connection.request("POST", "/translate", body, {"Content-Type": "application/json"})
            with self.connection.getresponse() as response:
                answer = json.loads(response.read())
            if response.status != 200:
                raise RuntimeError(f"status {response.status}: {answer}")
            answers.append((text, answer["translations"][0]["text"], time.perf_counter() - began))
        return answers


def address_of(service: subprocess.Popen[bytes]) -> SplitResult:
    """Return the address in the first line of a service; exit with that line if it did not start."""
    assert service.stderr
    line = service.stderr.readline().decode()
    found = re.search(r"http://\S+", line)
    if not found:
        service.wait()
        raise SystemExit(f"the service did not start: {line}")
    return urlsplit(found[0])


def sentences(count: int) -> list[str]:
    """Return source sentences of the embedded corpus, repeated if it has fewer."""
    lines = (data_dir() / "phrasebook/test.jsonl").read_text("utf-8").splitlines()
    texts = [json.loads(line)["translation"]["de"] for line in lines]
    return [texts[i % len(texts)] for i in range(count)]


def measure(pool: ThreadPoolExecutor, clients: Sequence[Client], texts: Sequence[str]) -> dict[str, Any]:
    """Share the texts among the clients, and return the rate, the latencies and the translations."""
    began = time.perf_counter()
    shares = [texts[i :: len(clients)] for i in range(len(clients))]
    answers = [each for done in pool.map(Client.translate, clients, shares) for each in done]
    seconds = time.perf_counter() - began
    delays = sorted(delay for _, _, delay in answers)
    return {
        "rate": len(texts) / seconds,
        "median": statistics.median(delays),
        "p95": delays[int(0.95 * (len(delays) - 1))],
        "translations": [(text, translation) for text, translation, _ in answers],
    }


def compare(address: SplitResult, *, clients: int, texts: int, alone: int, rounds: int) -> dict[str, Any]:
    """Alternate sequential and concurrent rounds; return the medians and the number of wrong answers."""
    crowd = [Client(address) for _ in range(clients)]
    both: dict[str, list[dict[str, Any]]] = {"one at a time": [], "concurrent": []}
    expected: dict[str, str] = {}
    wrong = 0
    with ThreadPoolExecutor(clients) as pool:
        measure(pool, crowd[:1], sentences(4))  # warm up
        for _ in range(rounds):
            for way, some, count in (("one at a time", crowd[:1], alone), ("concurrent", crowd, texts)):
                found = measure(pool, some, sentences(count))
                translations = found.pop("translations")
                wrong += count - len(translations)
                wrong += sum(expected.setdefault(text, answer) != answer for text, answer in translations)
                both[way].append(found)
    middle = {
        way: {name: statistics.median(each[name] for each in found) for name in found[0]} for way, found in both.items()
    }
    ratios = [many["rate"] / one["rate"] for one, many in zip(both["one at a time"], both["concurrent"], strict=True)]
    return {**middle, "ratio": statistics.median(ratios), "ratios": ratios, "wrong": wrong}


def table(result: dict[str, Any], clients: int) -> str:
    """Format the result as a table."""
    rows = [
        f"| {way} | {each['rate']:.1f} | {1000 * each['median']:.0f} | {1000 * each['p95']:.0f} |"
        for way, each in (
            ("one request at a time", result["one at a time"]),
            (f"{clients} clients", result["concurrent"]),
        )
    ]
    head = ["| requests of one sentence | texts/s | median ms | 95% ms |", "|---|--:|--:|--:|"]
    return "\n".join([*head, *rows, "", f"ratio {result['ratio']:.2f}, wrong or missing answers {result['wrong']}"])


def main() -> int:
    """Run the benchmark and return its exit status."""
    parser = harness.parser_for("service", __doc__)
    parser.add_argument("--ckpt", required=True, help="checkpoint that translates from German")
    parser.add_argument("--clients", type=int, default=64, help="concurrent clients (64)")
    parser.add_argument("--texts", type=int, default=1024, help="sentences of a concurrent round (1024)")
    parser.add_argument("--alone", type=int, default=128, help="sentences of a round of one at a time (128)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each (3)")
    parser.add_argument("rest", nargs="*", metavar="OPTION", help="options of seq2seq.serve, after --")
    options = parser.parse_args()
    command = [sys.executable, "-m", "seq2seq.serve", "--ckpt", options.ckpt, "--port", "0", *options.rest]
    # All clients share one address, which may fill the queue
    command += ["--client-texts", "100000", "--timeout", "600"]
    root = Path(__file__).resolve().parent.parent
    with subprocess.Popen(command, stderr=subprocess.PIPE, cwd=root) as service:
        address = address_of(service)
        try:
            result = compare(
                address,
                clients=options.clients,
                texts=options.texts,
                alone=options.alone,
                rounds=options.rounds,
            )
        finally:
            service.terminate()
    text = table(result, options.clients)
    print(text)
    harness.write(options.out, "service", {**result, "command": command[1:], **harness.machine()}, text)
    return 1 if result["wrong"] or service.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
