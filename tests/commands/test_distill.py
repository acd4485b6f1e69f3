"""The distill command: the corpus of a teacher's translations, its continuation, and the student's training."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny

from seq2seq import distill, translate
from seq2seq.inference.line_formats import LIMITED
from seq2seq.inference.translator import Translator

EXHAUSTIVE = {"test_a_failure_of_the_translation_ends_the_command"}

LINES = ["der Hund geht", "", "die Katze kommt nicht", "ich"]
MORE = ["das Haus\r", "der Hund geht"]
LIMITS = ["--device", "cpu", "--max-len-ratio", "1", "--max-len-extra", "3"]


@pytest.fixture(scope="module")
def ckpt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save(tmp_path_factory.mktemp("teacher"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two texts, in the current folder."""
    (tmp_path / "a.de").write_text("".join(f"{line}\n" for line in LINES))
    (tmp_path / "b.de").write_text("".join(f"{line}\n" for line in MORE), newline="")
    monkeypatch.chdir(tmp_path)
    # A limit ends most translations of a random model
    monkeypatch.setattr(distill, "LIMITED", "")
    return tmp_path


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Translate in this process, and record the inputs and the program that replaces this process."""
    found: list[Any] = []

    def here(words: list[str], output: Path) -> int:
        found.append(words[words.index("--input") + 1])
        return translate.main(words)

    monkeypatch.setattr(distill, "_translate", here)
    monkeypatch.setattr(os, "execv", lambda program, words: found.append((program, words)))
    return found


def run(ckpt: Path, *more: str) -> int:
    return distill.main(["--ckpt", str(ckpt), "--input", "a.de", "b.de", "--output", "out", *LIMITS, *more])


def corpus() -> list[tuple[str, ...]]:
    sides = (Path(f"out.{language}").read_text().splitlines() for language in ("de", "en"))
    return list(zip(*sides, strict=True))


@pytest.mark.parametrize("options", ["--beam-size 1", "--beam-size 3 --n-best 3", "--samples 2 --seed 7"])
def test_the_corpus_has_each_distinct_translation_of_each_line(ckpt, folder, calls, capsys, options):
    assert run(ckpt, *options.split()) == 0
    found = corpus()
    # A random model has empty translations, too
    assert found
    assert {source for source, _ in found} <= {line.strip() for line in (*LINES, *MORE) if line}
    assert all(translation.strip() for _, translation in found)
    assert f"{len(found):,} pairs from 6 lines" in capsys.readouterr().err
    if "beam" in options:
        translator = Translator.load(str(ckpt), device="cpu")
        number = int(options.split()[-1])
        limits = {"max_len_ratio": 1.0, "max_len_extra": 3}
        translator.settings = dataclasses.replace(translator.settings, beam_size=number, n_best=number, **limits)
        rows = translator.translate(LINES)
        expected = [(line, each.text) for line, row in zip(LINES, rows, strict=True) if line for each in row]
        wanted = [pair for pair in dict.fromkeys(expected) if pair[1].strip()]
        assert found[: len(wanted)] == wanted
    assert sorted(path.name for path in folder.glob("out*")) == ["out.de", "out.en", "out.json"]


def test_documents_end_where_they_ended(tmp_path):
    """A blank line ends a document, as does the end of an input."""
    inputs = [tmp_path / "a", tmp_path / "b"]
    for path, text in zip(inputs, ("eins\n\nzwei\ndrei\n", "vier\n"), strict=True):
        path.write_text(text)
        rows = [{"translation": line.upper(), "score": -1.0 if line else None} for line in text.splitlines()]
        path.with_suffix(".jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    sides = [tmp_path / "out.de", tmp_path / "out.en"]
    parts = [path.with_suffix(".jsonl") for path in inputs]
    for documents, expected in ((True, "eins\n\nzwei\ndrei\n\nvier\n\n"), (False, "eins\nzwei\ndrei\nvier\n")):
        distill._write_corpus([str(path) for path in inputs], parts, sides, documents=documents)
        assert [side.read_text() for side in sides] == [expected, expected.upper()]


def test_the_same_command_continues(ckpt, folder, calls, capsys):
    """A finished corpus is not made again, nor the translations of a finished input."""
    assert run(ckpt) == 0
    whole = corpus()
    assert run(ckpt) == 0
    assert run(ckpt, "--threads", "1", "--max-tokens=100") == 0
    assert calls == ["a.de", "b.de"]
    assert run(ckpt, "--beam-size", "2") == 2
    message = capsys.readouterr().err
    assert (
        "error: out.json: an earlier command had other options; choose another --output, or rm out.json out." in message
    )
    # No pattern that could match an input
    assert "*" not in message
    # Interrupted in the second input
    for path in (Path("out.de"), Path("out.en")):
        path.unlink()
    calls.clear()
    rows = [{"line": number, "translation": "x", "score": -1.0} for number in range(1, 5)]
    Path("out.1.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert run(ckpt) == 0
    assert calls == ["b.de"]
    rest = corpus()[3:]
    assert rest == whole[-len(rest) :]
    assert corpus()[:3] == [(line, "x") for line in LINES if line]


def test_lines_without_a_translation_are_left_out():
    failed = {"translation": "", "score": None}
    assert list(distill._translations(failed)) == []
    one = {"translation": "a", "score": -1.0}
    assert list(distill._translations({**one, "alternatives": [{**one}, {**one, "translation": " "}, failed]})) == ["a"]
    assert list(distill._translations({**one, LIMITED: True, "alternatives": [{**one, "translation": "b"}]})) == ["b"]


def test_settings_train_a_student(ckpt, folder, calls, capsys):
    """The corpus, the languages and resume=auto are added; what the user types comes last."""
    words = [f"init_from={ckpt}", "mixer/self@mixer.decoder=lightconv", "data.valid=v", "data.name=mine"]
    assert run(ckpt, "--beam-size", "1", *words) == 0
    program, command = calls[-1]
    own = ["data=files", "data.src=de", "data.tgt=en", "data.train=out", "resume=auto"]
    assert (program, command) == (sys.executable, [sys.executable, "-m", "seq2seq.train", *own, *words])
    assert "data.valid is not set" not in capsys.readouterr().err
    assert run(ckpt, "--beam-size", "1", "trainer.max_steps=1", "resume=last.ckpt") == 0
    assert "resume=auto" not in calls[-1][1]
    assert "warning: data.valid is not set" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--format text", "--format has no use here"),
        ("--resume", "--resume has no use here"),
        ("data=multi30k", "data=... is what this command writes"),
        ("data.train=x", "data.train=... is what this command writes"),
        ("model.dimension=3", "model.dimension is not a setting"),
        ("--output .", "--output . is a folder"),
        ("--output taken", "taken.en exists, and this command did not write it"),
        ("--output half", "half.2.jsonl exists, and this command did not write it"),
        ("--input nowhere.de", "--input nowhere.de does not exist"),
        ("--input .", "--input . is not a regular file"),
    ],
)
def test_wrong_words_are_refused_before_any_translation(ckpt, folder, calls, capsys, words, message):
    for name in ("taken.en", "half.2.jsonl"):
        Path(name).write_text("precious\n")
    try:
        status = run(ckpt, *shlex.split(words))
    except SystemExit as stop:
        status = stop.code
    assert status == 2
    assert message in capsys.readouterr().err
    assert calls == []
    assert Path("taken.en").read_text() == "precious\n"


def test_a_failure_of_the_translation_ends_the_command(ckpt, folder, capfd):
    """With its status; in a process of its own."""
    assert run(ckpt, "--device", "tpu") == 2
    assert "tpu" in capfd.readouterr().err
    assert not list(folder.glob("out.??"))
    assert distill._translate(["--help"], Path("none")) == 0
