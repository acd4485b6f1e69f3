"""Tokenizers: training, sizes that work, round trips, special ids, sampling, normalization, the checkpoint state."""

from __future__ import annotations

import io
import random
import re
import subprocess
import sys
import tempfile
import unicodedata
from dataclasses import replace

import pytest
import sentencepiece as spm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from seq2seq.data.tokenizer import Tokenizer, load_tokenizer, reservoir, train_tokenizer
from seq2seq.settings.tokenizer import TokenizerSettings


def sentences(syllables: str, seed: int) -> list[str]:
    """600 sentences over 400 invented words."""
    rng = random.Random(seed)
    words = ["".join(rng.choices(syllables.split(), k=rng.randint(1, 4))) for _ in range(400)]
    return [" ".join(rng.choices(words, k=rng.randint(2, 9))).capitalize() + "." for _ in range(600)]


DE = sentences("au ber che dorf ein fen gar hau in je kop lich mun nen ost pfer ra schu tel ung wal zu", 1)
EN = sentences("able ba con day east fi gr hill ing ly mo ness or pre ry sky th under vi way yel zo", 2)
SMALL = TokenizerSettings(vocab_size=120, byte_fallback=False)


def train(options, src=DE, tgt=EN):
    return train_tokenizer(src_lines=src, tgt_lines=tgt, settings=options)


@pytest.fixture(scope="module")
def joint():
    return train(replace(SMALL, vocab_size=400, byte_fallback=True, sampling_alpha=0.2))


@pytest.fixture(scope="module")
def separate():
    return train(replace(SMALL, joint=False))


def test_special_ids_are_fixed(joint, separate):
    for tokenizer in (joint, separate):
        assert (tokenizer.pad_id, tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id) == (0, 1, 2, 3)
    assert joint.src is joint.tgt
    assert joint.joint
    assert joint.src_vocab_size == joint.tgt_vocab_size == 400
    assert separate.src is not separate.tgt
    assert separate.src_vocab_size == separate.tgt_vocab_size == 120


def test_round_trip_and_eos(joint):
    ids = joint.encode_tgt(EN[:50])
    assert all(row[-1] == 3 and 3 not in row[:-1] for row in ids)
    assert joint.decode(ids) == EN[:50]
    assert joint.encode_src([]) == []
    assert joint.decode([]) == []
    assert joint.encode_src([""]) == [[3]]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(alphabet=st.characters(codec="utf-8"), max_size=40), max_size=5))
def test_any_text_encodes_and_decodes_to_one_line_each(joint, lines):
    decoded = joint.decode(joint.encode_tgt(lines))
    assert len(decoded) == len(lines)
    assert not any(re.search("[\n\r\v\f\x85\u2028\u2029]", line) for line in decoded)


def test_decode_stops_at_eos_and_drops_special_ids(joint):
    row = joint.encode_tgt(["The dog sees."])[0]
    assert joint.decode([[2, *row, 50, 60]]) == ["The dog sees."]
    assert joint.decode([[0, 1, 2, *row[:-1], 0]]) == ["The dog sees."]
    assert joint.decode([[3], [], [0, 0]]) == ["", "", ""]
    newline = joint.tgt.piece_to_id("<0x0A>")
    body = joint.encode_tgt(["dog"])[0][:-1]
    assert joint.decode([[*body, newline, *body]]) == ["dog  dog"]


def test_training_is_deterministic(joint):
    again = train(replace(SMALL, vocab_size=400, byte_fallback=True))
    assert again.fingerprint == joint.fingerprint  # sampling changes no ids of the best segmentation
    other = train(replace(SMALL, vocab_size=400, byte_fallback=True, normalizer="nfkc"))
    assert other.fingerprint != joint.fingerprint


def test_a_sample_of_lines_is_drawn_by_seed():
    few = replace(SMALL, vocab_size=80, input_sentence_size=150)
    first, again, other = train(few), train(few), train(replace(few, seed=2))
    assert first.fingerprint == again.fingerprint != other.fingerprint


def test_a_sample_is_drawn_from_the_whole_text_alike():
    """A third of 1000 lines is from the first third, within 5 standard deviations."""
    kept = reservoir(map(str, range(196_608)), 1000, 1)
    assert len(set(kept)) == 1000
    assert abs(sum(int(line) < 65_536 for line in kept) - 333) < 75


@pytest.mark.parametrize(
    ("lines", "rare"),
    [pytest.param(4000, "ж", id="rare"), pytest.param(20, "ж " * 2000, id="in a long line")],
)
def test_a_coverage_of_one_leaves_no_character_out(lines, rare):
    text = ["a b c d e"] * lines + [rare]
    tokenizer = train(TokenizerSettings(vocab_size=11, byte_fallback=False, character_coverage=1.0), text, text)
    assert tokenizer.unk_id not in tokenizer.encode_tgt(["ж"])[0]


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize("byte_fallback", [False, True])
@pytest.mark.parametrize("joint", [False, True])
def test_too_large_a_vocabulary_names_a_size_that_works(kind, byte_fallback, joint):
    asked = TokenizerSettings(type=kind, byte_fallback=byte_fallback, joint=joint, vocab_size=9000)
    with pytest.raises(ValueError, match=r"for data\.vocab_size=9000 .*the largest size that works is") as error:
        train(asked, DE[:90], EN[:90])
    largest = int(re.search(r"works is (\d+)", str(error.value))[1])  # type: ignore[index]
    assert train(replace(asked, vocab_size=largest), DE[:90], EN[:90]).src_vocab_size == largest
    with pytest.raises(ValueError, match="too small"):
        train(replace(asked, vocab_size=largest + 1), DE[:90], EN[:90])


def test_too_small_a_vocabulary_and_no_text_are_explained():
    with pytest.raises(ValueError, match="single characters and special pieces alone need"):
        train(replace(SMALL, vocab_size=10))
    with pytest.raises(ValueError, match="no text to train"):
        train(SMALL, ["", " "], ["", " "])


def test_byte_fallback_keeps_unseen_characters(joint):
    assert joint.decode(joint.encode_tgt(["The 貓 sees 😀."])) == ["The 貓 sees 😀."]
    without = train(SMALL)
    assert without.unk_id in without.encode_src(["貓"])[0]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\xe8\xb2\x93", "貓"),
        (b"\xe8\xb2", ""),
        (b"\xb2\x93\xe8\xb2\x93", "貓"),
        (b"\xe8\xb2\xe8\xb2\x93\xff", "貓"),
        (b"\xed\xa0\x80", ""),
        (b"\xc3A\xc3\xa9", "Aé"),
        (b"\0A\x1b[\x03\x1c\x7f\xc2\x9bB", "A[B"),
        (b"A\tB\xc2\x85\rC\xe2\x80\xa8", "A\tB  C "),
    ],
)
def test_bytes_that_make_no_text_are_not_printed(joint, data, text):
    """Whole characters stay; parts of characters, surrogates, and control characters but tabs are dropped."""
    dog = joint.encode_tgt(["dog"])[0][:-1]
    stray = [joint.tgt.piece_to_id(f"<0x{byte:02X}>") for byte in data]
    assert joint.decode([[*dog, *stray, *dog]]) == [f"dog{text} dog"]
    assert joint.decode([stray]) == [text]


def test_normalizer_is_a_visible_choice():
    text = "ﬁne ½ ａ"
    wide = [*EN, text]
    identity = train(replace(SMALL, byte_fallback=True, vocab_size=400), wide, wide)
    nfkc = train(replace(SMALL, byte_fallback=True, vocab_size=400, normalizer="nfkc"), wide, wide)
    assert identity.decode(identity.encode_tgt([text])) == [text]
    assert nfkc.decode(nfkc.encode_tgt([text])) == ["fine 1⁄2 a"]


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_sampling_follows_the_seed_and_keeps_the_text(kind):
    tokenizer = train(replace(SMALL, type=kind, sampling_alpha=0.3))
    best = tokenizer.encode_tgt(EN[:100])
    one, two, three = (tokenizer.encode_tgt(EN[:100], seed=seed) for seed in (5, 5, 6))
    assert one == two != three
    assert one != best
    assert tokenizer.decode(one) == EN[:100]
    assert tokenizer.encode_tgt(EN[:100]) == best


def test_sampling_by_a_model_that_has_one_segmentation_is_refused():
    """SentencePiece samples nothing from models of words and characters, so that all sentences would be empty."""
    state = train(replace(SMALL, type="word")).to_state()
    with pytest.raises(ValueError, match="sampling_alpha"):
        Tokenizer.from_state(state | {"sampling_alpha": 0.1})


def test_marks_are_control_symbols():
    """A user-defined symbol is a piece of any text, so that a context could not be told from it."""
    model = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(EN), model_writer=model, vocab_size=60, user_defined_symbols=["<sep>"], pad_id=3
    )
    with pytest.raises(ValueError, match="--control_symbols=<sep>"):
        Tokenizer(src_model=model.getvalue()).tag_ids(["<sep>"])


def test_the_draw_of_a_single_line_follows_its_seed_alone():
    tokenizer = train(replace(SMALL, sampling_alpha=0.3))

    def draw(line: str, seed: int) -> list[list[int]]:
        return tokenizer.encode_tgt([line], seed=seed)

    first = [draw(line, seed=3) for line in EN[:50]]
    draw(EN[0], seed=4)
    assert [draw(line, seed=3) for line in EN[:50]] == first
    # The same result as next to other lines
    assert first[0] == tokenizer.encode_tgt(EN[:5], seed=3)[:1]


def test_sampling_is_the_same_in_every_process(tmp_path):
    """SentencePiece seeds its generator only by the seed; from 0.2.2 on, also by the process."""
    (tmp_path / "model").write_bytes(train(SMALL).to_state()["src_model"])
    code = (
        "import sys; from pathlib import Path; from seq2seq.data.tokenizer import Tokenizer; "
        "t = Tokenizer(src_model=Path(sys.argv[1]).read_bytes(), sampling_alpha=0.3); "
        "print(t.encode_src(sys.argv[2:], seed=5))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "model"), *DE[:20]]
    other = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    here = Tokenizer(src_model=(tmp_path / "model").read_bytes(), sampling_alpha=0.3)
    assert str(here.encode_src(DE[:20], seed=5)) == other.rstrip()
    assert len(other) > 200


@pytest.mark.parametrize("version", ["0.2.2", "0.2.10", "0.3.0", "1.0.0"])
def test_sampling_that_no_seed_repeats_is_refused(version, monkeypatch):
    tokenizer = Tokenizer(src_model=train(SMALL).to_state()["src_model"], sampling_alpha=0.3)
    monkeypatch.setattr(spm, "__version__", version)
    with pytest.raises(ValueError, match=r"sentencepiece<0\.2\.2"):
        tokenizer.encode_src(DE[:2], seed=5)
    assert tokenizer.encode_src(DE[:2])


def test_state_goes_through_a_weights_only_checkpoint(joint, separate, tmp_path):
    for tokenizer in (joint, separate):
        torch.save({"tokenizer": tokenizer.to_state()}, tmp_path / "c.pt")
        state = torch.load(tmp_path / "c.pt", weights_only=True)["tokenizer"]
        again = Tokenizer.from_state(state)
        assert again.fingerprint == tokenizer.fingerprint
        assert again.encode_src(DE[:9]) == tokenizer.encode_src(DE[:9])
        assert again.sampling_alpha == tokenizer.sampling_alpha
    with pytest.raises(ValueError, match="not a tokenizer state"):
        Tokenizer.from_state({"format": 7})


def ready(**options):
    model = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(EN + DE), model_writer=model, vocab_size=100, minloglevel=2, **options
    )
    return model.getvalue()


def test_ready_models_keep_their_own_ids(tmp_path):
    path = tmp_path / "ready.model"
    path.write_bytes(ready())  # SentencePiece's defaults: unk 0, bos 1, eos 2, no pad
    tokenizer = load_tokenizer(TokenizerSettings(model=str(path)))
    assert (tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id) == (0, 1, 2, 100)
    assert tokenizer.src_vocab_size == tokenizer.tgt_vocab_size == 101
    assert tokenizer.decode([[*tokenizer.encode_tgt([EN[0]])[0], 100]]) == [EN[0]]
    no_bos = Tokenizer(src_model=ready(bos_id=-1, eos_id=1))
    assert (no_bos.eos_id, no_bos.pad_id, no_bos.bos_id, no_bos.src_vocab_size) == (1, 100, 101, 102)


def test_wrong_models_are_refused(tmp_path, separate):
    other = ready(pad_id=3)
    with pytest.raises(ValueError, match="unk_id"):
        Tokenizer(src_model=separate.to_state()["src_model"], tgt_model=other)
    path = tmp_path / "x.model"
    path.write_bytes(b"no model")
    with pytest.raises(ValueError, match="not a SentencePiece model"):
        load_tokenizer(TokenizerSettings(model=str(path)))


def test_the_normaliser_is_read_from_the_model_itself(joint, separate):
    assert joint.normalizer == separate.normalizer == "identity"
    folded = train(replace(SMALL, joint=False, normalizer="nmt_nfkc_cf")).to_state()
    mixed = Tokenizer(src_model=separate.to_state()["src_model"], tgt_model=folded["tgt_model"])
    assert mixed.normalizer == "identity / nmt_nfkc_cf"


@pytest.mark.parametrize("change", [{"src_model": 10**12}, {"joint": None}, {"tgt_model": "text"}])
def test_a_state_of_wrong_types_is_refused_before_anything_is_made_of_it(separate, change):
    with pytest.raises(ValueError, match="wrong type"):
        Tokenizer.from_state({**separate.to_state(), **change})


SCRIPTS = "Größe, Čeština, Tiếng Việt rộng, 한국어 문장, ελληνικά ώ, हिन्दी क़, がぎぐ, Ångström Ω, ạ̀"


def test_nfc_composes_characters_and_changes_nothing_else():
    text = f"{SCRIPTS} ﬁne ½ ａ ﷺ"
    tokenizer = train(replace(SMALL, byte_fallback=True, vocab_size=400, normalizer="nfc"))
    composed = unicodedata.normalize("NFC", text)
    forms = [composed, unicodedata.normalize("NFD", text), "A\u030angstro\u0308m", "e\u0302\u0323", "\u212b"]
    ids = tokenizer.encode_tgt(forms)
    assert ids[0] == ids[1]
    assert tokenizer.decode(ids) == [composed, composed, "Ångström", "ệ", "Å"]
    assert tokenizer.normalizer == "nfc"


def test_nfc_is_that_of_unicode_for_every_character():
    model = train(replace(SMALL, byte_fallback=True, vocab_size=400, normalizer="nfc")).tgt
    # Assigned, and text: ▁ and white space are SentencePiece's own
    known = [c for c in map(chr, range(0x20000)) if unicodedata.category(c)[0] not in "CZ" and c != "▁"]
    for form in ("NFC", "NFD"):
        texts = [f"x{unicodedata.normalize(form, character)}" for character in known]
        assert model.normalize(texts) == [unicodedata.normalize("NFC", f"▁x{character}") for character in known]


def test_a_tokenizer_of_nfc_is_the_same_every_time(tmp_path, monkeypatch):
    settings = replace(SMALL, byte_fallback=True, vocab_size=400, normalizer="nfc")
    one = train(settings)
    # The rules' file has another name
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert train(settings).to_state() == one.to_state()
    assert Tokenizer.from_state(one.to_state()).normalizer == "nfc"
    assert str(tmp_path).encode() not in one.to_state()["src_model"]


def test_long_lines_that_are_skipped_take_no_memory():
    """SentencePiece skips them, so that a stand-in gives the same sample and the same model."""
    lines = ["ein Hund bellt", "x" * 100_000, "eine Katze schläft"] * 20
    sample = reservoir(lines, 60, 1)
    assert [line if len(line) < 1000 else "" for line in sample] == [line if len(line) < 1000 else "" for line in lines]
    assert len({id(line) for line in sample if len(line) > 16_384}) == 1


def test_a_piece_is_a_word_if_asked():
    """Each word is one piece, and another word is unknown. Bytes, which keep a mark, and empty samples are refused."""
    names = ["cat", "maple_tree", "dog", "cat dog"] * 3
    options = TokenizerSettings(type="word", vocab_size=100, byte_fallback=False, character_coverage=1.0)
    words = train_tokenizer(src_lines=names, tgt_lines=names, settings=options)
    assert words.tgt_vocab_size == 7  # the words, and four special pieces
    assert [len(row) for row in words.encode_tgt(["maple_tree", "dog", "dog cat"])] == [2, 2, 3]
    assert words.decode(words.encode_tgt(["maple_tree", "dog cat", "do"])) == ["maple_tree", "dog cat", ""]
    with pytest.raises(ValueError, match=r"set tokenizer.byte_fallback=false"):
        replace(options, byte_fallback=True)
    with pytest.raises(ValueError, match=r"sampling_alpha=0.1: .*set it to 0"):
        replace(options, sampling_alpha=0.1)
