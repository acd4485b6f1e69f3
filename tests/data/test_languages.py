"""The table of language codes: which language a code stands for, and whether its script has spaces."""

from __future__ import annotations

import pytest

from seq2seq.data.languages import bcp47, has_spaces, primary_subtag
from seq2seq.data.text_checks import looks_swapped
from seq2seq.metrics.scorers import tokenize_for

CHINESE = "zh ZH-cn zh_TW zho_Hans zho cmn chi cn zht zhs chs cht chinese yue yue_Hant wuu lzh nan hak gan zh-min-nan"
BY_CHARACTER = "th tha lo lao km khm kh my mya bur mm bo bod tib dzo shn_Mymr mya_Mymr dzo_Tibt thai"
SPACED = "de en deu ger cs cz vi vie_Latn zh-Latn nan_Latn ja_Latn kr ch tw la xx und pnb_Arab"


@pytest.mark.parametrize("code", CHINESE.split())
def test_chinese_by_any_of_its_codes(code):
    assert tokenize_for(code) == "zh"
    assert not has_spaces(code)


@pytest.mark.parametrize("code", BY_CHARACTER.split())
def test_scripts_without_spaces_are_scored_by_character(code):
    assert tokenize_for(code) == "char"
    assert not has_spaces(code)


@pytest.mark.parametrize("code", SPACED.split())
def test_scripts_with_spaces(code):
    assert tokenize_for(code) == "13a"
    assert has_spaces(code)


def test_japanese_and_korean():
    assert {tokenize_for(code) for code in ("ja", "jpn", "jp", "jpn_Jpan", "japanese")} == {"ja-mecab"}
    assert {tokenize_for(code) for code in ("ko", "kor", "ko-KR", "kor_Hang", "korean")} == {"ko-mecab"}
    assert not has_spaces("jp")
    assert has_spaces("ko")


def test_one_language_has_one_code():
    assert [primary_subtag(code) for code in ("deu", "ger", "de-AT", "deu_Latn", "cz", "xyz")] == [
        *["de"] * 4,
        "cs",
        "xyz",
    ]


def test_codes_of_pages_have_hyphens():
    codes = ("de", "en-GB", "eng_Latn", "zho_Hans", "pt_BR", "xyz_Latn")
    assert [bcp47(code) for code in codes] == ["de", "en-GB", "en-Latn", "zh-Hans", "pt-BR", "xyz-Latn"]


@pytest.mark.parametrize(("src", "tgt"), [("deu_Latn", "eng_Latn"), ("eng", "zho_Hans"), ("en", "cn"), ("en", "gan")])
def test_exchanged_sides_are_found_by_any_code(src, tgt):
    text = {"en": "this is the cat, and that is not a dog", "de": "das ist die Katze, und ich bin nicht der Hund"}
    text["zh"] = text["gan"] = "这是一只猫,那不是狗"
    sides = [[text[primary_subtag(code)]] * 9 for code in (src, tgt)]
    assert looks_swapped(*reversed(sides), src=src, tgt=tgt)
    assert not looks_swapped(*sides, src=src, tgt=tgt)
