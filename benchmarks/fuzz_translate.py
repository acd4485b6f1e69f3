"""Fuzz `python -m seq2seq.translate` with Hypothesis: any bytes, any compatible options.

    python -m benchmarks.fuzz_translate --ckpt runs/demo --minutes 60

Every example translates some lines within this process. The exit status must be 0, every line must have an output, in
order, and the output must be UTF-8 or JSON. The text of a line must not depend on the order of the lines. Prints one
line of JSON; exit status 1, with the smallest failing example, if anything is wrong.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis
from hypothesis import strategies as st

from benchmarks import harness
from benchmarks.nasty_lines import nasty_lines

# Examples that are drawn between two checks of the clock
ROUND = 25


class Example(NamedTuple):
    """Input lines, whether the last one has a line end, the seed of another line order, and options."""

    lines: list[bytes]
    ends: bool
    order: int
    options: list[str]


def some_lines() -> st.SearchStrategy[list[bytes]]:
    """Draw lines: arbitrary bytes, text, and malformed lines."""
    nasty = st.integers(0, 10**6).map(lambda seed: nasty_lines(1, seed, long_lines=0)[0])
    line = st.one_of(
        nasty, st.binary(max_size=80), st.text(max_size=60).map(lambda text: text.encode("utf-8", "ignore"))
    )
    return st.lists(line.map(lambda data: data.replace(b"\n", b" ")), min_size=1, max_size=8)


def some_options() -> st.SearchStrategy[list[str]]:
    """Draw compatible options: of beam search or of sampling, and of the output."""

    def option(name: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[str]]:
        return st.one_of(st.just([]), values.map(lambda value: [name, str(value)]))

    beams = st.integers(1, 6).flatmap(
        lambda beam: st.tuples(
            st.just(["--beam-size", str(beam)]),
            option("--n-best", st.integers(1, beam)),
            option("--length-penalty", st.sampled_from([0.0, 0.6, 1.0, 2.0])),
            option("--length-norm", st.sampled_from(["power", "gnmt"])),
            option("--no-repeat-ngram", st.integers(1, 4)),
        )
    )
    samples = st.tuples(
        option("--samples", st.integers(1, 4)).filter(bool),
        option("--temperature", st.sampled_from([0.3, 1.0, 3.0])),
        option("--top-k", st.sampled_from([1, 5, 100])),
        option("--top-p", st.sampled_from([0.1, 0.9])),
        option("--seed", st.integers(0, 9)),
    )
    common = st.tuples(
        option("--format", st.sampled_from(["text", "json", "tsv"])),
        option("--max-tokens", st.sampled_from([40, 200, 2000])),
        option("--max-len", st.integers(1, 40)),
        option("--min-len", st.integers(0, 6)),
    )
    parts = st.tuples(st.one_of(beams, samples), common)
    return parts.map(lambda both: [word for group in both for found in group for word in found])


def examples() -> st.SearchStrategy[Example]:
    """Draw whole examples."""
    return st.builds(Example, some_lines(), st.booleans(), st.integers(0, 99), some_options())


class Fuzz:
    """Checks of the command with one checkpoint, in a separate folder."""

    def __init__(self, ckpt: str, folder: Path) -> None:
        self.ckpt, self.folder = ckpt, folder
        self.count = 0

    def check(self, example: Example) -> None:
        """Raise AssertionError if an example breaks a promise of the command."""
        self.count += 1
        found = self.outputs(example.lines, example)
        order = random.Random(example.order).sample(range(len(example.lines)), len(example.lines))
        again = self.outputs([example.lines[i] for i in order], example)
        texts, others = [[texts_of(row, example.options) for row in rows] for rows in (found, again)]
        assert [texts[i] for i in order] == others, "another order of the lines gave other texts"

    def outputs(self, lines: list[bytes], example: Example) -> list[str]:
        """Translate lines, and return the output of each."""
        from seq2seq import translate

        source, sink = self.folder / "in", self.folder / "out"
        source.write_bytes(b"\n".join(lines) + (b"\n" if example.ends or not lines[-1] else b""))
        sink.unlink(missing_ok=True)
        command = ["--ckpt", self.ckpt, "--input", str(source), "--output", str(sink), "--device", "cpu"]
        told = io.StringIO()
        with contextlib.redirect_stderr(told):
            status = translate.main([*command, "--max-len-ratio", "1", "--max-len-extra", "4", *example.options])
        assert status == 0, f"exit status {status}: {told.getvalue()[-500:]}"
        rows = sink.read_bytes().decode("utf-8").split("\n")
        assert rows.pop() == "", "the last line does not end"
        if "json" in example.options:
            records = [json.loads(row) for row in rows]
            assert [record["line"] for record in records] == sorted(record["line"] for record in records)
        size = len(rows) // len(lines)
        assert size * len(lines) == len(rows) > 0, f"{len(rows)} lines came out for {len(lines)}"
        return ["\n".join(rows[start : start + size]) for start in range(0, len(rows), size)]


def texts_of(row: str, options: list[str]) -> list[str]:
    """Return the translations of one line, without scores and line number, which depend on the order."""
    rows = row.split("\n")
    if "json" in options:
        records = [json.loads(each) for each in rows]
        return [found["translation"] for record in records for found in (record, *record.get("alternatives", []))]
    # Several translations of a line are columns unless a format is named
    several = "--n-best" in options and options[options.index("--n-best") + 1] != "1"
    columns = "tsv" in options or (several and "--format" not in options)
    return [each.split("\t", 2)[2] for each in rows] if columns else rows


def main() -> int:
    """Draw examples until the time is over."""
    parser = harness.parser_for("fuzz_translate", __doc__)
    parser.add_argument("--ckpt", required=True)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    settings = hypothesis.settings(
        max_examples=ROUND, deadline=None, database=None, suppress_health_check=list(hypothesis.HealthCheck)
    )
    began, seed = time.monotonic(), options.seed
    with tempfile.TemporaryDirectory() as folder:
        fuzz = Fuzz(options.ckpt, Path(folder))
        while time.monotonic() - began < options.minutes * 60:
            hypothesis.seed(seed)(settings(hypothesis.given(examples())(fuzz.check)))()
            seed += 1
    result = {
        "examples": fuzz.count,
        "seeds": seed - options.seed,
        "minutes": round((time.monotonic() - began) / 60, 1),
    }
    print(json.dumps(result))
    harness.write(options.out, "fuzz_translate", {"machine": harness.machine(), **result})
    return 0


if __name__ == "__main__":
    sys.exit(main())
