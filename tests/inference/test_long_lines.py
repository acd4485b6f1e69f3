"""Test lines that are longer than the longest source: where they are split, and that nothing of them is lost."""

from __future__ import annotations

import dataclasses
import random

import pytest
import tiny

from seq2seq.data.line_statistics import LineStatistics
from seq2seq.inference import parts as parts_module
from seq2seq.inference.notes import Note
from seq2seq.inference.parts import LineCutter, SourceLine, SourcePart, split
from seq2seq.inference.search_parts import Part, join_parts, make_parts
from seq2seq.inference.translator import Translator
from seq2seq.search import Hypothesis, Source
from seq2seq.settings.search import SamplingSettings, SearchSettings


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
        # A point inside a number or a name ends no clause
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


def cutter(max_len: int, note, mode: str = "keep", tags: tuple[int, ...] = ()) -> LineCutter:
    return LineCutter(
        tiny.tokenizer(),
        language="de",
        statistics=LineStatistics(),
        mode=mode,
        max_len=max_len,
        tags=tags,
        note=note,
    )


@pytest.mark.parametrize("mode", ["keep", "auto", "split"])
def test_nothing_is_lost_and_no_part_is_too_long(mode, monkeypatch):
    """Whatever the text and the way to cut it, the parts have all its characters but white space."""
    monkeypatch.setattr(parts_module, "MOST_PARTS", 10**6)
    tokenizer = tiny.tokenizer()
    for _ in range(15):
        words = random.choices([*tiny.GERMAN, ".", "?", ",", "é", "漢", "x" * 20], k=random.randrange(1, 120))
        text = "".join(word + random.choice(["", " ", ". "]) for word in words)
        longest = random.randrange(3, 40)
        notes: list[Note] = []
        (line,) = cutter(longest, notes.append, mode, tags=(5,))([text])
        # With the tag and the end
        assert all(len(part.pieces) + 2 <= longest for part in line.parts)
        (whole,) = tokenizer.encode_src([text])
        rows = [[number for part in line.parts for number in part.pieces], whole[:-1]]
        given, wanted = ("".join(map(tokenizer.src.id_to_piece, row)).replace("▁", "") for row in rows)
        assert given == wanted
        if mode == "keep":
            assert bool(notes) == (len(line.parts) > 1)


def test_a_line_that_is_no_text_is_cut_with_a_note(monkeypatch):
    notes: list[Note] = []
    monkeypatch.setattr(parts_module, "MOST_PARTS", 7)
    (line,) = cutter(4, notes.append)(["und " * 500])
    assert len(line.parts) == 7
    kept = sum(len(part.pieces) for part in line.parts)
    assert [note.kind for note in notes] == ["split", "cut"]
    assert str(notes[1]) == f"is cut: 2,000 pieces, the first {kept:,} are translated"


@pytest.fixture(scope="module")
def translator(tmp_path_factory) -> Translator:
    settings = SearchSettings(beam_size=2, n_best=2, max_len_ratio=1, max_len_extra=3)
    ckpt = tiny.save(tmp_path_factory.mktemp("tiny"))
    return Translator.load(ckpt, settings=settings, device="cpu", max_len=24)


def test_the_translation_is_that_of_the_parts(translator):
    """The twin: every part as a line of its own, texts joined by spaces, log-probabilities and lengths added."""
    sentences = ["Der Hund geht.", "Die Katze und ich.", "Du nicht!"]
    notes: list[Note] = []
    (whole, short) = translator.translate([" ".join(sentences), "der Hund"], note=notes.append)
    alone = translator.translate(sentences, note=notes.append)
    ranked = [" ".join(row[rank].text for row in alone) for rank in range(2)]
    assert sorted(candidate.text for candidate in whole) == sorted(ranked)
    assert whole[0].score >= whole[1].score
    assert [text for text, _ in whole[0].parts] == sentences
    assert {note.kind for note in notes} <= {"limit"}
    (alone,) = translator.translate(["der Hund"])
    assert [each.text for each in short] == [each.text for each in alone]
    assert [each.score for each in short] == pytest.approx([each.score for each in alone], abs=1e-5)


def test_a_line_that_is_kept_is_split_only_for_its_length(translator):
    """After a sentence, if there is one."""
    sentences = ["Der Hund geht schnell.", "Die Katze und ich."]
    notes: list[Note] = []
    (row,) = translator.translate([" ".join(sentences)], sentences="keep", note=notes.append)
    pieces = len(translator.tokenizer.encode_src([" ".join(sentences)])[0]) - 1
    assert pieces > 23
    assert [text for text, _ in row[0].parts] == sentences
    assert [str(note) for note in notes if note.kind == "split"] == [
        f"is split: {pieces} pieces, translated in 2 parts"
    ]


def test_the_score_is_that_of_all_parts_together():
    settings = SearchSettings(length_penalty=0.5)
    parts = [Part(0, Source([1])), Part(1, Source([2])), Part(1, Source([3])), Part(2, Source([4]))]
    found = {
        0: [Hypothesis([7], -3.0, -5.0)],
        1: [Hypothesis([8, 9], 0.0, -1.0), Hypothesis([8], 0.0, -2.0)],
        2: [Hypothesis([5], 0.0, -4.0)],
    }
    one, two, failed, blank = join_parts(parts, found, 4, settings)
    assert one == [([[7]], -3.0, False)]
    # -1 - 4, over the square root of 3 + 2 tokens
    assert two == [([[8, 9], [5]], pytest.approx(-(5**0.5)), False)]
    assert failed == blank == []


def test_what_is_joined_is_sorted_again():
    """Long parts count more in the mean of a line; by rank -2 - 20 over 4 tokens and -16 - 30 over 12."""
    parts = [Part(0, Source([1])), Part(0, Source([2]))]
    found = {
        0: [Hypothesis([7], -1.0, -2.0, row=1), Hypothesis([6] * 9, -1.6, -16.0, row=0)],
        1: [Hypothesis([8], -10.0, -20.0, row=1), Hypothesis([5], -15.0, -30.0, row=0)],
    }
    (by_rank,) = join_parts(parts, found, 1, SearchSettings())
    assert by_rank == [([[7], [8]], -5.5, False), ([[6] * 9, [5]], pytest.approx(-46 / 12), False)][::-1]
    swapped = {**found, 1: [each._replace(row=1 - each.row) for each in found[1]]}
    (drawn,) = join_parts(parts, swapped, 1, SearchSettings(), drawn=True)
    assert drawn == [([[6] * 9, [8]], -3.0, False), ([[7], [5]], -8.0, False)]


def test_samples_of_a_long_line_are_samples_of_its_parts(translator):
    """The n best of all that were drawn, whatever n is; equal parts differ."""
    line = "Der Hund geht. Die Katze und ich. Du nicht! " * 2
    how = SearchSettings(beam_size=5, n_best=5, max_len_ratio=1, max_len_extra=3)
    sampling = SamplingSettings(seed=3)
    every, two = (
        translator.translate([line], settings=settings, sampling=sampling, note=lambda note: None)[0]
        for settings in (how, dataclasses.replace(how, n_best=2))
    )
    assert two == every[:2]
    assert [each.score for each in every] == sorted((each.score for each in every), reverse=True)
    equal = SourceLine([SourcePart([4], ""), SourcePart([4], "")])
    first, second = make_parts([equal], translator.tokenizer, sampling=sampling, note=print)
    assert first.source.seed != second.source.seed


def test_samples_prefixes_and_phrases_of_a_long_line(translator):
    line = "Der Hund geht. Die Katze und ich. Du nicht! " * 2
    drawn = [translator.translate([line], sampling=SamplingSettings(seed=3), note=lambda note: None) for _ in range(2)]
    assert drawn[0] == drawn[1]
    (begun,) = translator.translate([line], prefixes=["the cat"], note=lambda note: None)
    assert all(candidate.text.startswith("the cat") for candidate in begun)
    notes: list[Note] = []
    (refused,) = translator.translate([line], phrases=[["cat"]], note=notes.append)
    assert refused[0].text == ""
    assert [note.reason[:27] for note in notes if note.kind == "failed"] == ["it is translated in parts, "]
    # A phrase of spaces asks for nothing: the line is split
    (row,) = translator.translate([line], phrases=[[" ", ""]], note=notes.append)
    assert len(row[0].parts) == 6
