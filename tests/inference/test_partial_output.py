"""Test --resume, which continues the output of an interrupted run, and the progress line on a terminal."""

from __future__ import annotations

import io
import json
import math
import os
import pty
from pathlib import Path

import pytest
import tiny

from seq2seq import checkpoint, translate
from seq2seq.data.text_files import count_lines
from seq2seq.inference import line_stream, partial_output
from seq2seq.inference.line_progress import ProgressLine
from seq2seq.inference.notes import Note
from seq2seq.inference.partial_output import resumable_file
from seq2seq.inference.translator import TranslatedText, Translator
from seq2seq.system.files import write_json

REPRESENTATIVE = {"test_the_output_is_the_same_as_without_an_interruption": ["zeros-1-more1", "half-3-more0"]}
EXHAUSTIVE = {
    "test_prefixes_continue_with_their_lines",
    "test_links_permissions_and_special_files",
    "test_a_line_that_failed_before_is_not_forgotten",
}
LINES = [*tiny.sentences(tiny.GERMAN, 7, longest=5), "", "der Hund"]


@pytest.fixture(scope="module")
def ckpt(tmp_path_factory) -> Path:
    return tiny.save(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def few_lines(monkeypatch) -> None:
    """Windows of two lines."""
    monkeypatch.setattr(line_stream, "WINDOW_LINES", 2)


def command(folder: Path, ckpt: Path, *more: str) -> list[str]:
    (folder / "in").write_text("\n".join(LINES) + "\n")
    given = ["--ckpt", str(ckpt), "--input", str(folder / "in"), "--output", str(folder / "out"), "--beam-size", "2"]
    return [*given, "--max-len-extra", "3", "--max-len-ratio", "1", *more]


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("more", [(), ("--n-best", "2"), ("--n-best", "2", "--format", "json", "--align")])
@pytest.mark.parametrize("stops", [0, 1, 3])
@pytest.mark.parametrize(
    "torn", [b"7\t-0.1\thalf of a li", bytes(4096), b"a whole line\n"], ids=["half", "zeros", "line"]
)
def test_the_output_is_the_same_as_without_an_interruption(tmp_path, ckpt, few_lines, monkeypatch, stops, more, torn):
    """Compare with a run without --resume; the interrupted run leaves half a line, or zeros after a power cut."""
    (tmp_path / "whole").mkdir()
    (tmp_path / "stopped").mkdir()
    assert translate.main(command(tmp_path / "whole", ckpt, *more)) == 0
    folder = tmp_path / "stopped"
    translated, calls = Translator.translate, []

    def stopping(self, lines, **options):
        calls.append(lines)
        if len(calls) > stops:
            raise KeyboardInterrupt
        return translated(self, lines, **options)

    monkeypatch.setattr(Translator, "translate", stopping)
    assert translate.main(command(folder, ckpt, "--resume", *more)) == 130
    assert names(folder) == {"in", "out.partial", "out.partial.json"}
    with open(folder / "out.partial", "ab") as file:
        file.write(torn)
    again = []
    monkeypatch.setattr(
        Translator, "translate", lambda self, lines, **o: again.extend(lines) or translated(self, lines, **o)
    )
    assert translate.main(command(folder, ckpt, "--resume", *more)) == 0
    assert names(folder) == {"in", "out"}
    assert (folder / "out").read_bytes() == (tmp_path / "whole" / "out").read_bytes()
    # No line is translated twice
    assert again == LINES[2 * stops :]


def test_prefixes_continue_with_their_lines(tmp_path, ckpt, few_lines, monkeypatch):
    (tmp_path / "prefixes").write_text("\n".join(f"the cat {i}" for i in range(len(LINES))) + "\n")
    translated, seen = Translator.translate, []

    def stopping(self, lines, **options):
        seen.append(options["prefixes"])
        if len(seen) == 3:
            raise KeyboardInterrupt
        return translated(self, lines, **options)

    monkeypatch.setattr(Translator, "translate", stopping)
    given = command(tmp_path, ckpt, "--resume", "--prefixes", str(tmp_path / "prefixes"))
    assert translate.main(given) == 130
    assert translate.main(given) == 0
    assert seen[3] == ["the cat 4", "the cat 5"]


def test_a_line_that_failed_before_is_not_forgotten(tmp_path, ckpt, few_lines, monkeypatch, capsys):
    """The status is 1 as without an interruption, and failed lines are not translated again."""
    translated, calls = Translator.translate, []

    def failing(self, lines, note, **options):
        calls.append(lines)
        if len(calls) == 2:
            raise KeyboardInterrupt
        if len(calls) == 1:
            note(Note.failed(1, "no room"))
        return translated(self, lines, note=note, **options)

    monkeypatch.setattr(Translator, "translate", failing)
    given = command(tmp_path, ckpt, "--resume")
    assert translate.main(given) == 130
    note = json.loads((tmp_path / "out.partial.json").read_text())
    assert (note["lines"], note["failed"]) == (2, [2])
    capsys.readouterr()
    assert translate.main(given) == 1
    assert f"1 of {len(LINES)} lines could not be translated" in capsys.readouterr().err


def test_the_note_is_written_once_per_window_after_its_output_is_on_the_disk(tmp_path, ckpt, few_lines, monkeypatch):
    """Writing the note after each of 4,000 failed lines took 85 seconds."""
    written, synced = [], []
    sync = os.fsync

    def syncing(descriptor):
        synced.append(os.fstat(descriptor).st_size)
        sync(descriptor)

    def writing(path, value):
        assert value["bytes"] == synced[-1] == (tmp_path / "out.partial").stat().st_size
        written.append((value["failed"], value["lines"]))
        write_json(path, value)

    def failing(self, lines, note, **options):
        # Parts of a line fail as one
        for position in [*range(len(lines)), 0]:
            note(Note.failed(position, "no room"))
        return [[TranslatedText("", -math.inf)] for _ in lines]

    monkeypatch.setattr(partial_output.os, "fsync", syncing)
    monkeypatch.setattr(partial_output, "write_json", writing)
    monkeypatch.setattr(Translator, "translate", failing)
    assert translate.main(command(tmp_path, ckpt, "--resume")) == 1
    ends = [min(begun + 2, len(LINES)) for begun in range(0, len(LINES), 2)]
    assert written == [([], 0), *(([*range(1, end + 1)], end) for end in ends)]


def test_links_permissions_and_special_files(tmp_path, ckpt, capsys):
    (tmp_path / "real").write_text("before\n")
    (tmp_path / "real").chmod(0o600)
    (tmp_path / "out").symlink_to("real")
    assert translate.main(command(tmp_path, ckpt, "--resume")) == 0
    assert (tmp_path / "out").is_symlink()
    assert len((tmp_path / "real").read_text().splitlines()) == len(LINES)
    assert (tmp_path / "real").stat().st_mode & 0o777 == 0o600
    assert names(tmp_path) == {"in", "out", "real"}
    (tmp_path / "out").unlink()
    os.mkfifo(tmp_path / "out")
    assert translate.main(command(tmp_path, ckpt, "--resume")) == 2
    assert "leave out --resume" in capsys.readouterr().err


def test_only_what_decides_the_output_must_stay(tmp_path, ckpt, few_lines, monkeypatch, capsys):
    """Other files of a run's folder may change; other weights are refused, and so is another setting of the search."""
    best = tmp_path / "run" / "checkpoints" / "best.safetensors"
    best.parent.mkdir(parents=True)
    best.write_bytes(ckpt.read_bytes())
    given = command(tmp_path, tmp_path / "run", "--resume")
    translated, calls = Translator.translate, []

    def stopping(self, lines, **options):
        calls.append(lines)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return translated(self, lines, **options)

    with monkeypatch.context() as stopped:
        stopped.setattr(Translator, "translate", stopping)
        assert translate.main(given) == 130
    (tmp_path / "run" / "train.log").write_text("a line\n")
    capsys.readouterr()
    assert translate.main([*given, "--length-penalty", "0.5", "--sentences", "keep"]) == 2
    error = capsys.readouterr().err
    assert 'was made with length_penalty 1.0, not 0.5; sentences "auto", not "keep": use' in error
    checkpoint.save(best, tiny.payload(seed=1))
    assert translate.main(given) == 2
    error = capsys.readouterr().err
    assert "was made with ckpt " in error
    assert len(error) - len(str(tmp_path)) < 150
    best.write_bytes(ckpt.read_bytes())
    assert translate.main(given) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: (folder / "in").write_text("another\n"), "out.partial was made with input "),
        (lambda folder: (folder / "out.partial.json").unlink(), "does not match out.partial.json"),
        (lambda folder: (folder / "out.partial.json").write_text("{"), "remove out.partial to start over"),
        # The note of an earlier version, and an output that has lost its end
        (lambda folder: (folder / "out.partial.json").write_text('{"made_by": {}, "failed": []}'), "earlier version"),
        (lambda folder: edit_note(folder, bytes=9), "does not match out.partial.json"),
        (lambda folder: edit_note(folder, lines="all"), "does not match out.partial.json"),
        (
            lambda folder: edit(folder, n_best=2),
            "out.partial was made with n_best 2, not 1: use the same, or remove it",
        ),
    ],
)
def test_an_output_made_with_other_options_is_not_continued(tmp_path, ckpt, monkeypatch, capsys, change, message):
    given = command(tmp_path, ckpt, "--resume")
    with monkeypatch.context() as stopped:
        stopped.setattr(Translator, "translate", interrupt)
        assert translate.main(given) == 130
    capsys.readouterr()
    # The output has a line, since an empty output would be started again
    (tmp_path / "out.partial").write_text("the dog\n")
    change(tmp_path)
    assert translate.main(given) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert (tmp_path / "out.partial").exists()


def interrupt(self, lines, **options):
    raise KeyboardInterrupt


def edit(folder: Path, **changes) -> None:
    made_by = json.loads((folder / "out.partial.json").read_text())["made_by"]
    edit_note(folder, made_by=made_by | changes)


def edit_note(folder: Path, **changes) -> None:
    path = folder / "out.partial.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_one_process_at_a_time(tmp_path):
    with (
        resumable_file(tmp_path / "out", made_by={}),
        pytest.raises(ValueError, match=r"out\.partial is being written by another process"),
        resumable_file(tmp_path / "out", made_by={}),
    ):
        pass


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--resume"], "needs --input FILE and --output"),
        (["--resume", "--input", __file__, "--output", "b", "--alignments", "c"], "--alignments"),
        (["--resume", "--input", "/dev/null", "--output", "b"], "/dev/null"),
    ],
)
def test_resume_needs_files_that_can_be_continued(capsys, more, message):
    with pytest.raises(SystemExit) as stopped:
        translate.main(["--ckpt", "x", *more])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


# The line of progress.


def test_the_progress_line_shows_share_rate_and_time_left():
    line = ProgressLine(30_000, done=2_000, stream=io.StringIO())
    line.done += 10_000
    assert line.text(25.0) == " 40%  12,000 of 30,000 lines  400.0 lines/s  0:00:45 left"
    line.done = 2_000
    assert line.text(0.0) == "  7%  2,000 of 30,000 lines  0.0 lines/s  ? left"


def test_lines_are_counted(tmp_path):
    for data, count in ((b"", 0), (b"a", 1), (b"a\n", 1), (b"a\n\nb", 3), (b"a\r\n" * 4, 4)):
        (tmp_path / "in").write_bytes(data)
        with open(tmp_path / "in", "rb") as file:
            assert count_lines(file) == count
            # The position of the file has not changed
            assert file.read() == data
            assert count_lines(file) == 0


def test_a_terminal_shows_it_and_a_file_does_not(tmp_path, ckpt, monkeypatch, capsys):
    assert translate.main(command(tmp_path, ckpt)) == 0
    assert "lines/s" not in capsys.readouterr().err
    ours, theirs = pty.openpty()
    with open(theirs, "w") as terminal:
        monkeypatch.setattr("sys.stderr", terminal)
        assert translate.main(command(tmp_path, ckpt)) == 0
        monkeypatch.undo()
        shown = os.read(ours, 1 << 16).decode()
    os.close(ours)
    first, *rest = shown.split("\r")[1:]
    assert f" of {len(LINES)} lines  " in first
    # The progress line is cleared before the last messages
    assert next(line for line in rest if "lines/s" not in line).startswith("\x1b[K")
