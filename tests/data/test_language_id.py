"""Test the identification of languages."""

from __future__ import annotations

import sys

import pytest

from seq2seq.data import language_id
from seq2seq.data.language_id import other_language
from seq2seq.system.packages import MissingPackageError


# Reading the model takes seconds
@pytest.mark.slow
def test_a_language_by_its_probability():
    pytest.importorskip("py3langid")
    for text, expected in (
        ("Der Mann schläft auf dem Sofa.", "de"),
        ("A man sleeps on the sofa in the kitchen.", "en"),
        ("これはペンです", "ja"),
    ):
        assert other_language(text, "fr") == expected
        assert other_language(text, "fr", least=1.01) is None
    # A word or a name is in no language for certain
    assert other_language("Obama", "fr", least=0.1) is None
    assert other_language("", "fr", least=0.0) is other_language("12 + 3 = 15", "fr", least=0.0) is None


@pytest.mark.slow
def test_only_confident_differences_count():
    pytest.importorskip("py3langid")
    english = "A man sleeps on the sofa in the kitchen."
    assert other_language(english, "de") == other_language(english, "deu_Latn") == "en"
    assert other_language(english, "en-GB") is None
    for short in ("ok", "Hello world", "Berlin 2024", "Madame Bovary"):
        assert other_language(short, "de") is None
    # A language that the package does not know cannot be told from others
    assert other_language(english, "tlh") is None


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "py3langid", None)
    monkeypatch.setitem(sys.modules, "py3langid.langid", None)
    language_id._identifier.cache_clear()
    with pytest.raises(MissingPackageError, match="py3langid"):
        language_id._identifier()
    assert other_language("Guten Morgen, liebe Leute.", "en") is None
