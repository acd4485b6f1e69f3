"""Options, exit statuses and checks of outputs, which all commands share."""

from __future__ import annotations

import argparse
import signal
from pathlib import Path

import pytest

from seq2seq import average, draw
from seq2seq.options import command_line


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("text", ["-1", "11", "", "x", "nan", "inf", "1e999", "9" * 5000])
@pytest.mark.parametrize("parse", [command_line.whole_number(1, 10), command_line.number(0, 10)])
def test_numbers_out_of_range_are_refused(parse, text):
    with pytest.raises(argparse.ArgumentTypeError, match=r"is not a (whole )?number from [01] to 10") as refused:
        parse(text)
    assert len(str(refused.value)) < 200


def test_numbers_in_range():
    assert [command_line.whole_number(1, 10)(text) for text in ("1", "10")] == [1, 10]
    assert [command_line.number(0, 10)(text) for text in ("0", "1e1", "2.5")] == [0.0, 10.0, 2.5]
    with pytest.raises(argparse.ArgumentTypeError):
        command_line.whole_number(1, 10)("1.5")


def test_two_dashes_are_no_value(capsys):
    with pytest.raises(SystemExit) as stop:
        average.main(["--last=--"])
    assert stop.value.code == 2
    assert "--last=--" in capsys.readouterr().err


def test_a_check_of_a_folder_changes_nothing(tmp_path):
    wanted = tmp_path / "a" / "b" / "c"
    assert command_line.require_folder(wanted) == wanted
    assert names(tmp_path) == []
    for folder in (Path("/proc/nothing"), Path("/dev/null/below")):
        with pytest.raises(ValueError, match=f"--out={folder} cannot be written"):
            command_line.require_folder(folder)


def test_a_folder_with_other_files_is_refused(tmp_path):
    """An earlier output may be replaced; a folder with only one of its files is not an output."""
    files = ("train.png64", "train.en")
    (tmp_path / "train.en").write_text("a corpus of images has more files than this one\n")
    with pytest.raises(ValueError, match=r"has a file train\.en that is not an output of this command"):
        command_line.require_folder(tmp_path, files=files)
    (tmp_path / "train.png64").touch()
    assert command_line.require_folder(tmp_path, files=files) == tmp_path


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--corpus", "/proc/x"], "--corpus=/proc/x cannot be written"),
        (["--corpus", "{others}"], "has a file test.en that is not an output"),
        (["--corpus", ""], "argument --corpus: the name is empty"),
        (["--height", "9" * 12], "is not a whole number from 1 to 4,096"),
        (["--width", "0"], "is not a whole number from 1 to 4,096"),
        (["--train", "9" * 12], "is not a whole number from 1 to 10,000,000"),
        (["--digits", "{others}/digits", "--letters", "5"], "--letters has no effect with --digits"),
        (["--digits", "{others}/digits", "--height", "8"], "--height has no effect with --digits"),
        (["--held-out", "9"], "--held-out has no effect without --corpus"),
    ],
)
def test_refusals_of_draw(tmp_path, capsys, options, message):
    (tmp_path / "test.en").write_text("of a corpus\n")
    try:
        status = draw.main([option.format(others=tmp_path) for option in options])
    except SystemExit as stopped:
        status = stopped.code
    error = capsys.readouterr().err
    assert (status, error.count("\n")) == (2, 1)
    assert message in error
    assert names(tmp_path) == ["test.en"]


def test_average_replaces_only_checkpoints(tmp_path, capsys):
    out = tmp_path / "train.de"
    out.write_text("a corpus\n")
    assert average.main(["--out", str(out), str(tmp_path / "a.safetensors")]) == 2
    assert "exists and is not a checkpoint" in capsys.readouterr().err
    assert out.read_text() == "a corpus\n"


@pytest.fixture
def parser():
    result = command_line.Parser(prog="x", description=None, epilog="")
    result.add_argument("--count", type=command_line.positive, default=1)
    result.add_argument("--names", nargs="+")
    return result


@pytest.mark.parametrize("words", [["--count=0"], ["--count=", "x"], ["--coun=1"]])
def test_a_wrong_option_is_one_line_that_names_it(parser, words, capsys):
    with pytest.raises(SystemExit) as end:
        parser.parse_args(words)
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words[0].partition("=")[0] in line
    assert ("did you mean --count" in line) == (words == ["--coun=1"])


def test_words_after_a_separator_are_still_taken(parser):
    parser.add_argument("files", nargs="*")
    assert parser.parse_args(["--count", "2", "--", "--a"]).files == ["--a"]


def test_an_interruption_outside_the_work_is_one_line_too(monkeypatch, capsys):
    """An interruption outside of the work is, for example, one while options are parsed."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)

    def main():
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as end:
        command_line.run_command(main)
    assert end.value.code == 130
    assert capsys.readouterr().err == "error: interrupted\n"
