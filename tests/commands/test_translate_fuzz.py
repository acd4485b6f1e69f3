"""Fuzz `translate` with Hypothesis: any bytes, any compatible options; a command that violates its rules is found.

The exit status must be 0, every line must have an output, in order, and the output must be UTF-8 or JSON. The text of a
line must not depend on the order of the lines.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import re
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis
import pytest
import tiny
from conftest import SEED
from hypothesis import strategies as st

from benchmarks.nasty_lines import nasty_lines
from seq2seq import translate
from seq2seq.data import text_files
from seq2seq.system.files import COMPRESSIONS

# `make rest` draws examples, and so does `make fuzz`, by seeds of its own
EXHAUSTIVE = set() if SEED else {"test_examples"}
LINES = [b"der Hund", b"\xff\xfe", b"", b"die Katze schl\xc3\xa4ft"]


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
    # Hypothesis draws constants of the program, too; a first line such as PAR1 is refused as a binary file
    binary = re.compile(b"|".join([*COMPRESSIONS.values(), *text_files._OTHERS.values()]), re.DOTALL)
    line = line.map(lambda data: data.replace(b"\n", b" ")).filter(lambda data: not binary.match(data))
    return st.lists(line, min_size=1, max_size=8)


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
        option("--max-len", st.integers(2, 40)),
        option("--min-len", st.integers(0, 6)),
    )
    parts = st.tuples(st.one_of(beams, samples), common)
    return parts.map(lambda both: [word for group in both for found in group for word in found])


def examples() -> st.SearchStrategy[Example]:
    """Draw whole examples."""
    return st.builds(Example, some_lines(), st.booleans(), st.integers(0, 99), some_options())


def check(ckpt: str, folder: Path, example: Example) -> None:
    """Raise AssertionError if an example breaks a promise of the command."""
    found = outputs(ckpt, folder, example.lines, example)
    order = random.Random(example.order).sample(range(len(example.lines)), len(example.lines))
    again = outputs(ckpt, folder, [example.lines[i] for i in order], example)
    texts, others = [[texts_of(row, example.options) for row in rows] for rows in (found, again)]
    assert [texts[i] for i in order] == others, "another order of the lines gave other texts"


def outputs(ckpt: str, folder: Path, lines: list[bytes], example: Example) -> list[str]:
    """Translate lines, and return the output of each."""
    source, sink = folder / "in", folder / "out"
    source.write_bytes(b"\n".join(lines) + (b"\n" if example.ends or not lines[-1] else b""))
    sink.unlink(missing_ok=True)
    command = ["--ckpt", ckpt, "--input", str(source), "--output", str(sink), "--device", "cpu"]
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


@pytest.fixture(scope="module")
def ckpt(tmp_path_factory) -> str:
    return str(tiny.save(tmp_path_factory.mktemp("checkpoint")))


@hypothesis.settings(max_examples=150, suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(example=examples())
def test_examples(ckpt, tmp_path, example):
    check(ckpt, tmp_path, example)


@pytest.mark.parametrize("change", [lambda rows: rows[:-1], lambda rows: [row.upper() + b"1" for row in rows[::-1]]])
def test_lost_or_reordered_lines_are_found(change, ckpt, tmp_path, monkeypatch):
    real = translate.main

    def broken(command: list[str]) -> int:
        status = real(command)
        sink = Path(command[command.index("--output") + 1])
        sink.write_bytes(b"".join(row + b"\n" for row in change(sink.read_bytes().splitlines())))
        return status

    example = Example(LINES, ends=True, order=1, options=["--beam-size", "2"])
    check(ckpt, tmp_path, example)
    monkeypatch.setattr(translate, "main", broken)
    with pytest.raises(AssertionError, match=r"came out|another order"):
        check(ckpt, tmp_path, example)


@pytest.mark.parametrize("form", ["text", "json", "tsv"])
def test_translations_of_every_format_are_compared(form, ckpt, tmp_path):
    """Translations of all formats equal plain text; scores and line numbers are left out."""
    plain, rows = (
        outputs(ckpt, tmp_path, LINES, Example(LINES, ends=True, order=1, options=["--beam-size", "2", *more]))
        for more in ([], ["--format", form])
    )
    assert [texts_of(row, ["--format", form]) for row in rows] == [[row] for row in plain]
    assert len(set(plain)) > 2
