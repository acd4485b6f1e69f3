"""Lines of several sentences: which are cut, into what, and how the translations are put together."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import tiny

from seq2seq import checkpoint
from seq2seq.data.line_statistics import LineStatistics
from seq2seq.inference.forced_text import force_candidates, force_lines
from seq2seq.inference.notes import Note
from seq2seq.inference.parts import LineCutter, SourceLine, SourcePart
from seq2seq.inference.translator import TranslatedText, Translator
from seq2seq.settings.search import SamplingSettings, SearchSettings

SENTENCES = ["Der Hund geht.", "Die Katze und ich.", "Das Haus!"]
PARAGRAPH = " ".join(SENTENCES)


def refuse(note: Note) -> None:
    """Stand for a note that should not be."""
    pytest.fail(str(note))


HOW = SearchSettings(beam_size=2, n_best=2, max_len_ratio=1, max_len_extra=3)


def cut(text: str, statistics: LineStatistics, mode: str = "auto", whole: tuple[int, ...] = ()) -> list[str]:
    notes: list[Note] = []
    given = {"language": "de", "statistics": statistics, "mode": mode, "max_len": 1000, "tags": []}
    (line,) = LineCutter(tiny.tokenizer(), **given, note=notes.append)([text], whole)
    return [part.text for part in line.parts] + [note.kind for note in notes]


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
        # Lines of two sentences are usual: a longer one is cut into such
        (LineStatistics(2, 2, 10**6), "auto", [" ".join(SENTENCES[:2]), SENTENCES[2]]),
        # As many sentences, but more pieces than training had
        (
            LineStatistics(3, 5, size(SENTENCES[0]) + size(SENTENCES[1])),
            "auto",
            [" ".join(SENTENCES[:2]), SENTENCES[2]],
        ),
    ],
)
def test_what_is_cut_is_what_training_had_not(statistics, mode, expected):
    assert cut(PARAGRAPH, statistics, mode) == expected


@pytest.mark.parametrize("text", ["Der Hund geht.", "der Hund", " Der Hund, z.B. ich. ", "„Was?“ fragte er."])
@pytest.mark.parametrize("mode", ["auto", "split", "keep"])
def test_a_sentence_is_translated_byte_for_byte(text, mode):
    """Whatever the way to cut: the ids are those of the line."""
    given = {"language": "de", "statistics": LineStatistics(), "mode": mode, "max_len": 1000, "tags": []}
    (line,) = LineCutter(tiny.tokenizer(), **given, note=refuse)([text])
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
        # Characters without width are no text, and a carriage return ends no line
        ("Der Hund. \u200b Die Katze. \u200b", "0  1"),
        ("Der Hund.\rDie Katze.", "0 1"),
        (" " * 100_000 + "Der Hund.", "0"),
        ("", ""),
        ("\u200b", ""),
    ],
)
def test_translations_stand_as_their_sentences(text, joined):
    given = {"language": "de", "statistics": LineStatistics(), "mode": "auto", "max_len": 1000, "tags": []}
    (line,) = LineCutter(tiny.tokenizer(), **given, note=refuse)([text])
    assert line.join([str(number) for number in range(len(line.parts))], spaces=True) == joined


def test_spaces_are_those_of_the_target():
    """A language without spaces has none between sentences, whatever the source has; wide ones stay."""
    apart, close, wide = (SourceLine([SourcePart([1], "a"), SourcePart([1], "b", gap)]) for gap in (" ", "", "\u3000"))
    assert [line.join(["x", "y"], spaces=True) for line in (apart, close, wide)] == ["x y", "x y", "x\u3000y"]
    assert [line.join(["x", "y"], spaces=False) for line in (apart, close, wide)] == ["xy", "xy", "x\u3000y"]
    # Nothing is set apart from nothing
    assert apart.join(["", "y"], spaces=True) == "y"


@pytest.fixture(scope="module")
def translator(tmp_path_factory) -> Translator:
    return Translator.load(tiny.save(tmp_path_factory.mktemp("tiny")), settings=HOW, device="cpu")


def test_a_paragraph_is_its_sentences(translator):
    """The twin: each sentence as a line; n-best by rank, scores by the sum of log-probabilities, alignments shifted."""
    (row,) = translator.translate([PARAGRAPH], note=lambda note: None)
    alone = translator.translate(SENTENCES, note=lambda note: None)
    ranked = [" ".join(each[rank].text for each in alone) for rank in range(2)]
    assert sorted(each.text for each in row) == sorted(ranked)
    best = next(each for each in row if each.text == ranked[0])
    assert best.parts == tuple((text, own[0].text) for text, own in zip(SENTENCES, alone, strict=True))
    (((whole,),), parts) = (
        force_candidates(translator, [PARAGRAPH], [[best]], align=True, left_out=print),
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


def test_prefixes_and_phrases_are_placed_or_refused(translator):
    """A prefix of one sentence begins the first; what cannot be placed keeps the line whole, or is refused."""
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
    # A prefix that asks for nothing
    assert len(translate(prefixes=[""]).parts) == 3


def test_samples_of_a_paragraph_are_samples_of_its_sentences(translator):
    four = dataclasses.replace(HOW, beam_size=4, n_best=4)
    rows = translator.translate(
        [PARAGRAPH], settings=four, sampling=SamplingSettings(seed=3), note=lambda note: None, mbr="chrf"
    )
    assert all(len(each.parts) == 3 for each in rows[0] if each.text)


def test_texts_with_line_breaks_keep_them(translator):
    text = f"\n{PARAGRAPH}\n\n{SENTENCES[0]}\n"
    found, blank = translator.texts([text, "\n\n"], note=lambda note: None)
    first, *_ = translator.texts([SENTENCES[0]], note=lambda note: None)
    lines = found.split("\n")
    assert [bool(line) for line in lines] == [False, True, False, True, False]
    assert lines[1].startswith(first)
    assert lines[3] == first
    assert blank == "\n\n"


def test_a_checkpoint_says_what_is_a_paragraph(tmp_path: Path):
    """The statistics of the file decide, and a wrong way to cut is refused."""
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
