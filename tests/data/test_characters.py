"""Blank text: what shows nothing, in any script."""

import pytest

from seq2seq.data.text_files import is_blank


@pytest.mark.parametrize("text", ["", " \t", "\u00a0", "\u3000", "\u2028", "\u200b", "\ufeff", "\u200e \u200f", "\0"])
def test_text_that_shows_nothing_is_blank(text: str) -> None:
    assert is_blank(text)


@pytest.mark.parametrize("text", ["a", " .", "\u200bא", "\u0301", "।", "\ufffd", "👍"])
def test_text_that_shows_something_is_not(text: str) -> None:
    assert not is_blank(text)
