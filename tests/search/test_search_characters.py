"""Byte pieces make whole characters: the automaton against Python's own decoder, the search against the textbook."""

from __future__ import annotations

import codecs
import itertools
import random

import hypothesis
import pytest
import tiny
import torch
from composed import EOS, VOCAB
from hypothesis import example, given
from hypothesis import strategies as st
from test_search import SPECIAL, assert_same, sharp, sources, stream, unpadded
from textbook_search import beam_search

from seq2seq.search import Constrained, Drawn, Source, search_stream
from seq2seq.search.characters import STATES, Characters, follow, needed
from seq2seq.settings.search import SearchSettings

# The byte pieces of a vocabulary of 23, in which pieces 4 to 9 are ordinary.
BYTES = (0x41, 0xC3, 0xA9, 0xE8, 0xB2, 0x93, 0xF0, 0x9F, 0x98, 0x80, 0xE0, 0xED, 0xFF)
BYTE_OF = dict(zip(range(10, VOCAB), BYTES, strict=True))
SPELLING = SPECIAL._replace(byte_of=BYTE_OF)
REPRESENTATIVE = {
    "test_the_search_is_the_textbooks": {"tight", "prefixes"},
    "test_everything_is_valid": {"transformer"},
}
ONE_LAYER = ("mixer=transformer", "model.encoder_layers=1", "model.decoder_layers=1")
# Options and, for each of three sentences, a prefix: whole, begun, damaged.
OPTIONS = {
    "plain": ({}, [[], [], []]),
    "greedy": ({"beam_size": 1, "n_best": 1}, [[], [], []]),
    "tight": ({"max_len_ratio": 0.0, "max_len_extra": 3}, [[], [13], [16, 17]]),
    "prefixes": ({}, [[13, 14, 15, 7], [16, 17], [13, 11, 15, 20, 19, 22, 13]]),
    "suppress": ({"suppress": (14, 17, 21)}, [[], [11], [20]]),
    "groups": ({"beam_groups": 2, "diversity": 1.3, "min_len": 2}, [[], [4], []]),
}


def fond_of_bytes(*overrides):
    """A model that writes bytes more often than not, and would leave most characters incomplete."""
    model = sharp(*(overrides or ONE_LAYER))
    with torch.no_grad():
        model.output.bias[10:] += 2.0
    return model


def text(ids) -> str:
    """The characters of byte pieces, by Python's strict decoder, and a letter for each other piece."""
    runs = itertools.groupby(ids, lambda token: token in BYTE_OF)
    return "".join(
        bytes(BYTE_OF[token] for token in run).decode() if are_bytes else "".join("abcdefghij"[token] for token in run)
        for are_bytes, run in runs
    )


LACKING = needed(range(256))
# Bytes that complete any character: the smallest bytes after E0, after F0, and after all other bytes
RESTS = [bytes(rest) for more in range(4) for rest in itertools.product([0x80, 0x90, 0xA0], repeat=more)]
# st.text would make Hypothesis read all of Unicode first
CODES = st.one_of(st.integers(0, 0xD7FF), st.integers(0xE000, 0x10FFFF))
TEXTS = st.lists(CODES, max_size=3).map(lambda codes: "".join(map(chr, codes)).encode())
HALVES = st.tuples(TEXTS, st.binary(max_size=4)).map(b"".join)


def decodes(data: bytes) -> bool:
    try:
        data.decode("utf-8", "strict")
    except UnicodeDecodeError:
        return False
    return True


def assert_like_python(data: bytes) -> bool:
    """Agree on whether data begins valid UTF-8, which is returned, whether it is valid, and how many bytes it lacks."""
    state: int | None = 0
    for byte in data:
        state = None if state is None else follow(state, byte)
    missing = next((len(rest) for rest in RESTS if decodes(data + rest)), None)
    assert (None if state is None else LACKING[state]) == missing
    assert (state == 0) == decodes(data)
    return state is not None


@given(st.one_of(st.binary(max_size=8), TEXTS, HALVES))
@example("\U0010ffff\ud7ff\ue000".encode())
@hypothesis.settings(max_examples=50)
def test_the_automaton_is_pythons_strict_decoder(data):
    begins = (data[:length] for length in range(len(data) + 1))
    assert all(map(assert_like_python, begins)) or not decodes(data)


def test_every_state_and_byte():
    """All 2,048 transitions, from a beginning of each state."""
    begins = [b"", b"\xc3", b"\xe8", b"\xf1", b"\xe0", b"\xed", b"\xf0", b"\xf4"]
    assert len(begins) == STATES
    for begin, byte in itertools.product(begins, range(256)):
        assert_like_python(begin + bytes([byte]))
    # E0 takes A0 or more, F0 takes 90 or more; no character is complete without continuation bytes
    assert needed([0x80]) == [0, 1, 2, 3, 5, 2, 5, 3]
    assert needed([]) == [0, *[5] * 7]


@pytest.mark.parametrize(("options", "prefixes"), OPTIONS.values(), ids=OPTIONS.keys())
def test_the_search_is_the_textbooks(options, prefixes):
    model, lengths = fond_of_bytes(), [5, 2, 4]
    src, _ = sources(*lengths)
    given = {"beam_size": 4, "n_best": 4, "max_len_ratio": 1.0, "max_len_extra": 3, **options}
    suppress = given.pop("suppress", ())
    settings = SearchSettings(**given)
    found = stream(model, unpadded(src, lengths, prefixes), settings, special=SPELLING, suppress=suppress)
    for row, length in enumerate(lengths):
        twin = beam_search(model, src[row : row + 1, :length], settings, prefixes[row], suppress, BYTE_OF)
        assert_same(found[row], twin)


@pytest.mark.parametrize("mixer", ["transformer", "dynamicconv"])
def test_everything_is_valid(mixer):
    """Translations are valid UTF-8, also in a stream of reused rows and for samples; without the rule most are not."""
    model, lengths = fond_of_bytes(f"mixer={mixer}"), [6, 5, 6, 3, 4, 2, 5, 1]
    src, _ = sources(*lengths)
    settings = SearchSettings(beam_size=6, n_best=6, max_len_ratio=1.0, max_len_extra=4)
    given = [source._replace(seed=seed) for seed, source in enumerate(unpadded(src, lengths))]
    for found in stream(model, given, settings, special=SPELLING):
        texts = [text(one.ids) for one in found]
        assert len(set(texts)) == len(texts) == 6
    how = {"settings": settings, "selection": Drawn(EOS, top_k=9)}
    drawn = stream(model, given, special=SPELLING, **how)
    assert any(set(one.ids) & set(BYTE_OF) for row in drawn for one in row)
    assert all(text(one.ids) is not None for row in drawn for one in row)
    damaged = 0
    for row in stream(model, given, special=SPECIAL, **how):
        for one in row:
            try:
                text(one.ids)
            except UnicodeDecodeError:
                damaged += 1
    assert damaged > 10


@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize("extra", [1, 3])
def test_phrases_are_whole_too(beam_size, extra):
    """A character begins only if there is room to complete it before or after the phrase."""
    model = fond_of_bytes()
    src, _ = sources(*[4] * 6)
    phrases = [[[13, 14, 15]], [[11, 12], [7]], [[16, 17, 18, 19, 5]], [[6, 13, 14, 15]], [[4], [11, 12]], []]
    given = [Source(ids, phrases=wanted) for ids, wanted in zip(src.tolist(), phrases, strict=True)]
    settings = SearchSettings(beam_size=beam_size, n_best=beam_size, max_len_ratio=0.0, max_len_extra=extra)
    how = {"settings": settings, "selection": Constrained(EOS), "rows": 3, "device": torch.device("cpu")}
    for number, found in itertools.chain.from_iterable(search_stream(model, given, special=SPELLING, **how)):
        assert found
        for one in found:
            assert text(one.ids) is not None
            assert all(text(phrase) in text(one.ids) for phrase in phrases[number])


def test_states_of_tokens():
    """After forced tokens, as in a prefix, a byte that cannot continue a character begins a new one."""
    characters = Characters(BYTE_OF, (), torch.device("cpu"))
    for _ in range(200):
        ids = random.choices([4, 5, *BYTE_OF], k=random.randint(1, 8))
        state = torch.tensor(0)
        for token in ids:
            state = characters.after(state, torch.tensor(token))
        decoder = codecs.getincrementaldecoder("utf-8")("ignore")
        for token in ids:
            decoder.decode(bytes([BYTE_OF[token]])) if token in BYTE_OF else decoder.reset()
        pending = decoder.getstate()[0]
        assert (state > 0) == bool(pending), ids
        # Ids far beyond the byte pieces
        assert characters.after(state, torch.tensor(10**6)) == 0


def test_the_translator_has_the_tokenizers_bytes():
    trained = tiny.tokenizer()
    assert sorted(trained.byte_of.values()) == list(range(256))
    assert all(trained.tgt.id_to_piece(piece) == f"<0x{byte:02X}>" for piece, byte in trained.byte_of.items())
