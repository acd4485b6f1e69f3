"""Test lines that are longer than the longest source: where they are split, and that nothing of them is lost."""

from __future__ import annotations

import dataclasses
import random

import pytest
import tiny

from seq2seq.config.search import SamplingSettings, SearchSettings
from seq2seq.inference import encoding
from seq2seq.inference.encoding import Note, encode_parts, split
from seq2seq.inference.search_jobs import Job, Part, join_parts, make_parts
from seq2seq.inference.translator import Translator
from seq2seq.search import Drawn, Hypothesis, Source


class Pieces:
    """Tokenizer whose ids are the pieces of a text."""

    def __init__(self, pieces: list[str]) -> None:
        self.src = self
        self.pieces = pieces

    def id_to_piece(self, number: int) -> str:
        return self.pieces[number]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        # After the last sentence that ends in the second half, with its closing quote
        ("▁a ▁b . ▁c ▁d ! » ▁e ▁f ▁g", ["▁a ▁b . ▁c ▁d ! »", "▁e ▁f ▁g"]),
        # A point inside a number or a name ends none; a comma is the next best
        ("▁a ▁b ▁3 . 5 , ▁d ▁e ▁f ▁g", ["▁a ▁b ▁3 . 5 ,", "▁d ▁e ▁f ▁g"]),
        # Before a word
        ("▁a ▁b ▁c ▁d ▁e ▁f on g h i", ["▁a ▁b ▁c ▁d ▁e", "▁f on g h i"]),
        # An end in the first half would waste most of the part
        ("▁a . ▁b c d e f g h i", ["▁a . ▁b c d e f g", "h i"]),
        # Within a word, but not within a character
        ("▁a b c d e f <0xE2> <0x82> <0xAC> x", ["▁a b c d e f", "<0xE2> <0x82> <0xAC> x"]),
        ("▁你 好 。 他 们 来 。 我 们 去", ["▁你 好 。 他 们 来 。", "我 们 去"]),
        # Where every byte goes on with a character, there is no boundary at all
        (" ".join(["<0x80>"] * 10), [" ".join(["<0x80>"] * 8), "<0x80> <0x80>"]),
    ],
)
def test_boundaries(text, parts):
    pieces = text.split()
    found = split(Pieces(pieces), range(len(pieces)), 8)
    assert [" ".join(pieces[i] for i in part) for part in found] == parts


def test_nothing_is_lost_and_no_part_is_too_long():
    tokenizer = tiny.tokenizer()
    for _ in range(30):
        words = random.choices([*tiny.GERMAN, ".", "?", ",", "é", "漢", "x" * 20], k=random.randrange(1, 120))
        text = "".join(word + random.choice(["", " ", ". "]) for word in words)
        (whole,) = encode_parts(tokenizer, [text], max_len=10**6, tags=[5], note=lambda note: None)
        longest = random.randrange(3, 40)
        notes: list[Note] = []
        (parts,) = encode_parts(tokenizer, [text], max_len=longest, tags=[5], note=notes.append, most=10**6)
        assert all(len(part) <= longest for part in parts)
        assert all(part[0] == 5 and part[-1] == tokenizer.eos_id for part in parts)
        given = [number for part in whole for number in part[1:-1]]
        assert [number for part in parts for number in part[1:-1]] == given
        assert bool(notes) == (len(parts) > 1)
        assert all(note.parts == len(parts) and note.pieces == note.kept == len(given) for note in notes)


def test_a_line_that_is_no_text_is_cut_with_a_note(monkeypatch):
    notes: list[Note] = []
    (parts,) = encode_parts(tiny.tokenizer(), ["und " * 500], max_len=4, tags=[], note=notes.append, most=7)
    assert len(parts) == 7
    (note,) = notes
    assert (note.kept, note.parts) == (sum(len(part) - 1 for part in parts), 7)
    assert str(note) == f"is cut: {note.pieces:,} pieces, the first {note.kept:,} are translated"
    assert encoding.MOST_PARTS == 64


@pytest.fixture(scope="module")
def translator(tmp_path_factory) -> Translator:
    settings = SearchSettings(beam_size=2, n_best=2, max_len_ratio=1, max_len_extra=3)
    ckpt = tiny.save(tmp_path_factory.mktemp("tiny"))
    return Translator.load(ckpt, settings=settings, device="cpu", max_len=24)


def test_the_translation_is_that_of_the_parts(translator):
    """The twin: every part as a line of its own, texts joined by spaces, log-probabilities and lengths added."""
    sentences = ["der Hund geht schnell.", "die Katze und ich.", "du nicht!"]
    assert len(translator.tokenizer.encode_src([" ".join(sentences)])[0]) > 24
    notes: list[Note] = []
    (whole, short) = translator.translate([" ".join(sentences), "der Hund"], note=notes.append)
    assert [(note.position, note.error) for note in notes] == [(0, "")]
    assert str(notes[0]) == f"is split: {notes[0].pieces} pieces, translated in {notes[0].parts} parts"
    ids = encode_parts(translator.tokenizer, [" ".join(sentences)], max_len=24, tags=[], note=print)[0]
    texts = [translator.tokenizer.src.decode(part[:-1]) for part in ids]
    alone = translator.translate(texts)
    ranked = [" ".join(row[rank].text for row in alone) for rank in range(2)]
    assert sorted(candidate.text for candidate in whole) == sorted(ranked)
    assert whole[0].score >= whole[1].score
    (alone,) = translator.translate(["der Hund"])
    assert [each.text for each in short] == [each.text for each in alone]
    assert [each.score for each in short] == pytest.approx([each.score for each in alone], abs=1e-5)


def test_the_score_is_that_of_all_parts_together():
    settings = SearchSettings(length_penalty=0.5)
    parts = [Part(0, Source([1])), Part(1, Source([2])), Part(1, Source([3])), Part(2, Source([4]))]
    found = {
        0: [Hypothesis([7], -3.0, -5.0)],
        1: [Hypothesis([8, 9], 0.0, -1.0), Hypothesis([8], 0.0, -2.0)],
        2: [Hypothesis([5], 0.0, -4.0)],
    }
    one, two, failed, blank = join_parts(parts, found, 4, Job(settings, None))
    assert one == [([[7]], -3.0)]
    # -1 - 4, over the square root of 3 + 2 tokens
    assert two == [([[8, 9], [5]], pytest.approx(-(5**0.5)))]
    assert failed == blank == []


def test_what_is_joined_is_sorted_again():
    """Long parts count more in the mean of a line; by rank -2 - 20 over 4 tokens and -16 - 30 over 12."""
    parts = [Part(0, Source([1])), Part(0, Source([2]))]
    found = {
        0: [Hypothesis([7], -1.0, -2.0, row=1), Hypothesis([6] * 9, -1.6, -16.0, row=0)],
        1: [Hypothesis([8], -10.0, -20.0, row=1), Hypothesis([5], -15.0, -30.0, row=0)],
    }
    (by_rank,) = join_parts(parts, found, 1, Job(SearchSettings(), None))
    assert by_rank == [([[7], [8]], -5.5), ([[6] * 9, [5]], pytest.approx(-46 / 12))][::-1]
    swapped = {**found, 1: [each._replace(row=1 - each.row) for each in found[1]]}
    (drawn,) = join_parts(parts, swapped, 1, Job(SearchSettings(), Drawn(3)))
    assert drawn == [([[6] * 9, [8]], -3.0), ([[7], [5]], -8.0)]


def test_samples_of_a_long_line_are_samples_of_its_parts(translator):
    """The n best of all that were drawn, whatever n is; equal parts differ."""
    line = "der Hund geht schnell. die Katze und ich. du nicht! " * 2
    how = SearchSettings(beam_size=5, n_best=5, max_len_ratio=1, max_len_extra=3)
    sampling = SamplingSettings(seed=3)
    every, two = (
        translator.translate([line], settings=settings, sampling=sampling, note=lambda note: None)[0]
        for settings in (how, dataclasses.replace(how, n_best=2))
    )
    assert two == every[:2]
    assert [each.score for each in every] == sorted((each.score for each in every), reverse=True)
    given = {"sampling": sampling, "prefixes": None, "phrases": None, "note": print}
    first, second = make_parts([[[4, 3], [4, 3]]], translator.tokenizer, **given)
    assert first.source.seed != second.source.seed


def test_samples_prefixes_and_phrases_of_a_long_line(translator):
    line = "der Hund geht schnell. die Katze und ich. du nicht! " * 2
    drawn = [translator.translate([line], sampling=SamplingSettings(seed=3), note=lambda note: None) for _ in range(2)]
    assert drawn[0] == drawn[1]
    (begun,) = translator.translate([line], prefixes=["the cat"], note=lambda note: None)
    assert all(candidate.text.startswith("the cat") for candidate in begun)
    notes: list[Note] = []
    (refused,) = translator.translate([line], phrases=[["cat"]], note=notes.append)
    assert refused[0].text == ""
    assert notes[-1].error == "it is longer than --max-len, and has phrases: split it, or leave them out"
    assert len(notes) == 1
    # A phrase of spaces asks for nothing: the line is split, and the note of it not held back
    (row,) = translator.translate([line], phrases=[[" ", ""]], note=notes.append)
    assert row[0].text
    assert (len(notes), notes[-1].error, notes[-1].parts > 1) == (2, "", True)
