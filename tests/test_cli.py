"""What all commands share: options, exit statuses, and the end of an interrupted one."""

from __future__ import annotations

import signal

import pytest

from seq2seq import cli


@pytest.fixture
def parser():
    result = cli.Parser(prog="x", description=None, epilog="")
    result.add_argument("--count", type=cli.positive, default=1)
    result.add_argument("--names", nargs="+")
    return result


@pytest.mark.parametrize("words", [["--count=--"], ["--count=0"], ["--count=", "x"], ["--names=--"], ["--coun=1"]])
def test_a_wrong_option_is_one_line_that_names_it(parser, words, capsys):
    with pytest.raises(SystemExit) as end:
        parser.parse_args(words)
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words[0].partition("=")[0] in line


def test_words_after_a_separator_are_still_taken(parser):
    parser.add_argument("files", nargs="*")
    assert parser.parse_args(["--count", "2", "--", "--a"]).files == ["--a"]


def test_an_interruption_outside_the_work_is_one_line_too(monkeypatch, capsys):
    """While options are parsed, for example."""
    monkeypatch.setattr(cli, "fill_closed_descriptors", lambda: None)
    monkeypatch.setattr(signal, "signal", lambda *_: None)

    def main():
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as end:
        cli.run_command(main)
    assert end.value.code == 130
    assert capsys.readouterr().err == "error: interrupted\n"
