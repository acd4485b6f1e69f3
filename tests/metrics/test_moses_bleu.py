"""BLEU as in papers, on Moses tokens with split compounds and without smoothing, against counts by hand."""

from __future__ import annotations

import math

import pytest

from seq2seq import score
from seq2seq.metrics.moses_bleu import check_convention, convention_bleu, split_compounds


def test_one_sentence_by_hand():
    """Hypothesis and reference tokens: The cat sat on the mat . / The cat sat on a mat ."""
    found = convention_bleu(["The cat sat on the mat."], ["The cat sat on a mat."], convention="tokenized", lang="en")
    # Matches among the 7, 6, 5 and 4 n-grams of the hypothesis; the lengths are equal
    expected = 100 * (6 / 7 * 4 / 6 * 2 / 5 * 1 / 4) ** 0.25
    assert found.value == pytest.approx(expected, abs=1e-9)
    assert "tok:moses-en" in found.signature
    assert found.name == "BLEU (tokenized)"


def test_compounds_count_as_words():
    """`a rich-text format .` has 4 tokens, or 6 after the split; the sides differ in one part of the compound."""
    pair = (["a good rich-text format."], ["a good poor-text format."])
    whole = convention_bleu(*pair, convention="tokenized", lang="en")
    assert whole.value == 0.0  # of 5 tokens no 4-gram without the compound
    split = convention_bleu(*pair, convention="compound-split", lang="en")
    # A good rich ##AT##-##AT## text format . : 6 of 7 words, 4 of 6 pairs, 2 of 5 triples, 1 of 4
    assert split.value == pytest.approx(100 * (6 / 7 * 4 / 6 * 2 / 5 * 1 / 4) ** 0.25, abs=1e-9)
    assert "split:compound" in split.signature


def test_brevity_penalty_is_over_the_corpus():
    """Two sentences, 4 + 8 tokens against 6 + 8: BP = exp(1 - 14 / 12)."""
    hypotheses = ["We are here.", "It rains a lot in the north."]
    references = ["We are here to stay.", "It rains a lot in the north."]
    found = convention_bleu(hypotheses, references, convention="tokenized", lang="en")
    precisions = (11 + 1) / 12 * (2 + 7) / 10 * (1 + 6) / 8 * (0 + 5) / 6
    assert found.value == pytest.approx(100 * math.exp(1 - 14 / 12) * precisions**0.25, abs=1e-9)


def test_case_is_ignored_on_demand():
    pair = (["THE CAT SAT DOWN."], ["the cat sat down."])
    assert convention_bleu(*pair, convention="tokenized", lang="en").value < 10
    assert convention_bleu(*pair, convention="tokenized", lang="en", lowercase=True).value == pytest.approx(100)


def test_tokens_depend_on_the_language():
    """French splits after an apostrophe, English before it: only French has the word accord."""
    pair = (["Je suis d'accord ici et partout."], ["Je suis en accord ici et partout."])
    french, english = (convention_bleu(*pair, convention="tokenized", lang=lang).value for lang in ("fr", "en"))
    assert french == pytest.approx(100 * (7 / 8 * 5 / 7 * 3 / 6 * 2 / 5) ** 0.25, abs=1e-9)
    assert english == pytest.approx(100 * (6 / 8 * 4 / 7 * 2 / 6 * 1 / 5) ** 0.25, abs=1e-9)


@pytest.mark.parametrize(
    ("line", "split"),
    [
        ("rich-text format", "rich ##AT##-##AT## text format"),
        ("one-two-three", "one ##AT##-##AT## two ##AT##-##AT## three"),
        ("a-b-c", "a ##AT##-##AT## b-c"),  # the match has eaten b, as in Perl
        ("Öl-Übung", "Öl ##AT##-##AT## Übung"),
        ("- no -- yes -", "- no -- yes -"),
        ("", ""),
    ],
)
def test_compounds_split_as_the_perl_line_did(line, split):
    assert split_compounds(line) == split


def test_languages_without_spaces_are_refused():
    with pytest.raises(ValueError, match="Moses makes no words of 'zh_CN'"):
        check_convention("tokenized", "zh_CN")


def test_score_prints_both(tmp_path, capsys):
    for name, text in (("out.de", "Ein Mehr-Wort-Satz steht hier.\n"), ("ref.de", "Ein Mehr-Wort-Satz stand hier.\n")):
        (tmp_path / name).write_text(text, encoding="utf-8")
    files = ["--hypotheses", str(tmp_path / "out.de"), "--references", str(tmp_path / "ref.de")]
    assert score.main([*files, "--lang", "de", "--convention", "compound-split", "--metrics", "bleu"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert "tok:13a" in first
    assert second.startswith("BLEU (compound-split)")
    with pytest.raises(SystemExit) as stopped:
        score.main([*files, "--convention", "tokenized"])
    assert stopped.value.code == 2
    assert "--convention needs --lang" in capsys.readouterr().err
