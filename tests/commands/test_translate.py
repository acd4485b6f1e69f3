"""Test the translate command: N lines in, N lines out, whatever the lines, the pipes and the signals are."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import pty
import random
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import tiny
import torch
from conftest import PATIENCE

from benchmarks import nasty_lines
from seq2seq import search, translate
from seq2seq.inference import batch_rows, line_stream
from seq2seq.inference import translator as inference
from seq2seq.inference.limits import MOST_PARTS
from seq2seq.inference.line_stream import RawLine
from seq2seq.inference.translator import TranslatedText, Translator
from seq2seq.network.model import Seq2Seq
from seq2seq.options.translation import load_translator
from seq2seq.search import NotFiniteScoresError
from seq2seq.settings.search import SearchSettings
from seq2seq.training.bounds.faults import TrainingFault, as_fault

ROOT = Path(__file__).resolve().parents[2]
# test_one_line_at_a_time_and_ctrl_c and tests/system/test_stdio.py stay: each process takes 3 seconds to start
EXHAUSTIVE = {
    "test_a_reader_that_leaves_early",
    "test_output_appears_whole_or_not_at_all",
    "test_a_line_of_ten_megabytes",
    "test_one_line_at_a_time_and_ctrl_c",
    "test_nasty_lines",
    "test_an_over_long_line_is_cut_and_named",
    "test_wide_beams_get_smaller_batches",
}


@pytest.fixture(scope="module")
def ckpt(tmp_path_factory) -> Path:
    return tiny.save(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def translator(ckpt) -> Translator:
    return Translator.load(ckpt, settings=SearchSettings(beam_size=2), device="cpu")


def run_main(tmp_path: Path, ckpt: Path, data: bytes, *options: str) -> tuple[int, bytes]:
    """Run the command inside this process, and return its exit status and output."""
    source, sink = tmp_path / "in", tmp_path / "out"
    source.write_bytes(data)
    command = ["--ckpt", str(ckpt), "--input", str(source), "--output", str(sink), "--beam-size", "2", *options]
    status = translate.main(command)
    return status, sink.read_bytes() if sink.exists() else b""


def errors(capsys) -> str:
    """Standard error without the counts at the end: random models reach their length limits."""
    lines = capsys.readouterr().err.splitlines(keepends=True)
    return "".join(line for line in lines if "--format json has it" not in line)


def spawn(*options: object, **pipes) -> subprocess.Popen:
    """Start the command as a user does; SIGINT works as in a terminal, even if this test runs in the background."""
    return subprocess.Popen(
        [sys.executable, "-m", "seq2seq.translate", *map(str, options)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        **pipes,
    )


# The command before any work.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--n-best", "3"], "--n-best 3 is more than --beam-size 2"),
        (["--threads", "100000"], "'100000' is not a whole number from 1 to 1,024"),
        (["--length-penalty=-1e300"], "'-1e300' is not a number from 0 to 10"),
        (["--beam-size", "1" + "0" * 5000], "is not a whole number from 1 to 1,000"),
        (["--tgt-lang", ""], "argument --tgt-lang: the name is empty"),
        (["--dtype", "int8"], "invalid choice: 'int8'"),
        (["--beam", "4"], "unrecognized arguments: --beam 4"),
    ],
)
def test_wrong_options(tmp_path, ckpt, capsys, options, message):
    with pytest.raises(SystemExit) as stopped:
        run_main(tmp_path, ckpt, b"", *options)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.parametrize("device", ["cuda", "cuda:1", "gpu", "cuda:x", "cuda:", "cuda:00", "cuda:²", "cpu"])
def test_a_device_that_is_not_there(tmp_path, ckpt, capsys, device):
    graphs = ["--cuda-graphs"] if device == "cpu" else []
    assert run_main(tmp_path, ckpt, b"x\n", "--device", device, *graphs) == (2, b"")
    error = capsys.readouterr().err
    known = {"cuda": "device", "cuda:1": "device", "cpu": "CUDA graphs need a GPU, and this runs on"}
    assert error.startswith(f"error: {known.get(device, 'unknown device')} '{device}'")
    assert error.count("\n") == 1


def test_files_that_cannot_be_used(tmp_path, ckpt, capsys):
    text = tmp_path / "text"
    text.write_text("der Hund.\n")
    before = ckpt.read_bytes()
    run = tmp_path / "runs" / "demo"
    (run / "checkpoints").mkdir(parents=True)
    (run / "checkpoints" / "best.safetensors").touch()
    for options, message in [
        (["--ckpt", tmp_path / "no.safetensors", "--input", text], "no.safetensors: no such file"),
        (["--ckpt", text, "--input", text], "text: is not a checkpoint"),
        (["--ckpt", tmp_path, "--input", text], "is a folder without checkpoints/best.safetensors"),
        (["--ckpt", run.parent, "--input", text], f"name {run}"),
        (["--ckpt", ckpt, "--input", tmp_path / "no"], "no: No such file or directory"),
        (["--ckpt", ckpt, "--input", tmp_path], "is a directory; name a file with --input"),
        (["--ckpt", ckpt, "--input", text, "--output", text], "is the input"),
        (["--ckpt", ckpt, "--input", text, "--output", ckpt], "is the checkpoint"),
        (["--ckpt", ckpt, "--input", text, "--output", tmp_path], "is a directory"),
        (["--ckpt", ckpt, "--input", text, "--output", tmp_path / "no" / "out"], "no such folder"),
        (["--ckpt", ckpt, "--input", text, "--output", "/proc/out"], "--output=/proc cannot be written"),
    ]:
        assert translate.main([str(o) for o in options]) == 2
        printed = capsys.readouterr()
        assert message in printed.err
        assert printed.err.startswith("error: ")
        assert printed.err.count("\n") == 1
        assert printed.out == ""
    assert text.read_text() == "der Hund.\n"
    assert ckpt.read_bytes() == before
    other = tmp_path / "other.safetensors"
    other.write_bytes(before)
    assert translate.main(["--ckpt", str(ckpt), "--input", str(text), "--output", str(other)]) == 2
    assert f"--output {other} is a checkpoint" in capsys.readouterr().err
    assert other.read_bytes() == before
    link = tmp_path / "link"
    link.symlink_to(text)
    assert translate.main(["--ckpt", str(ckpt), "--input", str(text), "--output", str(link)]) == 2


# Lines.


def test_nasty_lines(tmp_path, ckpt, capsys):
    """A plain line follows each troublesome line, and must be translated as if it were alone."""
    seed = random.randrange(10**6)
    lines = nasty_lines.nasty_lines(50, seed, long_lines=2, long_size=100_000)
    plain = [s.encode() for s in tiny.sentences(tiny.GERMAN, 50, seed=seed)]
    mixed = [line for pair in zip(lines, plain, strict=True) for line in pair]
    data = nasty_lines.text(mixed, final_newline=bool(seed % 2))
    status, out = run_main(tmp_path, ckpt, data, "--max-len", "20")
    assert status == 0, seed
    assert out.endswith(b"\n")
    rows = out.split(b"\n")[:-1]
    assert len(rows) == 100, seed
    _, alone = run_main(tmp_path, ckpt, b"\n".join(plain), "--max-len", "20")
    assert rows[1::2] == alone.split(b"\n")[:-1], seed
    out.decode("utf-8")
    assert " is cut: " in capsys.readouterr().err


def test_line_ends(tmp_path, ckpt):
    """Only \\n ends a line, and the last may be missing; a \\r before it and a BOM are no text; blank lines stay."""
    _, out = run_main(
        tmp_path,
        ckpt,
        b"\xef\xbb\xbfder Hund\nder Hund\r\n\n \t \r\nder\rHund\nder\xe2\x80\xa8Hund\nder\x0bHund\nder Hund",
    )
    rows = out.decode().split("\n")
    assert len(rows) == 9
    assert rows[0] == rows[1] == rows[7] != ""
    assert rows[2] == rows[3] == rows[8] == ""
    assert all(rows[4:7])


@pytest.mark.parametrize(("data", "count"), [(b"", 0), (b"\n", 1), (b"\n\n", 2), (b"x", 1), (b"\n\nx", 3), (b"\r", 1)])
def test_how_many_lines_there_are(tmp_path, ckpt, data, count):
    status, out = run_main(tmp_path, ckpt, data)
    assert status == 0
    assert out.count(b"\n") == count


def test_bytes_that_are_no_utf8_are_replaced_and_told_once(tmp_path, ckpt, capsys):
    status, out = run_main(tmp_path, ckpt, b"der Hund\nder \xff Hund\n\xc3\nKatze \xed\xa0\x80\n")
    assert (status, out.count(b"\n")) == (0, 4)
    assert errors(capsys) == ("warning: line 2 is not valid UTF-8; the invalid bytes are replaced (warned once)\n")


@pytest.mark.parametrize(("name", "warned"), [("in.MD", True), ("in.txt", False)])
def test_a_document_as_lines_is_warned_of(tmp_path, ckpt, capsys, name, warned):
    (tmp_path / name).write_text("- der Hund\n")
    options = [
        "--ckpt",
        str(ckpt),
        "--device",
        "cpu",
        "--input",
        str(tmp_path / name),
        "--output",
        str(tmp_path / "out"),
    ]
    assert translate.main(options) == 0
    assert ("--document" in capsys.readouterr().err) == warned


def test_an_over_long_line_is_cut_and_named(tmp_path, ckpt, capsys):
    line = " ".join(tiny.sentences(tiny.GERMAN, 3000, seed=1))
    pieces = len(tiny.tokenizer().encode_src([line])[0]) - 1
    assert len(line) > 100_000
    status, out = run_main(tmp_path, ckpt, b"der Hund\n" + line.encode() + b"\n", "--max-len", "32")
    assert (status, out.count(b"\n")) == (0, 2)
    kept = re.fullmatch(
        f"warning: line 2 is cut: {pieces:,} pieces, the first ([0-9,]+) are translated\n",
        errors(capsys).partition("\n")[2] or "",
    )
    assert kept
    assert 16 * MOST_PARTS <= int(kept[1].replace(",", "")) <= 31 * MOST_PARTS


def test_a_line_of_ten_megabytes(tmp_path, ckpt, capsys):
    began = time.process_time()
    status, out = run_main(tmp_path, ckpt, b"Hund\n" + "ä".encode() * 5_000_000 + b"\nHund", "--max-len", "16")
    assert time.process_time() - began < 100
    # The middle may be control characters of the random model, which are left out
    first, _, last, _ = out.decode().split("\n")
    assert status == 0
    assert first == last != ""
    error = capsys.readouterr().err
    assert "line 2 has 10,000,000 bytes; only the first 1,048,576 are read" in error
    assert "line 2 is cut: " in error
    assert "UTF-8" not in error  # the cut is inside a character, which is not a fault of the line


def test_same_text_whatever_the_batch(translator, ckpt):
    seed = random.randrange(10**6)
    lines = tiny.sentences(tiny.GERMAN, 16, seed=seed, longest=10)
    together = translator.texts(lines)
    assert len(set(together)) > 8
    alone = [translator.texts([line])[0] for line in lines[:3]]
    assert alone == together[:3], seed
    order = random.Random(seed).sample(range(16), 16)
    small = Translator.load(ckpt, settings=translator.settings, device="cpu", max_tokens=70)
    assert small.texts([lines[i] for i in order]) == [together[i] for i in order], seed


def test_what_a_server_may_send(translator):
    """A server may send lone surrogates, line breaks inside a line, no lines at all, or its own settings."""
    assert translator.translate([]) == []
    rows = translator.translate(["der \ud800 Hund", "der\nHund", "", "\u200b"], settings=SearchSettings(beam_size=1))
    assert [len(row) for row in rows] == [1] * 4
    assert rows[2] == rows[3] == [TranslatedText("", 0.0)]
    assert rows[1][0].text.count("\n") == 1
    assert [text for text, _ in rows[1][0].parts] == ["der", "Hund"]


def test_options_reach_the_search(tmp_path, ckpt, monkeypatch):
    seen = []

    def none(model, sources, *, settings, rows, **options):
        seen.append(settings)
        sizes = [len(source.ids) for source in sources]
        assert all(1 <= rows(size) <= max(1, 12 // size) for size in sizes)
        return [list(enumerate([[]] * len(sizes)))]

    monkeypatch.setattr(inference, "search_stream", none)
    run_main(tmp_path, ckpt, b"der Hund\n" * 10, "--beam-size", "3", "--length-penalty", "0.5", "--max-tokens", "12")
    assert {(s.beam_size, s.length_penalty, s.n_best) for s in seen} == {(3, 0.5, 1)}


def searches(ckpt: Path, *options: str) -> SearchSettings:
    """Return the settings of the command's search with these options."""
    return load_translator(translate._parser().parse_args(["--ckpt", str(ckpt), *options])).settings


def test_the_search_is_the_runs_unless_an_option_says_otherwise(tmp_path, ckpt, capsys):
    own = SearchSettings(beam_size=3, length_penalty=0.6, max_len_ratio=0.5, max_len_extra=7)
    theirs = tiny.save(tmp_path, search=own)
    assert Translator.load(theirs, device="cpu").settings == searches(theirs) == own
    assert searches(theirs, "--beam-size", "4") == dataclasses.replace(own, beam_size=4)
    assert searches(theirs, "--length-penalty", "0") == dataclasses.replace(own, length_penalty=0.0)
    lengths = ("--max-len-ratio", "0", "--max-len-extra", "3")
    assert searches(theirs, *lengths) == dataclasses.replace(own, max_len_ratio=0.0, max_len_extra=3)
    assert Translator.load(theirs, settings=SearchSettings(), device="cpu").settings == SearchSettings()
    assert searches(ckpt) == SearchSettings(beam_size=5, length_penalty=1.0)  # a checkpoint without settings of its own
    text = tmp_path / "text"
    text.write_text("der Hund\n")
    assert translate.main(["--ckpt", str(theirs), "--input", str(text), "--n-best", "4"]) == 2
    assert "--n-best 4 is more than --beam-size 3" in capsys.readouterr().err


def test_bfloat16_keeps_positions_exact(ckpt):
    low = Translator.load(ckpt, device="cpu", dtype="bfloat16")
    assert {p.dtype for p in low.model.parameters()} == {torch.bfloat16}
    assert {b.dtype for b in low.model.buffers()} == {torch.float32}
    assert len(low.texts(["der Hund geht", ""])) == 2


def test_learned_positions_limit_source_and_target(tmp_path, capsys):
    """A model with 64 positions reads 64 source tokens; its target ends with the last position, as in validation."""
    learned = tiny.save(tmp_path, positions="learned", max_len=64)
    assert run_main(tmp_path, learned, b"der Hund\n", "--min-len", "64") == (2, b"")
    assert "min-len is 64; the model has 64 target positions" in capsys.readouterr().err
    status, out = run_main(tmp_path, learned, b"der Hund geht " * 100 + b"\nder Hund\n", "--max-len-extra", "70")
    assert (status, out.count(b"\n")) == (0, 2)
    assert "line 1 is split: 300 pieces, translated in 5 parts" in capsys.readouterr().err


def test_a_line_that_fails_is_empty_and_named(tmp_path, ckpt, capsys, monkeypatch):
    """A batch without room is halved until it fits; a line that fails does not affect the others."""
    lines = tiny.sentences(tiny.GERMAN, 12, seed=3)
    # Fails for more than 4 sentences as if memory were short, and always for one line
    whole, bad, calls = search.search_stream, tiny.tokenizer().encode_src([lines[5]])[0], []

    def frail(model, sources, **options):
        given = list(sources)
        calls.append(len(given))
        if len(given) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        for done in whole(model, given, **options):
            if any(given[number].ids == bad for number, _ in done):
                raise RuntimeError("a kernel failed\nand more")
            yield done

    data = "\n".join(lines).encode()
    _, good = run_main(tmp_path, ckpt, data)
    monkeypatch.setattr(inference, "search_stream", frail)
    status, out = run_main(tmp_path, ckpt, data)
    assert calls[0] == 12
    expected = good.split(b"\n")
    expected[5] = b""
    assert out.split(b"\n") == expected
    assert status == 1
    assert errors(capsys) == (
        "warning: line 6 was not translated and is empty (a kernel failed)\n"
        "error: 1 of 12 lines could not be translated and are empty\n"
    )


def test_a_line_that_fails_has_no_score_and_a_blank_one_has(tmp_path, ckpt, monkeypatch):
    monkeypatch.setattr(inference, "search_stream", tiny.failing_search)
    status, out = run_main(tmp_path, ckpt, b"der Hund\n\n", "--format", "json", "--pieces", "--align")
    assert status == 1
    empty = {"translation": "", "pieces": [], "alignment": ""}
    assert [json.loads(line) for line in out.splitlines()] == [
        {"line": 1, "score": None, **empty}, {"line": 2, "score": 0.0, **empty},
    ]  # fmt: skip
    _, out = run_main(tmp_path, ckpt, b"der Hund\n\n", "--n-best", "2")
    assert out == b"1\t-inf\t\n" * 2 + b"2\t0.0000\t\n" * 2


def test_scores_that_are_not_finite_end_the_translation(tmp_path, ckpt, capsys, monkeypatch):
    """Scores that are not finite are not a fault of one line: there is no output, and no retry line by line."""
    step = Seq2Seq.step
    calls = []

    def overflowing(self, *args):
        calls.append(None)
        logits, state = step(self, *args)
        return logits * float("inf"), state

    monkeypatch.setattr(Seq2Seq, "step", overflowing)
    status, out = run_main(tmp_path, ckpt, b"der Hund\ndie Katze\n")
    assert (status, out, len(calls)) == (2, b"", 1)
    assert capsys.readouterr().err.startswith("error: the model's scores are not finite: ")
    with pytest.raises(TrainingFault, match="scores are not finite"):
        raise as_fault(NotFiniteScoresError(), shape=(1, 1, 1), max_tokens=1)


def test_wide_beams_get_smaller_batches(ckpt, monkeypatch):
    """The numbers of a step are bounded, and the translations are the same."""
    lines = tiny.sentences(tiny.GERMAN, 9, seed=8)
    translator = Translator.load(ckpt, settings=SearchSettings(beam_size=4), device="cpu")
    whole = translator.texts(lines)
    sizes = []
    step = translator.model.step
    monkeypatch.setattr(translator.model, "step", lambda *given: (sizes.append(len(given[0]) // 4), step(*given))[1])
    monkeypatch.setattr(batch_rows, "_STEP_NUMBERS", 3 * 4 * 4 * batch_rows._SLOTS)
    assert translator.texts(lines) == whole
    assert max(sizes) == 3


# Reading.


class Pieces(io.RawIOBase):
    """Stream that returns its bytes in pieces of random size."""

    def __init__(self, data: bytes, rng: random.Random) -> None:
        self.data, self.rng, self.reads = data, rng, 0

    def read1(self, size: int = -1) -> bytes:
        cut = min(size, self.rng.choice([1, 2, 3, 7, 50, 5000]))
        piece, self.data = self.data[:cut], self.data[cut:]
        self.reads += 1
        return piece


def test_windows_hold_every_line_wherever_the_reads_fall(monkeypatch):
    monkeypatch.setattr(line_stream, "WINDOW_LINES", 7)
    monkeypatch.setattr(line_stream, "WINDOW_BYTES", 60)
    seed = random.randrange(10**9)
    rng = random.Random(seed)
    for _ in range(30):
        data = b"".join(
            rng.choice([b"\n", b"a", b"bc\r", b"\xe2\x80\xa8", b"d" * 30]) for _ in range(rng.randint(0, 400))
        )
        expected = data.split(b"\n")
        expected = expected[:-1] if expected[-1] == b"" else expected
        windows = list(line_stream.read_windows(Pieces(data, rng)))
        assert [line.data for window in windows for line in window] == expected, seed
        assert all(len(window) <= 7 and sum(len(line.data) for line in window[:-1]) < 60 for window in windows)


def test_reading_is_lazy_and_bounded():
    """An endless stream, and an endless line, are read only as far as a window needs."""

    class Endless(io.RawIOBase):
        given = 0

        def read1(self, size: int = -1) -> bytes:
            self.given += 1
            return b"der Hund\n" * 100

    stream = Endless()
    windows = line_stream.read_windows(stream)
    assert len(next(windows)) == line_stream.WINDOW_LINES
    assert stream.given <= line_stream.WINDOW_LINES / 100 + 1

    many = Pieces(b"x" * 3_000_000 + b"\ny", random.Random(0))
    many.read1 = io.BytesIO(many.data).read  # type: ignore[method-assign]
    (window,) = line_stream.read_windows(many)
    assert [(len(line.data), line.size) for line in window] == [(line_stream.LINE_BYTES, 3_000_000), (1, 1)]


def test_decoding_a_line():
    assert line_stream.decode_line(RawLine(b"a\r", 2)) == ("a", True)
    assert line_stream.decode_line(RawLine(b"a\r\r", 3)) == ("a\r", True)
    assert line_stream.decode_line(RawLine(b"a\xc3", 2)) == ("a\ufffd", False)
    assert line_stream.decode_line(RawLine(b"a\xc3", 9)) == ("a", True)  # a line of 9 bytes, cut inside a character


# Pipes, files and signals.


def test_output_appears_whole_or_not_at_all(tmp_path, ckpt, monkeypatch):
    sink = tmp_path / "out"
    sink.write_text("before\n")
    (tmp_path / "in").write_text("der Hund\n" * 5000)
    whole, calls = Translator.translate, []

    def stops(self, lines, **options):
        calls.append(sink.read_text())
        if len(calls) == 2:
            raise KeyboardInterrupt
        return whole(self, lines, **options)

    monkeypatch.setattr(Translator, "translate", stops)
    options = ["--ckpt", str(ckpt), "--input", str(tmp_path / "in"), "--output", str(sink), "--beam-size", "1"]
    assert translate.main(options) == 130
    assert calls == ["before\n"] * 2
    assert sink.read_text() == "before\n"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in", "out"]


def test_one_line_at_a_time_and_ctrl_c(ckpt):
    """An answer to every line before the next is sent; then Ctrl-C ends with one line and status 130."""
    process = spawn("--ckpt", ckpt, "--beam-size", "1", "--threads", "1")
    assert None not in (process.stdin, process.stdout, process.stderr)
    watchdog = threading.Timer(PATIENCE, process.kill)
    watchdog.start()
    for line in (b"der Hund geht\n", b"\n", b"die Katze\n"):
        process.stdin.write(line)
        process.stdin.flush()
        answer = process.stdout.readline()
        assert answer.endswith(b"\n")
        assert (answer == b"\n") == (line == b"\n")
    process.send_signal(signal.SIGINT)
    error = process.stderr.read()
    assert process.wait(PATIENCE) == 130
    assert error.endswith(b"error: interrupted\n")
    watchdog.cancel()


@pytest.mark.slow
def test_a_terminal_is_told_that_lines_are_awaited(ckpt):
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "seq2seq.translate", "--ckpt", str(ckpt), "--beam-size", "1"]
    with subprocess.Popen(command, cwd=ROOT, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        watchdog = threading.Timer(PATIENCE, process.kill)
        watchdog.start()
        assert process.stdout is not None
        assert process.stderr is not None
        assert b"Ctrl-D" in process.stderr.readline()
        os.write(ours, b"der Hund geht\n")
        assert process.stdout.readline().endswith(b"\n")
        os.write(ours, b"\x04")
        assert process.wait(PATIENCE) == 0
        watchdog.cancel()


def test_a_reader_that_leaves_early(ckpt):
    """`| head -1`: no traceback, no message."""
    process = spawn("--ckpt", ckpt, "--beam-size", "1", "--threads", "1")
    assert None not in (process.stdin, process.stdout, process.stderr)
    watchdog = threading.Timer(PATIENCE, process.kill)
    watchdog.start()
    process.stdin.write(b"der Hund geht\n")
    process.stdin.flush()
    assert process.stdout.readline()
    process.stdout.close()
    process.stdin.write(b"die Katze\n" * 10)
    process.stdin.close()
    assert process.stderr.read() == b""
    assert process.wait(PATIENCE) == 141
    watchdog.cancel()


@pytest.mark.slow
def test_termination_leaves_no_temporary_file(ckpt, tmp_path):
    process = spawn("--ckpt", ckpt, "--output", tmp_path / "out", "--threads", "1")
    assert process.stdin
    deadline = time.monotonic() + PATIENCE
    while not _names(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [name.endswith(".tmp") for name in _names(tmp_path)] == [True]
    process.terminate()
    assert process.wait(PATIENCE) == 143
    assert _names(tmp_path) == []


def _names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())
