"""Signs of how text is written: script, tokens and pieces, Unicode forms."""

from __future__ import annotations

import logging
import unicodedata

import pytest

from seq2seq.data.text_checks import form_difference, script_language, tokenization_marks, warn_of_tokens

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
    # A few lines of many are text about tokens, or slips
    assert tokenization_marks(["A dog."] * 200 + ["x @@ y"]) is None
    assert tokenization_marks(["A dog."] * 95 + ["A dog .", "&amp;"] * 5) is None


def test_many_lines_are_a_mark_whatever_their_share():
    """SacreBLEU's own limit."""
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
