"""Moses and BPE: merges in the order of their ranks, fairseq's ids, words of pieces, and the state of a checkpoint."""

from __future__ import annotations

import json
import pickle

import pytest
from exported import need

from seq2seq.data.moses_bpe import MosesBpe, read_dictionary, read_merges
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.inference.encoding import source_pieces, target_ids
from seq2seq.inference.forced import words_of
from seq2seq.inference.parts import split
from seq2seq.search.words import Words

need("sacremoses")

MERGES = [("l", "o"), ("lo", "w</w>"), ("e", "r</w>"), ("lo", "w"), ("n", "e"), ("x", "x")]
WORDS = ["low", "lo@@", "w@@", "er", "low@@", "ne@@", ",", ".", "&apos;s", "xx@@", "x", "ab@@", "cd", "madeupword0000"]


def model(**changed) -> MosesBpe:
    return MosesBpe(**{"langs": ("de", "en"), "merges": MERGES, "words": WORDS} | changed)


@pytest.mark.parametrize(
    ("word", "pieces"),
    [
        ("low", "low"),
        ("lower", "low@@ er"),
        # (lo, w</w>) is for the end of a word only
        ("lowlow", "low@@ low"),
        # Of equal pairs the left ones first, without an overlap
        ("xxxy", "xx@@ x@@ y"),
        ("q", "q"),
        ("new", "ne@@ w"),
    ],
)
def test_pairs_are_merged_in_the_order_of_the_list(word, pieces):
    assert model().cut(word) == pieces.split()


def test_the_end_of_a_word_may_be_a_symbol_of_its_own():
    old = model(merges=[("o", "w"), ("ow", "</w>"), ("l", "ow</w>"), ("e", "r")], whole_ends=False)
    assert old.cut("low lower") == ["low", "l@@", "ow@@", "er"]


def test_long_words_are_merged_as_short_ones():
    assert model().cut("x" * 201 + "y") == ["xx@@"] * 100 + ["x@@", "y"]


def test_ids_are_fairseq_s_and_text_comes_back():
    tokenizer = Tokenizer(src_model=model().to_bytes())
    assert (tokenizer.bos_id, tokenizer.pad_id, tokenizer.eos_id, tokenizer.unk_id) == (2, 1, 2, 3)
    assert tokenizer.src_vocab_size == tokenizer.tgt_vocab_size == len(WORDS) + 4
    assert tokenizer.joint
    assert tokenizer.normalizer == "Moses"
    (row,) = tokenizer.encode_tgt(["low lower, low Q."])
    assert row == [4, 8, 7, 10, 4, 3, 11, 2]
    assert tokenizer.decode([[0, 1, *row, 4], []]) == ["low lower, low.", ""]
    assert tokenizer.encode_src(["", " "]) == [[2], [2]]


def test_each_side_has_the_rules_of_its_language():
    tokenizer = Tokenizer(src_model=model(langs=("en", "fr")).to_bytes())
    cut = [" ".join(side.cut("l'x")).replace("@@ ", "") for side in (tokenizer.src, tokenizer.tgt)]
    assert cut == ["l &apos;x", "l&apos; x"]


def test_a_state_restores_it_and_decides_the_fingerprint():
    tokenizer = Tokenizer(src_model=model().to_bytes(), tgt_model=model(words=WORDS[:-1]).to_bytes())
    again = Tokenizer.from_state(tokenizer.to_state())
    assert again.fingerprint == tokenizer.fingerprint != Tokenizer(src_model=model().to_bytes()).fingerprint
    assert again.tgt_vocab_size == again.src_vocab_size - 1
    assert again.encode_src(["lower"]) == tokenizer.encode_src(["lower"])
    # As processes that read data get it
    assert pickle.loads(pickle.dumps(tokenizer)).encode_src(["lower"]) == tokenizer.encode_src(["lower"])


def test_words_are_known_by_their_ends():
    tokenizer = Tokenizer(src_model=model().to_bytes())
    (row,) = tokenizer.encode_src(["lower low, abcd."])
    shown = source_pieces(tokenizer, row[:-1])
    assert shown[:4] == ["low", "er▁", "low▁", ",▁"]
    assert words_of(["low", "er▁", "low▁", ""]) == [[0, 1], [2]]
    japanese = ["▁", "東京", "に", "<0xE6>", "<0x9D>", "x", "▁y", ""]
    assert words_of(japanese) == [[0, 1, 2, 3, 4, 5], [6]]
    assert words_of(japanese, unspaced=True) == [[0, 1], [2], [3, 4, 5], [6]]
    assert tokenizer.src.decode(["low", "er▁", "low▁"]) == "lower low"
    assert target_ids(tokenizer, ["low", "low▁"]) == (8, 4)
    words = Words.of(shown)
    assert {0, 1, 2} & words.unended == {0}
    assert {0, 1, 2} & words.going_on == {0, 1, 2}
    # A long sentence is cut after a clause, else between words
    assert split(tokenizer, [8, 7, 4, 10, 8, 7], 5) == [[8, 7, 4, 10], [8, 7]]
    assert split(tokenizer, [8, 7, 8, 7, 8, 7], 3) == [[8, 7], [8, 7], [8, 7]]


def test_files_of_codes():
    assert read_merges("#version: 0.2\na b\nab c</w>\n") == ([("a", "b"), ("ab", "c</w>")], True)
    assert read_merges("a b\r\nab </w>\r\n") == ([("a", "b"), ("ab", "</w>")], False)
    # fastBPE
    assert read_merges("a b 10\nab c</w> 9") == ([("a", "b"), ("ab", "c</w>")], True)
    with pytest.raises(ValueError, match="'a b c' is not two symbols"):
        read_merges("#version: 0.2\nx y\na b c\n")


@pytest.mark.parametrize("whole_ends", [True, False])
def test_codes_are_written_as_they_are_read(whole_ends):
    assert read_merges(model(whole_ends=whole_ends).codes()) == (MERGES, whole_ends)


def test_dictionaries():
    assert read_dictionary("the 5\nof@@ 3\nthe 1 #fairseq:overwrite\nmadeupword0000 0\n") == [
        "the",
        "of@@",
        "the",
        "madeupword0000",
    ]
    # Of equal words the last counts
    assert model(words=["a", "b", "a"]).ids["a"] == 6
    with pytest.raises(ValueError, match="is not a word and its count"):
        read_dictionary("the\n")


@pytest.mark.parametrize("damage", [b"{", b"{}", b'{"format": "moses-bpe 2"}', b"{" * 100_000])
def test_damaged_models_are_refused_in_one_line(damage):
    with pytest.raises(ValueError, match="not a model of Moses and BPE") as caught:
        MosesBpe.from_bytes(damage)
    assert "\n" not in str(caught.value)


def test_wrong_merges_are_refused():
    stored = json.loads(model().to_bytes()) | {"merges": ["a b c"]}
    with pytest.raises(ValueError, match="not a model of Moses and BPE"):
        MosesBpe.from_bytes(json.dumps(stored).encode())


def test_segmentations_are_not_sampled():
    with pytest.raises(ValueError, match="sampling_alpha"):
        Tokenizer(src_model=model().to_bytes(), sampling_alpha=0.1)
