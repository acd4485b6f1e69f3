"""Checks of text: shifts, scripts, tokens and pieces, Unicode forms, blank lines."""

from __future__ import annotations

import logging
import re
import unicodedata

import numpy as np
import pytest

from seq2seq.data.cleaning import Pairs
from seq2seq.data.readers import text_pairs
from seq2seq.data.text_checks import (
    checked,
    find_shift,
    form_difference,
    script_language,
    tokenization_marks,
    warn_of_tokens,
)
from seq2seq.data.text_files import is_blank, warn_once

REPRESENTATIVE = {"test_aligned_text_is_not_warned_of": {"0.3"}}


def corpus(size: int, *, seed: int = 0, noise: float = 0.15) -> Pairs:
    """Lines whose lengths vary as in text; a translation is longer or shorter by some percent."""
    rng = np.random.default_rng(seed)
    lengths = rng.lognormal(3.7, 0.5, size)
    others = lengths * rng.lognormal(0.1, noise, size)
    src, tgt = ([f"{i:06d}{'x' * int(length)}" for i, length in enumerate(side)] for side in (lengths, others))
    return src, tgt


def shifted(pairs: Pairs, by: int, begin: int) -> Pairs:
    """Drop `by` lines of the target from line `begin` on, or -`by` of the source."""
    src, tgt = ([*side] for side in pairs)
    side, count = (tgt, by) if by > 0 else (src, -by)
    del side[begin : begin + count]
    size = min(len(src), len(tgt))
    return src[:size], tgt[:size]


@pytest.mark.parametrize("by", [1, -1, 3, -2, 10])
@pytest.mark.parametrize(
    ("size", "begin"), [(3000, 0), (3000, 400), (3000, 1234), (3000, 2700), (16_384, 12_000), (80, 0)]
)
def test_a_shift_is_told_with_its_beginning(by, size, begin):
    told = find_shift(*shifted(corpus(size + 10), by, begin), first=101)
    found = re.match(r"from about line ([\d,]+) on, the (\w+) seems to be (\d+) lines? behind", told)
    # If target lines are dropped, the translation of a line comes before it
    assert found, told
    assert (found[2], found[3]) == ("first" if by > 0 else "second", str(abs(by)))
    assert abs(int(found[1].replace(",", "")) - 101 - begin) <= 25


@pytest.mark.parametrize("noise", [0.1, 0.3, 0.6])
def test_aligned_text_is_not_warned_of(noise):
    for seed in range(20):
        src, tgt = corpus(4000, seed=seed, noise=noise)
        assert not find_shift(src, tgt)
        # Sorted by length, every shift fits as well
        order = sorted(range(len(src)), key=lambda i: len(src[i]))
        assert not find_shift([src[i] for i in order], [tgt[i] for i in order])
        # Long and short lines by turns, as in dialogues
        turns = [line * (1 + 4 * (i % 2)) for i, line in enumerate(src)]
        assert not find_shift(turns, [line * (1 + 4 * (i % 2)) for i, line in enumerate(tgt)])
        # Lines without a relation, as of labels
        assert not find_shift(src, [tgt[i] for i in np.random.default_rng(seed).permutation(len(tgt))])
    assert not find_shift(["x"] * 500, ["yy"] * 500)
    assert not find_shift([""] * 500, tgt)
    assert not find_shift(*shifted(corpus(40), 1, 0))
    assert not find_shift([], [])


def test_shifts_of_files_are_told_once_and_explain_other_counts(tmp_path, caplog):
    warn_once.cache_clear()
    pairs = shifted(corpus(60_000), 1, 40_000)
    src, tgt = tmp_path / "x.de", tmp_path / "x.en"
    src.write_text("".join(f"{line}\n" for line in pairs[0]))
    tgt.write_text("".join(f"{line}\n" for line in pairs[1]))
    blocks = list(checked(text_pairs(src, tgt), [str(src), str(tgt)], unit="line", training=True))
    assert sum(len(block[0]) for block in blocks) == len(pairs[0])
    (told,) = [record.message for record in caplog.records]
    line = int(re.search(r"x\.en: from about line ([\d,]+) on", told)[1].replace(",", ""))  # type: ignore[index]
    assert abs(line - 40_000) <= 25
    # A line that one file has too many of, at its beginning
    whole = corpus(500)
    src.write_text("title\n" + "".join(f"{line}\n" for line in whole[0]))
    tgt.write_text("".join(f"{line}\n" for line in whole[1]))
    with pytest.raises(ValueError, match=r"has 501 lines and .*has 500.*; from about line \d+ on, the first"):
        list(text_pairs(src, tgt))


TEXT = {
    "zh": "一个女人的头上有一个装满水的篮子。",
    "ja": "女性が頭の上に水の入った籠を載せている。",
    "ko": "한 여자가 머리에 물이 든 바구니를 이고 있다.",
    "th": "ผู้หญิงคนหนึ่งมีตะกร้าใส่น้ำอยู่บนศีรษะ",
    "lo": "ຜູ້ຍິງຄົນໜຶ່ງມີກະຕ່າໃສ່ນ້ຳ",
    "km": "ស្ត្រីម្នាក់មានកន្ត្រកទឹកនៅលើក្បាល",
    "my": "အမျိုးသမီးတစ်ဦး၏ခေါင်းပေါ်တွင်ရေတောင်း",
    "bo": "བུད་མེད་ཅིག་གི་མགོ་ལ་ཆུ་ཡི་སྒམ་ཞིག་ཡོད།",
}
RAW = ["A dog runs, doesn't it?", "Costs 5 < 6 & more @ home.", "", "x @@ y.", "AT&T 3.5 ...", "E-mail: a@b.c #1 ## 2"]


@pytest.mark.parametrize("language", TEXT)
def test_the_script_tells_the_language(language):
    lines = [TEXT[language], "", f"{TEXT[language]} (PyTorch 2.0)"]
    assert script_language(lines) == language
    assert script_language([unicodedata.normalize("NFD", line) for line in lines]) == language


def test_a_quotation_is_no_script():
    assert script_language(["The word 水 is read mizu (みず) in Japanese.", "Привет, мир"]) is None
    assert script_language(["", "123"]) is None


@pytest.mark.parametrize(
    ("line", "mark"),
    [
        ("a ba@@ sket of wa@@ ter", "'@@ '"),
        ("a wa@@", "'@@ '"),
        ("▁a ▁bas ket ▁of ▁water", "'▁'"),
        ("a b<0xC3><0xA4>sket", "'<0x41>'"),
        ("a bas ##ket", "##"),
        ("a bas ￭ket", "￭"),
        ("it &apos;s a &quot; basket &quot; .", "&apos;"),
        ("AT &amp; T", "&apos;"),
        ("a well @-@ made basket", "@-@"),
        ("a basket , of water .", "' .'"),
    ],
)
def test_marks_of_tokens_and_pieces(line, mark):
    found = tokenization_marks([*RAW[:3], line, line])
    assert found is not None
    assert mark in found
    assert "2 of 5" in found
    assert "line 4" in found


def test_raw_text_has_no_marks():
    assert tokenization_marks([*RAW[:3], *RAW[4:]]) is None
    assert tokenization_marks([]) is None
    # A few lines among many are text about tokens, or mistakes
    assert tokenization_marks(["A dog."] * 200 + ["x @@ y"]) is None
    assert tokenization_marks(["A dog."] * 95 + ["A dog .", "&amp;"] * 5) is None


def test_many_lines_are_a_mark_whatever_their_share():
    """The limit is sacreBLEU's."""
    assert tokenization_marks(["A dog."] * 3000 + ["A dog ."] * 99) is None
    assert "100 of 3,100" in str(tokenization_marks(["A dog."] * 3000 + ["A dog ."] * 100))


def test_a_corpus_is_warned_of_once(caplog):
    pairs = ["a dog ."] * 20, ["Ein Hund ."] * 20
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            warn_of_tokens(pairs, "a corpus of this test")
            warn_of_tokens((RAW[:3], RAW[:3]), "another")
    assert [record.message.split(":")[0] for record in caplog.records] == ["a corpus of this test"]


def test_a_difference_of_unicode_forms():
    composed = ["Größe über alles", "ein Café", "ohne"]
    decomposed = [unicodedata.normalize("NFD", line) for line in composed]
    assert "2 against 0" in str(form_difference(decomposed, composed))
    assert "0 against 2" in str(form_difference(composed, decomposed))
    assert "full-width" in str(form_difference(["ＡＢＣ１２"], ["ABC12"]))
    assert "half-width" in str(form_difference(["ｶﾀｶﾅ"], ["カタカナ"]))
    assert form_difference(decomposed, decomposed) is None
    assert form_difference(composed, ["Hund", "Katze", "Maus"]) is None
    # A system that uses a sign less often
    assert form_difference(["很好，是。"] * 4 + ["很好"] * 6, ["很好，是。"] * 8 + ["好"] * 2) is None


@pytest.mark.parametrize("text", ["", " \t", "\u00a0", "\u3000", "\u2028", "\u200b", "\ufeff", "\u200e \u200f", "\0"])
def test_text_that_shows_nothing_is_blank(text):
    assert is_blank(text)


@pytest.mark.parametrize("text", ["a", " .", "\u200bא", "\u0301", "।", "\ufffd", "👍"])
def test_text_that_shows_something_is_not(text):
    assert not is_blank(text)
