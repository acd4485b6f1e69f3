"""Translations that may lack something are noted by the command, in JSON, and by the service."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny
import torch
from service_client import served

from seq2seq import checkpoint, translate
from seq2seq.data.line_statistics import LineStatistics
from seq2seq.inference import batch_rows, forced_text
from seq2seq.inference.forced import Forced
from seq2seq.inference.notes import Note, Notes
from seq2seq.inference.omissions import unread_clauses
from seq2seq.inference.translator import Translator
from seq2seq.settings.search import SearchSettings

PIECES = ["▁Wir", "▁lesen", "▁ein", "▁Buch", ",", "▁und", "▁es", "▁reg", "net", ".", "▁Gut", "."]


def test_bytes_of_a_character_are_no_words():
    weights = torch.tensor([[1.0, 1.0, 0.0, 0.0, 0.0, 0.0]])
    assert unread_clauses(weights, ["▁a", ".", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>"]) == []


def test_a_clause_that_nothing_reads_is_found():
    """Computed by hand for 12 pieces in clauses of 5, 5 and 2; the last clause is too short to judge."""
    weights = torch.zeros(5, 12)
    # Each piece of the translation reads one piece of the first clause
    weights[range(5), range(5)] = 1.0
    assert unread_clauses(weights, PIECES) == [(5, 10)]
    # Half a piece for each source piece is enough
    weights[:, 5:10] = 0.1
    assert unread_clauses(weights, PIECES) == []
    weights[:, 5:10] = 0.09
    assert unread_clauses(weights, PIECES) == [(5, 10)]
    # An empty translation reads nothing
    assert unread_clauses(torch.zeros(0, 12), PIECES) == [(0, 5), (5, 10)]
    # Without punctuation there is one clause; a script without spaces has clauses, too
    assert unread_clauses(torch.zeros(1, 4), ["▁a", "b", "c", "d"]) == [(0, 4)]
    chinese = [*"我们读书，", *"天在下雨。"]
    half = torch.cat([torch.eye(5), torch.zeros(5, 5)], 1)
    assert unread_clauses(half, chinese) == [(5, 10)]


@pytest.fixture
def first_clause_read(monkeypatch) -> list[int]:
    """Let every translation read only the beginning of its source; return the sizes of batches."""
    sizes = []

    def force(model, pairs, **options):
        sizes.append(len(pairs))
        assert options["align"]
        made = []
        for source, target in pairs:
            weights = torch.zeros(len(target), len(source))
            weights[:, :4] = 9.0
            made.append(Forced([0.0] * len(target), weights))
        return made

    monkeypatch.setattr(forced_text, "force", force)
    return sizes


@pytest.fixture
def ckpt(tmp_path) -> Path:
    """A model trained on lines of one sentence, most of at most 30 pieces, the longest of 40."""
    payload = tiny.payload()
    payload.meta["lines"] = LineStatistics(1, 1, 30, 40, 0.1)._asdict()
    checkpoint.save(tmp_path / "x.safetensors", payload)
    return tmp_path / "x.safetensors"


LINES = [
    "der Hund",
    "Der Hund geht schnell. Die Katze kommt nicht.",
    "und " * 20,
    "",
]


def test_possible_omissions_are_noted(ckpt, first_clause_read):
    translator = Translator.load(ckpt, settings=SearchSettings(beam_size=1, max_len_ratio=4), device="cpu")
    notes: list[Note] = []
    translator.translate(LINES, sentences="keep", note=notes.append)
    kinds = {(note.position, note.kind) for note in notes}
    assert {(1, "beyond"), (1, "unread"), (2, "long")} == {each for each in kinds if each[1] != "limit"}
    (unread,) = [note.text for note in notes if note.position == 1 and note.kind == "unread"]
    assert unread.endswith("reads: 'Die Katze kommt nicht.'")
    assert sum(first_clause_read) == 2
    # Sentence by sentence nothing is in doubt
    first_clause_read.clear()
    notes.clear()
    translator.translate(LINES[:2], note=notes.append)
    assert not first_clause_read
    assert {note.kind for note in notes} <= {"limit"}


@pytest.mark.parametrize(("weight", "ratio", "kind"), [(0.9, 1.0, "short"), (0.4, 1.0, "unread"), (0.9, 0.0, "unread")])
def test_a_clause_that_a_short_translation_reads_is_not_unread(weight, ratio, kind, ckpt, monkeypatch):
    """The only clause has few pieces of the translation for each of its own, though they read nothing else."""
    monkeypatch.setattr(
        forced_text,
        "force",
        lambda model, pairs, **options: [
            Forced([0.0] * len(target), torch.full((len(target), len(source)), weight / len(source)))
            for source, target in pairs
        ],
    )
    translator = Translator.load(
        ckpt, settings=SearchSettings(beam_size=1, max_len_ratio=0, max_len_extra=3), device="cpu"
    )
    # In doubt for its length alone, or for having more pieces than most lines
    translator.statistics = translator.statistics._replace(least_ratio=ratio, most_pieces=2)
    notes: list[Note] = []
    translator.translate(["der Hund und die Katze und der Hund"], sentences="keep", note=notes.append)
    assert {note.kind for note in notes} - {"limit", "beyond"} == {kind}


def test_a_limit_that_ends_a_translation_is_noted(ckpt):
    translator = Translator.load(
        ckpt, settings=SearchSettings(beam_size=2, max_len_ratio=0, max_len_extra=3), device="cpu"
    )
    notes: list[Note] = []
    (row,) = translator.translate(["der Hund"], note=notes.append)
    assert len(translator.tokenizer.encode_tgt([row[0].text])[0]) >= 3
    assert [note.kind for note in notes] == ["limit"]


def test_sentences_without_a_space_between_them_are_in_doubt(ckpt, first_clause_read):
    translator = Translator.load(ckpt, settings=SearchSettings(beam_size=1, max_len_ratio=4), device="cpu")
    translator.translate(["Der Hund geht.Die Katze."], note=lambda note: None)
    assert first_clause_read == [1]


def test_a_large_vocabulary_makes_batches_small(ckpt, first_clause_read, monkeypatch):
    monkeypatch.setattr(batch_rows, "_STEP_NUMBERS", 1)
    translator = Translator.load(ckpt, device="cpu")
    assert len(list(forced_text.force_lines(translator, [("der Hund", "a dog")] * 3, note=print, align=True))) == 3
    assert first_clause_read == [1, 1, 1]


def test_a_check_that_fails_costs_no_translation(ckpt, monkeypatch, caplog):
    def force(*given, **options):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.setattr(forced_text, "force", force)
    translator = Translator.load(ckpt, settings=SearchSettings(beam_size=1, max_len_ratio=4), device="cpu")
    (row,) = translator.translate([LINES[1]], sentences="keep", note=lambda note: None)
    assert row[0].text
    assert "unread parts of the source failed: CUDA out of memory" in caplog.text


def test_notes_are_counted_once_and_listed_in_json(ckpt, first_clause_read, tmp_path, capsys):
    (tmp_path / "in").write_text("\n".join(LINES) + "\n")
    files = ["--input", str(tmp_path / "in"), "--output", str(tmp_path / "out")]
    given = ["--ckpt", str(ckpt), *files, "--beam-size", "1"]
    assert translate.main([*given, "--sentences", "keep", "--format", "json"]) == 0
    told = capsys.readouterr().err.splitlines()
    assert len([line for line in told if "1 of 4 lines has a part that hardly any word" in line]) == 1
    assert any(line.endswith("line 2; --format json has it line by line") for line in told)
    rows = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert any("Die Katze kommt nicht." in text for text in rows[1]["warnings"])
    assert "warnings" not in rows[3]


def test_an_answer_has_the_warnings(ckpt, first_clause_read):
    translator = Translator.load(ckpt, settings=SearchSettings(beam_size=1, max_len_ratio=4), device="cpu")
    with served(translator) as running:
        whole, cut = (
            running.call({"text": LINES[1], "sentences": mode}).json["translations"][0] for mode in ("keep", "auto")
        )
        refused = running.call({"text": "a", "sentences": "none"})
        breaks = running.call({"text": f"{LINES[1]}\n\n{LINES[0]}", "alignment": True}).json["translations"][0]
    assert "hardly any word of the translation reads: 'Die Katze kommt nicht.'" in whole["warning"]
    assert "hardly" not in cut.get("warning", "")
    assert refused.status == 422
    assert "sentences" in refused.error
    assert breaks["text"].count("\n") == 2
    assert breaks["candidates"][0]["alignment"]["source"] == [*LINES[1].split(), *LINES[0].split()]


def test_a_report_names_the_first_lines():
    said: list[str] = []
    notes = Notes(said.append, what="sentence")
    for position in (9, 3, 3):
        notes.add(Note(position, "long", "x"))
    notes.add(Note(0, "long", "x"))
    notes.add(Note.failed(5, "no room"))
    notes.add(Note.failed(5, "no room"))
    notes.report(1200)
    assert said[0] == "sentence 6 was not translated and is empty (no room)"
    assert said[1].startswith("3 of 1,200 sentences are longer than any training line")
    assert said[1].endswith("sentences 1, 4, 10")
    assert len(said) == 2
