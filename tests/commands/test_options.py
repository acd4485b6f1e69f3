"""Options that a command does not have: one line that names those it has."""

from __future__ import annotations

import pytest

from seq2seq import score, translate


@pytest.mark.parametrize(
    ("command", "words", "near"),
    [
        (translate, ["--ckpt", "x", "--nbest", "3"], "there is no --nbest; did you mean --n-best"),
        (translate, ["--ckpt", "x", "--beam=3"], "there is no --beam; did you mean --beam-size"),
        (translate, ["--ckp", "x"], "there is no --ckp; did you mean --ckpt"),
        (score, ["--ckpt", "x", "--beam", "3"], "there is no --beam; did you mean --beam-size"),
    ],
)
def test_an_unknown_option_is_told_with_what_is_like_it(command, words, near, capsys):
    with pytest.raises(SystemExit) as end:
        command.main(words)
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert near in error
    assert error.count("\n") == 1
