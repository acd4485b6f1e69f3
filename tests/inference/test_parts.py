"""Lines of several sentences and long lines: where they are cut, and how the translations are joined."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny

from seq2seq import checkpoint
from seq2seq.data.languages import NO_TAGS, Tags
from seq2seq.data.line_statistics import LineStatistics
from seq2seq.data.tokenizer import train_tokenizer
from seq2seq.inference import parts as parts_module
from seq2seq.inference.encoding import encode_pieces
from seq2seq.inference.forced_text import force_candidates, force_lines
from seq2seq.inference.notes import Note
from seq2seq.inference.parts import LineCutter, SourceLine, SourcePart, split
from seq2seq.inference.search_parts import Part, join_parts, make_parts
from seq2seq.inference.translator import TranslatedText, Translator
from seq2seq.search import Hypothesis, Source
from seq2seq.settings.search import SamplingSettings, SearchSettings
from seq2seq.settings.tokenizer import TokenizerSettings

SENTENCES = ["Der Hund geht.", "Die Katze und ich.", "Das Haus!"]
PARAGRAPH = " ".join(SENTENCES)


def refuse(note: Note) -> None:
    """Fail on any note."""
    pytest.fail(note.text)


HOW = SearchSettings(beam_size=2, n_best=2, max_len_ratio=1, max_len_extra=3)


def cutter(
    note: Callable[[Note], None] = refuse,
    *,
    mode: str = "auto",
    statistics: LineStatistics | None = None,
    max_len: int = 1000,
    tags: Tags = NO_TAGS,
    **how: Any,
) -> LineCutter:
    given = {"src_lang": "de", "statistics": statistics or LineStatistics(), "max_len": max_len, "tags": tags}
    translator: Any = SimpleNamespace(tokenizer=tiny.tokenizer(**how), **given)
    return LineCutter(translator=translator, mode=mode, note=note)


@pytest.mark.parametrize("byte_fallback", [True, False])
def test_characters_that_the_vocabulary_lacks_are_read_as_ones_that_mean_the_same(byte_fallback):
    tokenizer = tiny.tokenizer(byte_fallback=byte_fallback, vocab_size=300 if byte_fallback else 50)
    lines = {
        "Der Hu\xadnd\u200e geht\ufeff.\x07": "Der Hund geht.",
        "Der\xa0Hund\u202fgeht.\t": "Der Hund geht. ",
        "Der Ｈund geht.": "Der Hund geht.",
        "\ud800": "?",
        # Visible and without another form, or with one that is another number
        **{text: text for text in ("Der ☂ geht.", "5² ①", "Der Hund geht.", "")},
    }
    wanted = [ids[:-1] for ids in tokenizer.encode_src(list(lines.values()))]
    assert encode_pieces(tokenizer, list(lines), note=refuse) == wanted
    # A character of the vocabulary stays, whatever it is
    sizes = TokenizerSettings(vocab_size=12, byte_fallback=False)
    known = train_tokenizer(src_lines=["a\xadb e\u0301 c"] * 9, tgt_lines=["a b c"] * 9, settings=sizes)
    texts = ["a\xadb e\u0301", "é"]
    assert encode_pieces(known, texts, note=refuse) == [ids[:-1] for ids in known.encode_src(texts)]


def test_what_is_invisible_does_not_change_a_translation(translator):
    assert translator.texts(["Der Hu\xadnd\xa0geht.\n\u200bUnd ich."]) == translator.texts(["Der Hund geht.\nUnd ich."])


def size(text: str) -> int:
    return len(tiny.tokenizer().encode_src([text])[0]) - 1


@pytest.mark.parametrize(
    ("statistics", "mode", "expected"),
    [
        (LineStatistics(), "auto", SENTENCES),
        (LineStatistics(), "split", SENTENCES),
        (LineStatistics(), "keep", [PARAGRAPH, "beyond"]),
        # A model of paragraphs
        (LineStatistics(3, 5, 10**6), "auto", [PARAGRAPH]),
        (LineStatistics(3, 5, 10**6), "keep", [PARAGRAPH]),
        (LineStatistics(3, 5, 10**6), "split", SENTENCES),
        # Training had lines of two sentences: a longer line is cut into such parts
        (LineStatistics(2, 2, 10**6), "auto", [" ".join(SENTENCES[:2]), SENTENCES[2]]),
        # As many sentences as in training, but more pieces
        (
            LineStatistics(3, 5, size(SENTENCES[0]) + size(SENTENCES[1])),
            "auto",
            [" ".join(SENTENCES[:2]), SENTENCES[2]],
        ),
    ],
)
def test_lines_unlike_the_training_lines_are_cut(statistics, mode, expected):
    notes: list[Note] = []
    (line,) = cutter(notes.append, mode=mode, statistics=statistics)([PARAGRAPH])
    assert [part.text for part in line.parts] + [note.kind for note in notes] == expected


@pytest.mark.parametrize("text", ["Der Hund geht.", "der Hund", " Der Hund, z.B. ich. ", "„Was?“ fragte er."])
@pytest.mark.parametrize("mode", ["auto", "split", "keep"])
def test_a_sentence_is_translated_byte_for_byte(text, mode):
    """In every mode the whole line is encoded."""
    (line,) = cutter(mode=mode)([text])
    assert [part.pieces for part in line.parts] == [tiny.tokenizer().encode_src([text])[0][:-1]]
    assert line.join(["x"], spaces=True) == "x"


@pytest.mark.parametrize(
    ("text", "joined"),
    [
        ("Der Hund.  Die Katze.\tDas Haus.", "0  1\t2"),
        # Line breaks and blank lines stay, at the beginning and at the end, too
        ("\n\nDer Hund. Die Katze.\n\n- Das Haus.\n", "\n\n0 1\n\n2\n"),
        ("  Der Hund.\r\nDie Katze.  ", "0\r\n1"),
        ("\u200b\nDer Hund.\n\u200b\nDie Katze.", "\n0\n\n1"),
        ("\n \n", "\n \n"),
        ("Der Hund.\u00a0Die Katze.", "0\u00a01"),
        # Characters without width are no text, and a carriage return is no line break
        ("Der Hund. \u200b Die Katze. \u200b", "0  1"),
        ("Der Hund.\rDie Katze.", "0 1"),
        ("Der Hund.\x1cDie Katze.\x85Der Hund.", "0 1 2"),
        (" " * 100_000 + "Der Hund.", "0"),
        ("", ""),
        ("\u200b", ""),
    ],
)
def test_translations_are_joined_as_their_sentences_stand(text, joined):
    (line,) = cutter()([text])
    assert line.join([str(number) for number in range(len(line.parts))], spaces=True) == joined


def test_spaces_follow_the_target_language():
    """A target language without spaces gets no spaces between sentences; wide spaces stay."""
    apart, close, wide = (SourceLine([SourcePart([1], "a"), SourcePart([1], "b", gap)]) for gap in (" ", "", "\u3000"))
    assert [line.join(["x", "y"], spaces=True) for line in (apart, close, wide)] == ["x y", "x y", "x\u3000y"]
    assert [line.join(["x", "y"], spaces=False) for line in (apart, close, wide)] == ["xy", "xy", "x\u3000y"]
    # No space next to an empty translation
    assert apart.join(["", "y"], spaces=True) == "y"


class Pieces:
    """Tokenizer whose ids are the pieces of a text."""

    def __init__(self, pieces: list[str]) -> None:
        self.src = self
        self.patches = None
        self.pieces = pieces
        self.src_vocab_size = len(pieces)

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
        # There is no boundary, since every byte continues a character
        (" ".join(["<0x80>"] * 10), [" ".join(["<0x80>"] * 8), "<0x80> <0x80>"]),
    ],
)
def test_a_sentence_is_split_at_clauses_else_at_words(text, parts):
    pieces = text.split()
    found = split(Pieces(pieces), range(len(pieces)), 8)
    assert [" ".join(pieces[i] for i in part) for part in found] == parts


@pytest.mark.parametrize("how", [{}, {"byte_fallback": False, "vocab_size": 50}], ids=["bytes", "unk"])
@pytest.mark.parametrize("mode", ["keep", "auto", "split"])
def test_nothing_is_lost_and_no_part_is_too_long(mode, how, monkeypatch):
    """In every mode the parts have all characters of a random text except white space."""
    monkeypatch.setattr(parts_module, "MOST_PARTS", 10**6)
    tokenizer = tiny.tokenizer(**how)
    for _ in range(15):
        words = random.choices([*tiny.GERMAN, ".", "?", ",", "é", "漢", "x" * 20], k=random.randrange(1, 120))
        text = "".join(word + random.choice(["", " ", ". "]) for word in words)
        longest = random.randrange(3, 40)
        notes: list[Note] = []
        own = cutter(notes.append, mode=mode, max_len=longest, tags=Tags([5], []), **how)
        (line,) = own([text])
        # With the tag and the end
        assert all(len(part.pieces) + 2 <= longest for part in line.parts)
        (whole,) = tokenizer.encode_src([text])
        rows = [[number for part in line.parts for number in part.pieces], whole[:-1]]
        given, wanted = ("".join(map(tokenizer.src.id_to_piece, row)).replace("▁", "") for row in rows)
        assert given == wanted
        # The text of a part is the user's, whatever the vocabulary lacks
        assert "".join("".join(part.text.split()) for part in line.parts) == "".join(text.split())
        if mode == "keep":
            # A short line of several sentences has another note
            assert any(note.kind == "split" for note in notes) == (len(line.parts) > 1)


def test_a_line_that_is_no_text_is_cut_with_a_note(monkeypatch):
    notes: list[Note] = []
    monkeypatch.setattr(parts_module, "MOST_PARTS", 7)
    (line,) = cutter(notes.append, mode="keep", max_len=4)(["und " * 500])
    assert len(line.parts) == 7
    kept = sum(len(part.pieces) for part in line.parts)
    assert [note.kind for note in notes] == ["split", "cut"]
    assert notes[1].text == f"is cut: 2,000 pieces, the first {kept:,} are translated"


@pytest.fixture(scope="module")
def translator(tmp_path_factory) -> Translator:
    return Translator.load(tiny.save(tmp_path_factory.mktemp("tiny")), settings=HOW, device="cpu")


def test_a_paragraph_is_translated_as_its_sentences(translator):
    """Compare with each sentence as a line: n-best joined by rank, log-probabilities added, alignments shifted."""
    (row,) = translator.translate([PARAGRAPH], note=lambda note: None)
    alone = translator.translate(SENTENCES, note=lambda note: None)
    # No space next to an empty translation
    ranked = [" ".join(each[rank].text for each in alone if each[rank].text) for rank in range(2)]
    assert sorted(each.text for each in row) == sorted(ranked)
    best = next(each for each in row if each.text == ranked[0])
    assert best.parts == tuple((text, own[0].text) for text, own in zip(SENTENCES, alone, strict=True))
    (((whole,),), parts) = (
        force_candidates(translator, [PARAGRAPH], [[best]], align=True),
        list(force_lines(translator, best.parts, note=print, align=True)),
    )
    assert whole.log_prob == pytest.approx(sum(part.log_prob or 0.0 for part in parts), abs=1e-4)
    assert [piece for piece, _ in whole.pieces] == [piece for part in parts for piece, _ in part.pieces]
    assert whole.words is not None
    assert whole.words.source == PARAGRAPH.split()
    links, sources, targets, table = [], 0, 0, []
    for part in parts:
        assert part.words is not None
        table += [[0.0] * sources + row for row in part.words.weights]
        links += [(source + sources, target + targets) for source, target in part.words.links]
        sources += len(part.words.source)
        targets += len(part.words.target)
    assert whole.words.links == links
    for given, row in zip(whole.words.weights, table, strict=True):
        assert given == pytest.approx(row + [0.0] * (sources - len(row)), abs=1e-5)


def test_line_breaks_at_the_ends_are_not_aligned(translator):
    lines = ["\n das Haus \n", "das Haus"]
    found = force_candidates(translator, lines, translator.translate(lines), align=True)
    (words, (alone, *_)) = ([each.words for each in row] for row in found)
    assert words[0] == alone
    assert alone
    assert alone.source == ["das", "Haus"]


def test_the_label_of_a_classifier_is_at_no_limit():
    found = {0: [Hypothesis([5], -1.0, -1.0)]}
    for positions, limited in ((2, False), (None, True)):
        settings = SearchSettings(max_len_ratio=0, max_len_extra=2, max_len=positions)
        ((joined,),) = join_parts([Part(0, Source([4, 2]))], found, 1, settings)
        assert joined.limited == limited


def test_prefixes_and_phrases_are_placed_or_refused(translator):
    """A prefix of one sentence begins the first part; longer ones and phrases keep the line whole, or are refused."""
    notes: list[Note] = []

    def translate(**options):
        notes.clear()
        return translator.translate([PARAGRAPH], note=notes.append, **options)[0][0]

    begun = translate(prefixes=["the cat"])
    assert (len(begun.parts), begun.text[:7]) == (3, "the cat")
    unplaced = [{"prefixes": [prefix]} for prefix in ("the cat. The dog", "the cat. A", "the cat\nA")]
    for asked in (*unplaced, {"phrases": [["cat"]]}):
        whole = translate(**asked)
        assert (whole.parts, "cat" in whole.text) == ((), True)
        assert "whole" in [note.kind for note in notes]
        refused = translate(**asked, sentences="split")
        assert (refused, [note.kind for note in notes]) == (TranslatedText("", -math.inf), ["failed"])
    # A prefix and phrases that ask for nothing
    assert len(translate(prefixes=[""]).parts) == len(translate(phrases=[[" ", ""]]).parts) == 3


def test_texts_with_line_breaks_keep_them(translator):
    text = f"\n{PARAGRAPH}\n\n{SENTENCES[0]}\n"
    found, blank = translator.texts([text, "\n\n"], note=lambda note: None)
    first, *_ = translator.texts([SENTENCES[0]], note=lambda note: None)
    lines = found.split("\n")
    assert [bool(line) for line in lines] == [False, True, False, True, False]
    assert lines[1].startswith(first)
    assert lines[3] == first
    assert blank == "\n\n"


def test_the_statistics_of_a_checkpoint_decide_what_is_cut(tmp_path: Path):
    """An unknown mode is refused."""
    payload = tiny.payload()
    for lines, count in ((None, 3), (LineStatistics(3, 5, 900, 900, 0.1)._asdict(), 1)):
        payload.meta.update({"lines": lines} if lines else {})
        checkpoint.save(tmp_path / "x.safetensors", payload)
        loaded = Translator.load(tmp_path / "x.safetensors", settings=HOW, device="cpu")
        (row,) = loaded.translate([PARAGRAPH], note=lambda note: None)
        assert len(row[0].parts or ("whole",)) == count
        assert len(loaded.translate([PARAGRAPH], sentences="split", note=lambda note: None)[0][0].parts) == 3
        with pytest.raises(ValueError, match="'none': choose auto, split, keep"):
            loaded.translate([PARAGRAPH], sentences="none")


def test_a_line_that_is_kept_is_split_only_for_its_length():
    """The line is split only if it is too long, after a sentence if possible."""
    parts = ["Der Hund geht schnell.", "Die Katze und ich."]
    notes: list[Note] = []
    pieces = size(" ".join(parts))
    (line,) = cutter(notes.append, mode="keep", max_len=pieces)([" ".join(parts)])
    assert [part.text for part in line.parts] == parts
    assert [note.text for note in notes] == [f"is split: {pieces} pieces, translated in 2 parts"]


def test_the_score_of_a_line_is_normalized_over_all_parts():
    settings = SearchSettings(length_penalty=0.5)
    parts = [Part(0, Source([1])), Part(1, Source([2])), Part(1, Source([3])), Part(2, Source([4]))]
    found = {
        0: [Hypothesis([7], -3.0, -5.0)],
        1: [Hypothesis([8, 9], 0.0, -1.0), Hypothesis([8], 0.0, -2.0)],
        2: [Hypothesis([5], 0.0, -4.0)],
    }
    one, two, failed, blank = join_parts(parts, found, 4, settings)
    assert one == [([[7]], -3.0, -2.5, False)]
    # -1 - 4, over the square root of 3 + 2 tokens
    assert two == [([[8, 9], [5]], pytest.approx(-(5**0.5)), -1.0, False)]
    assert failed == blank == []


def test_joined_translations_are_sorted_again():
    """Long parts count more in the mean of a line: by rank -2 - 20 over 4 tokens, and -16 - 30 over 12."""
    parts = [Part(0, Source([1])), Part(0, Source([2]))]
    found = {
        0: [Hypothesis([7], -1.0, -2.0, row=1), Hypothesis([6] * 9, -1.6, -16.0, row=0)],
        1: [Hypothesis([8], -10.0, -20.0, row=1), Hypothesis([5], -15.0, -30.0, row=0)],
    }
    (by_rank,) = join_parts(parts, found, 1, SearchSettings())
    assert by_rank == [
        ([[6] * 9, [5]], pytest.approx(-46 / 12), pytest.approx(-46 / 12), False),
        ([[7], [8]], -5.5, -5.5, False),
    ]
    swapped = {**found, 1: [each._replace(row=1 - each.row) for each in found[1]]}
    (drawn,) = join_parts(parts, swapped, 1, SearchSettings(), drawn=True)
    assert drawn == [([[6] * 9, [8]], -3.0, -3.0, False), ([[7], [5]], -8.0, -8.0, False)]


def test_samples_of_a_paragraph_are_samples_of_its_sentences(translator):
    """The n best are the best of all samples, whatever n is; samples of equal parts differ."""
    line = f"{PARAGRAPH} {PARAGRAPH}"
    how = SearchSettings(beam_size=5, n_best=5, max_len_ratio=1, max_len_extra=3)
    sampling = SamplingSettings(seed=3)
    every, two = (
        translator.translate([line], settings=settings, sampling=sampling, note=lambda note: None)[0]
        for settings in (how, dataclasses.replace(how, n_best=2))
    )
    assert two == every[:2]
    assert all(len(each.parts) == 6 for each in every if each.text)
    assert [each.score for each in every] == sorted((each.score for each in every), reverse=True)
    assert translator.translate([line], settings=how, sampling=sampling, note=lambda note: None)[0] == every
    equal = SourceLine([SourcePart([4], ""), SourcePart([4], "")])
    first, second = make_parts([equal], cutter(), settings=translator.settings, sampling=sampling)
    assert first.source.seed != second.source.seed


def test_a_prefix_or_phrase_longer_than_any_translation_is_refused_before_the_search(translator, monkeypatch):
    """A limit that the user sets low is extended up to the default limit, 2 pieces for each of the source and 20."""
    low = SearchSettings(beam_size=2, max_len_ratio=0, max_len_extra=2)
    searched: list[int] = []
    search = translator._search
    monkeypatch.setattr(translator, "_search", lambda parts, *rest: searched.append(len(parts)) or search(parts, *rest))
    for name, short, long in (
        ("prefixes", "the house", "the house " * 5000),
        ("phrases", ["the house"], ["the house"] * 2500),
    ):
        told: list[Note] = []
        found = translator.translate(["ein Hund"] * 2, settings=low, note=told.append, **{name: [short, long]})
        assert [math.isfinite(each[0].score) for each in found] == [True, False]
        assert [note.position for note in told if note.kind == "failed"] == [1]
        assert "raise max_len_ratio or max_len_extra" in next(note.reason for note in told if note.kind == "failed")
    assert searched == [1, 1]
