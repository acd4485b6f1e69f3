"""Test the other files of the translate command, and the files that its outputs may not replace."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import random
import threading
from pathlib import Path

import pyarrow as pa
import pytest
import tiny

from seq2seq import checkpoint, score, translate
from seq2seq.data.text_files import read_lines
from seq2seq.inference import onnx_model
from seq2seq.inference.description import write_description
from seq2seq.inference.translator import Translator

# The others are read and written in data/test_text_files.py
REPRESENTATIVE = {"test_compressed_text_is_translated_as_the_text": {"gz", "zst"}}
LINES = ["der Hund geht", "die Katze", "ich"]
LIMITS = ["--device", "cpu", "--beam-size", "1", "--max-len-ratio", "1", "--max-len-extra", "3"]


@pytest.fixture(scope="module")
def ckpt(tmp_path_factory) -> Path:
    return tiny.save(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """Files of three lines, in the current folder."""
    texts = {
        "in.de": LINES,
        "begin": ["the", "a", "I"],
        "words": ["dog", "cat\ttoday", ""],
        "test.de": LINES,
        "test.en": ["precious"] * 3,
    }
    for name, lines in texts.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(ckpt: Path, *options: str) -> int:
    return translate.main(["--ckpt", str(ckpt), *LIMITS, *options])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--input in.de --prefixes begin --output begin", "--output begin is the input"),
        ("--input in.de --phrases words --output words", "--output words is the input"),
        ("--input in.de --shortlist words --output words", "--output words is the input"),
        ("--input in.de --phrases words --alignments words", "--alignments words is the input"),
        ("--alignments in.de", "--alignments in.de is the input"),
        ("--output in.de", "--output in.de is the input"),
        ("--input in.de --output new --alignments ./new", "--alignments new is the output"),
        ("--input in.de --output new --alignments link", "--alignments link is the output"),
        ("--input in.de --output words --alignments words", "--alignments words is the output"),
        (
            "--input in.de --ensemble member --output member/config.json",
            "--output member/config.json is the checkpoint",
        ),
    ],
)
def test_no_output_replaces_what_is_read_or_another_output(folder, ckpt, capsys, monkeypatch, options, message):
    (folder / "link").symlink_to("new")
    (folder / "member").mkdir()
    (folder / "member" / "config.json").write_text("{}")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    # Standard input, where no --input is named
    with open(folder / "in.de") as source:
        monkeypatch.setattr("sys.stdin", source)
        assert run(ckpt, *options.split()) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith(f"error: {message}")
    assert printed.err.count("\n") == 1
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_dash_is_a_standard_stream(folder, ckpt, capsys, monkeypatch):
    assert run(ckpt, "--input", "in.de", "--output", "plain") == 0
    with open(folder / "in.de") as source:
        monkeypatch.setattr("sys.stdin", source)
        assert run(ckpt, "--input", "-", "--output", "-") == 0
    assert capsys.readouterr().out == (folder / "plain").read_text()
    assert not (folder / "-").exists()


def test_alignments_do_not_replace_standard_output(folder, ckpt, capsys, monkeypatch):
    with open(folder / "out", "w") as sink:
        monkeypatch.setattr("sys.stdout", sink)
        assert run(ckpt, "--input", "in.de", "--alignments", "out") == 2
        monkeypatch.undo()
    assert "--alignments out is the output" in capsys.readouterr().err
    # A device may take both outputs
    assert run(ckpt, "--input", str(folder / "in.de"), "--output", "/dev/null", "--alignments", "/dev/null") == 0


@pytest.mark.parametrize(("option", "name"), [("--prefixes", "begin"), ("--phrases", "words")])
def test_a_byte_order_mark_of_prefixes_and_phrases_is_no_text(folder, ckpt, option, name):
    assert run(ckpt, "--input", "in.de", option, name, "--output", "plain") == 0
    (folder / name).write_bytes(b"\xef\xbb\xbf" + (folder / name).read_bytes())
    assert run(ckpt, "--input", "in.de", option, name, "--output", "marked") == 0
    assert (folder / "marked").read_bytes() == (folder / "plain").read_bytes()


@pytest.mark.parametrize(("option", "name"), [("--prefixes", "begin"), ("--phrases", "words")])
def test_prefixes_and_phrases_have_as_many_lines_as_the_input(folder, ckpt, capsys, monkeypatch, option, name):
    """Lines of files are counted before the model is loaded, lines of pipes at their end."""
    whole = (folder / name).read_bytes()

    def loaded(*_: object) -> Translator:
        raise AssertionError("the model is loaded")

    monkeypatch.setattr(translate, "load_translator", loaded)
    for text, count in ((whole + b"more\n", 4), (whole.partition(b"\n")[0], 1)):
        (folder / name).write_bytes(text)
        assert run(ckpt, "--input", "in.de", option, name, "--output", "out") == 2
        error = f"error: {option} {name} has {count} lines, and the input 3; it needs one for each\n"
        assert capsys.readouterr().err == error
    monkeypatch.undo()
    monkeypatch.chdir(folder)
    os.mkfifo(folder / "pipe")
    for text, error in (
        (whole + b"more\n", "pipe has more than 3 lines, and the input has 3; it needs one for each"),
        (whole.partition(b"\n")[0], "pipe ends before line 2 of the input; it needs as many lines"),
    ):
        writer = threading.Thread(target=(folder / "pipe").write_bytes, args=[text])
        writer.start()
        assert run(ckpt, "--input", "in.de", option, "pipe", "--output", "out") == 2
        writer.join()
        assert capsys.readouterr().err.endswith(f"error: {error}\n")
    assert not (folder / "out").exists()


@pytest.fixture
def few_positions(tmp_path) -> Path:
    """A model of 16 learned positions."""
    return tiny.save(tmp_path, positions="learned", max_len=16)


def test_a_translation_of_too_many_pieces_has_no_alignment(folder, few_positions, capsys):
    """Either a part of the line is too long, or the tokenizer cuts the text into more pieces than the search did."""
    lines = ["der Hund", "und " * 40, "du", ""]
    (folder / "in.de").write_text("\n".join(lines) + "\n")
    common = ["--input", "in.de", "--max-len-extra", "20"]
    options = [*common, "--format", "json", "--pieces", "--align", "--alignments", "links", "--output", "out"]
    assert run(few_positions, *options) == 0
    objects = [json.loads(line) for line in (folder / "out").read_text().splitlines()]
    tokenizer = Translator.load(few_positions, device="cpu").tokenizer
    counts = [len(row) for row in tokenizer.encode_tgt([entry["translation"] for entry in objects])]
    # The first translation has at most 16 pieces, and the tokenizer cuts it into more
    assert (counts[0], counts[2]) == (17, 16)
    assert [len(entry["pieces"]) for entry in objects] == [0, 0, 16, 0]
    links = (folder / "links").read_text().split("\n")
    assert [bool(line) for line in links] == [False, False, True, False, False]
    warnings = [line for line in capsys.readouterr().err.splitlines() if "no alignment and no pieces" in line]
    reason = "warning: line 1 has no alignment and no pieces: its translation has 17 pieces; the model has 16 positions"
    assert len(warnings) == 2
    assert reason in warnings
    # Given translations are refused
    (folder / "out").write_text("".join(f"{entry['translation']}\n" for entry in objects))
    assert score.main(["--ckpt", str(few_positions), "--device", "cpu", "--forced-decoding", "in.de", "out"]) == 2
    assert "error: translation 1 has 17 pieces; the model has 16 positions" in capsys.readouterr().err


class NoSession:
    """Stand-in for a session of ONNX Runtime that is never run."""

    def get_inputs(self) -> list:
        """Return no inputs."""
        return []


@pytest.mark.parametrize("options", [["--alignments", "links"], ["--format", "json", "--pieces"], ["--align"]])
def test_graphs_of_single_steps_are_asked_for_no_alignment(folder, ckpt, capsys, monkeypatch, options):
    """An alignment is refused before any line is translated."""
    loaded = checkpoint.load(ckpt)
    (folder / "graphs").mkdir()
    write_description(folder / "graphs", loaded.meta, loaded.tokenizer, "onnx", {"format": onnx_model.FORMAT})
    for name in onnx_model.GRAPHS:
        (folder / "graphs" / name).write_bytes(bytes(10_000))
    monkeypatch.setattr(onnx_model, "_session", lambda *_: NoSession())
    more = ["--format", "json"] if options == ["--align"] else []
    assert run(folder / "graphs", "--input", "in.de", "--output", "out", *options, *more) == 2
    asked = next(option for option in options if option in ("--alignments", "--pieces", "--align"))
    assert capsys.readouterr().err.startswith(f"error: {asked} needs a model that reads whole translations")
    assert not [name for name in ("out", "links") if (folder / name).exists()]


def test_outputs_may_be_pipes(folder, ckpt, capsys):
    """Outputs are pipes that the shell names in /proc: `--alignments >(sort)`, `--output /dev/stdout | less`."""
    given = ("--input", "in.de")
    assert run(ckpt, *given, "--output", "out", "--alignments", "links") == 0
    pipes = {name: os.pipe() for name in ("out", "links")}
    named = {name: f"/proc/self/fd/{write}" for name, (_, write) in pipes.items()}
    assert run(ckpt, *given, "--resume", "--output", named["out"]) == 2
    assert "leave out --resume" in capsys.readouterr().err
    assert run(ckpt, *given, "--output", named["out"], "--alignments", named["links"]) == 0
    for name, (read, write) in pipes.items():
        os.close(write)
        with os.fdopen(read) as file:
            assert file.read() == (folder / name).read_text()


PACK = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": lambda data: pa.compress(data, codec="zstd", asbytes=True),
}


@pytest.mark.parametrize("kind", PACK)
def test_compressed_text_is_translated_as_the_text(folder, ckpt, capsys, monkeypatch, kind):
    """Inputs are recognized by name or bytes, also standard input and prefixes; outputs are compressed by name."""
    assert run(ckpt, "--input", "in.de", "--prefixes", "begin", "--output", "plain", "--alignments", "links") == 0
    for name in ("in.de", "begin"):
        packed = PACK[kind]((folder / name).read_bytes())
        for place in (folder / f"{name}.{kind}", folder / f"{name}.hidden"):
            place.write_bytes(packed)
    for ending in (kind, "hidden"):
        given = ["--input", f"in.de.{ending}", "--prefixes", f"begin.{ending}"]
        assert run(ckpt, *given, "--output", f"out.{kind}", "--alignments", f"links.{kind}") == 0
        assert list(read_lines(folder / f"out.{kind}")) == list(read_lines(folder / "plain"))
        assert list(read_lines(folder / f"links.{kind}")) == list(read_lines(folder / "links"))
        assert (folder / f"out.{kind}").read_bytes() != (folder / "plain").read_bytes()
    with open(folder / f"in.de.{kind}") as source:
        monkeypatch.setattr("sys.stdin", source)
        assert run(ckpt, "--prefixes", f"begin.{kind}", "--output", "piped") == 0
    assert (folder / "piped").read_bytes() == (folder / "plain").read_bytes()
    assert "error" not in capsys.readouterr().err
    # Counted before the model is loaded
    (folder / f"begin.{kind}").write_bytes(PACK[kind](b"the\n"))
    assert run(ckpt, "--input", f"in.de.{kind}", "--prefixes", f"begin.{kind}", "--output", "out") == 2
    assert f"--prefixes begin.{kind} has 1 lines, and the input 3" in capsys.readouterr().err
    # Damaged: one line, and no output
    (folder / f"cut.{kind}").write_bytes(PACK[kind](random.randbytes(100_000).hex().encode())[:-40_000])
    os.mkfifo(folder / "pipe")
    writer = threading.Thread(target=(folder / "pipe").write_bytes, args=[(folder / f"cut.{kind}").read_bytes()])
    writer.start()
    for name in (f"cut.{kind}", "pipe"):
        assert run(ckpt, "--input", name, "--output", "new") == 2
        error = capsys.readouterr().err.splitlines()
        assert f"{name} cannot be decompressed" in error[-1]
        assert not (folder / "new").exists()
    writer.join()
    # A compressed output cannot be continued; it can be replaced
    with pytest.raises(SystemExit):
        run(ckpt, "--input", "in.de", "--output", f"out.{kind}", "--resume")
    assert "--resume" in capsys.readouterr().err
    assert run(ckpt, "--input", "in.de", "--output", f"out.{kind}") == 0


def test_a_test_set_in_markup_is_translated_segment_by_segment(folder, ckpt, capsys):
    assert run(ckpt, "--input", "in.de", "--output", "plain") == 0
    segments = "".join(f'<seg id="{i}">{line}</seg>\n' for i, line in enumerate(LINES))
    (folder / "x.sgm").write_text(f'<srcset setid="s">\n<doc>\n{segments}</doc>\n</srcset>\n')
    assert run(ckpt, "--input", "x.sgm", "--prefixes", "begin", "--output", "out") == 0
    assert run(ckpt, "--input", "x.sgm", "--output", "out") == 0
    assert (folder / "out").read_bytes() == (folder / "plain").read_bytes()
    (folder / "x.xlf").write_text('<?xml version="1.0"?>\n<xliff/>\n')
    assert run(ckpt, "--input", "x.xlf", "--output", "out") == 2
    assert "markup is not read" in capsys.readouterr().err


@pytest.mark.parametrize(("option", "name"), [("--prefixes", "begin"), ("--phrases", "words")])
def test_constraints_that_are_not_utf8_are_refused(folder, ckpt, capsys, option, name):
    """Invalid bytes are refused: their replacement characters would be in the translation."""
    (folder / name).write_bytes(b"the\nW\xe4nde\n\n")
    assert run(ckpt, "--input", "in.de", option, name, "--output", "out") == 2
    assert f"{name}: line 2 is not valid UTF-8" in capsys.readouterr().err
    assert not (folder / "out").exists()
