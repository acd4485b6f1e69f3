"""Extending a tokenizer: old pieces keep their ids, old text its pieces, and new pieces know what they consist of."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
import sentencepiece as spm
import tiny

from seq2seq.data.extension import extend_tokenizer, origins
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.settings.tokenizer import TokenizerSettings

GERMAN = tiny.sentences(tiny.GERMAN, 100, seed=1)
ENGLISH = tiny.sentences(tiny.ENGLISH, 200, seed=2)
WORDS = ["这个", "房子", "很", "小", "我们", "今天", "去", "那里", "不", "看见"]
CHINESE = [line.replace(" ", "") for line in tiny.sentences(WORDS, 200)]
FRENCH = tiny.sentences(["été", "élève", "très", "déjà", "forêt", "garçon", "the", "of", "dog"], 200)


def extended(old: Tokenizer, count: int, target: list[str] = CHINESE, **settings: Any) -> Tokenizer:
    given = TokenizerSettings(extend=count, **settings)
    return extend_tokenizer(old, src_lines=ENGLISH, tgt_lines=target, settings=given)


def pieces(model: spm.SentencePieceProcessor) -> list[str]:
    return [model.id_to_piece(i) for i in range(model.get_piece_size())]


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize("byte_fallback", [True, False])
def test_old_text_is_encoded_as_before_and_new_text_in_new_pieces(joint, kind, byte_fallback):
    old = tiny.tokenizer(joint=joint, type=kind, byte_fallback=byte_fallback, vocab_size=290 if byte_fallback else 34)
    new = extended(old, 40, symbols=("<2zh>",))
    assert extended(old, 40, symbols=("<2zh>",)).fingerprint == new.fingerprint
    for before, after in ((old.src, new.src), (old.tgt, new.tgt)):
        assert pieces(after)[: before.get_piece_size()] == pieces(before)
    assert new.encode_src(GERMAN) == old.encode_src(GERMAN)
    assert new.encode_tgt(ENGLISH) == old.encode_tgt(ENGLISH)
    # Characters that neither text has are cut as before, too
    assert new.encode_tgt(["a ж dog"]) == old.encode_tgt(["a ж dog"])
    added = pieces(new.tgt)[old.tgt.get_piece_size() :]
    assert set("".join(CHINESE)) - {"."} <= set(added)
    assert any(len(piece) > 1 for piece in added if piece != "<2zh>")
    ids = new.encode_tgt(CHINESE)
    assert new.decode(ids) == CHINESE
    assert set(chain.from_iterable(ids)).isdisjoint({new.unk_id, *new.byte_of})
    # A piece that can never be made would be a row for nothing
    assert {new.tgt.piece_to_id(piece) for piece in added if len(piece) == 2} & set(chain.from_iterable(ids))
    [tag] = new.tag_ids(["<2zh>"])
    assert tag == old.src.get_piece_size()
    assert new.src.is_control(tag)
    # Images and the other side have no tags
    assert ("<2zh>" in pieces(new.tgt)) is joint


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_new_pieces_of_the_same_script_have_a_new_character(kind):
    old = tiny.tokenizer(type=kind)
    new = extended(old, 30, FRENCH)
    added = pieces(new.tgt)[300:]
    assert added
    known = set("".join(piece for piece in pieces(old.tgt) if not piece.startswith("<")))
    assert not any(known.issuperset(piece) for piece in added)
    assert sum(map(len, new.encode_tgt(FRENCH))) < sum(map(len, old.encode_tgt(FRENCH)))
    # Fewer pieces than characters: the most frequent characters
    assert len(pieces(extended(old, 2, FRENCH).tgt)) == 302


def test_without_new_characters_only_missing_tags_are_added():
    old = tiny.tokenizer(symbols=("<2de>",))
    assert extended(old, 50, ENGLISH, symbols=("<2de>",)).to_state() == old.to_state()
    assert pieces(extended(old, 0, symbols=("<2de>", "<2zh>", "<bt>")).src)[300:] == ["<2zh>", "<bt>"]


def test_a_new_piece_stands_for_the_pieces_of_its_text():
    old = tiny.tokenizer(symbols=("<2de>", "<2nl>"))
    new = extended(old, 40, FRENCH, symbols=("<2fr>",))
    for rows in (found := origins(old, new)).values():
        assert rows[:300] == [[i] for i in range(300)]
        assert [old.src.id_to_piece(i) for i in rows[300]] == ["<2de>", "<2nl>"]
        assert [old.src.id_to_piece(i) for i in rows[new.src.piece_to_id("é")]] == ["<0xC3>", "<0xA9>"]
    assert len(found["src"]) == new.src_vocab_size
    assert origins(old, old) == {side: [[i] for i in range(300)] for side in ("src", "tgt")}
    # Without any tag: all rows
    plain = tiny.tokenizer()
    assert origins(plain, extended(plain, 0, symbols=("<2fr>",)))["src"][300] == range(300)


def test_special_ids_after_the_last_piece_keep_their_rows(tmp_path):
    """SentencePiece's own models have no pad; it moves behind the new pieces."""
    (tmp_path / "text").write_text("\n".join(ENGLISH))
    given = {"vocab_size": 40, "hard_vocab_limit": False, "minloglevel": 2}
    spm.SentencePieceTrainer.train(input=str(tmp_path / "text"), model_prefix=str(tmp_path / "own"), **given)
    old = Tokenizer(src_model=(tmp_path / "own.model").read_bytes())
    new = extended(old, 20)
    assert (old.pad_id, new.pad_id) == (old.src.get_piece_size(), new.src.get_piece_size())
    rows = origins(old, new)["tgt"]
    assert rows[new.pad_id] == [old.pad_id]
    assert len(rows) == new.tgt_vocab_size
    assert old.pad_id not in chain.from_iterable(rows[: new.pad_id])


def test_another_tokenizer_is_no_extension():
    old = tiny.tokenizer()
    for new, message in (
        (tiny.tokenizer(vocab_size=290), r"tokenizer\.model: piece 2\d\d is"),
        (tiny.tokenizer(joint=False, vocab_size=290), "the number of models"),
        (tiny.tokenizer(type="bpe"), r"tokenizer\.model: piece 2\d\d is"),
    ):
        with pytest.raises(ValueError, match=message):
            origins(old, new)
