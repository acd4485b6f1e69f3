"""Hypothesis against `translate`: some examples pass, and a command that violates its rules is found."""

from __future__ import annotations

from pathlib import Path

import hypothesis
import pytest
import tiny

from benchmarks.fuzz_translate import Example, Fuzz, examples, texts_of
from seq2seq import translate

# `make rest` draws more
EXHAUSTIVE = {"test_more_examples", "test_examples"}
LINES = [b"der Hund", b"\xff\xfe", b"", b"die Katze schl\xc3\xa4ft"]


@pytest.fixture(scope="module")
def ckpt(tmp_path_factory) -> str:
    return str(tiny.save(tmp_path_factory.mktemp("checkpoint")))


def draw(fuzz: Fuzz, count: int) -> None:
    settings = hypothesis.settings(max_examples=count, suppress_health_check=list(hypothesis.HealthCheck))
    settings(hypothesis.given(examples())(fuzz.check))()


def test_examples(ckpt, tmp_path):
    fuzz = Fuzz(ckpt, tmp_path)
    draw(fuzz, 6)
    assert fuzz.count >= 6


def test_more_examples(ckpt, tmp_path):
    draw(Fuzz(ckpt, tmp_path), 150)


@pytest.mark.parametrize("change", [lambda rows: rows[:-1], lambda rows: [row.upper() + b"1" for row in rows[::-1]]])
def test_lost_or_reordered_lines_are_found(change, ckpt, tmp_path, monkeypatch):
    real = translate.main

    def broken(command: list[str]) -> int:
        status = real(command)
        sink = Path(command[command.index("--output") + 1])
        sink.write_bytes(b"".join(row + b"\n" for row in change(sink.read_bytes().splitlines())))
        return status

    fuzz = Fuzz(ckpt, tmp_path)
    example = Example(LINES, ends=True, order=1, options=["--beam-size", "2"])
    fuzz.check(example)
    monkeypatch.setattr(translate, "main", broken)
    with pytest.raises(AssertionError, match=r"came out|another order"):
        fuzz.check(example)


@pytest.mark.parametrize("form", ["text", "json", "tsv"])
def test_translations_of_every_format_are_compared(form, ckpt, tmp_path):
    """Translations of all formats equal plain text; scores and line numbers are left out."""
    fuzz = Fuzz(ckpt, tmp_path)
    plain, rows = (
        fuzz.outputs(LINES, Example(LINES, ends=True, order=1, options=["--beam-size", "2", *more]))
        for more in ([], ["--format", form])
    )
    assert [texts_of(row, ["--format", form]) for row in rows] == [[row] for row in plain]
    assert len(set(plain)) > 2
