"""Decoding and scoring of a split: cut lines, selected rows, merged ranks, the same result for text and ids."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np
import pytest
import tiny
import torch

from seq2seq.data.batching import Batch, Ragged, collate
from seq2seq.data.multi_corpus import Direction
from seq2seq.evaluation.evaluator import Evaluator, Partial, crop, select_rows
from seq2seq.inference.forced_text import encoded_pairs
from seq2seq.inference.limits import LONGEST_SOURCE
from seq2seq.inference.translator import Translator
from seq2seq.metrics import scorers
from seq2seq.settings.search import SearchSettings
from seq2seq.translate import _parser

EXHAUSTIVE = {"test_ids_of_long_lines_are_cut_and_text_is_translated_in_parts"}


@pytest.fixture(scope="module")
def translator(tmp_path_factory) -> Translator:
    path = tiny.save(tmp_path_factory.mktemp("checkpoint"))
    return Translator.load(path, settings=SearchSettings(beam_size=2), device="cpu", max_len=12)


SOURCES = [*tiny.sentences(tiny.GERMAN, 14, seed=1), " ", "und " * 40]
REFERENCES = tiny.sentences(tiny.ENGLISH, 16, seed=2)


def batches(t: Translator, rows: list[int], size: int = 5) -> list[Batch]:
    """Return the sentences `rows` as batches of the training loader."""
    src = Ragged.from_rows(t.tokenizer.encode_src(SOURCES))
    tgt = Ragged.from_rows(t.tokenizer.encode_tgt(REFERENCES))
    chunks = [np.asarray(rows[i : i + size]) for i in range(0, len(rows), size)]
    specials = {"pad_id": t.tokenizer.pad_id, "bos_id": t.tokenizer.bos_id}
    return [collate(src.select(each), tgt.select(each), each, **specials) for each in chunks]


def losses(batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    tokens = batch.tgt_mask.sum()
    return 2.0 * tokens, 1.5 * tokens, tokens


def evaluator(t: Translator, **options: Any) -> Evaluator:
    return Evaluator(t, SOURCES, REFERENCES, **options)


def filled(t: Translator, rows: list[int], **options: Any) -> Evaluator:
    result = evaluator(t, **options)
    for batch in batches(t, rows):
        result.add(batch, losses)
    return result


def test_ids_and_text_are_decoded_alike(translator):
    """Batches of a loader, in any order, give the same translations as lines, including blank lines."""
    wide = copy.copy(translator)
    wide.max_len = LONGEST_SOURCE
    by_ids = filled(wide, [15, 3, 14, *range(3), *range(4, 14)]).result()
    assert by_ids.hypotheses == wide.texts(SOURCES)
    assert (by_ids.sources, by_ids.references) == (SOURCES, REFERENCES)
    assert by_ids.hypotheses[14] == ""
    assert by_ids.bleu == scorers.bleu(by_ids.hypotheses, REFERENCES)


def test_ids_of_long_lines_are_cut_and_text_is_translated_in_parts(translator):
    by_ids = filled(translator, [*range(16)]).result()
    rows = [row for row, _ in encoded_pairs(translator, [(line, "") for line in SOURCES], note=lambda note: None)]
    alone = [
        translator.decode(torch.tensor([row]), torch.ones(1, len(row), dtype=torch.bool))[0] for row in rows if row
    ]
    given = [text for text, row in zip(by_ids.hypotheses, rows, strict=True) if row]
    assert given == [best.text for best, *_ in alone]
    notes: list[Any] = []
    assert translator.texts(SOURCES, note=notes.append) != by_ids.hypotheses
    assert [note.position for note in notes if note.kind == "split"][-1] == 15
    assert (by_ids.loss, by_ids.nll) == (2.0, 1.5)


def test_scores_use_the_given_tokenizer(translator):
    result = filled(translator, list(range(16)), tokenize="char").result()
    assert result.bleu == scorers.bleu(result.hypotheses, REFERENCES, tokenize="char")


def test_a_source_without_any_piece_is_blank(tmp_path):
    """The source is a zero-width space, which this normalizer drops."""
    t = Translator.load(tiny.save(tmp_path, t=tiny.tokenizer(normalizer="nmt_nfkc")), device="cpu")
    lines, references = ["der Hund", "\u200b"], ["the dog", "x"]
    ids = t.tokenizer.encode_src(lines)
    assert ids[1] == [t.tokenizer.eos_id]
    sides = Ragged.from_rows(ids), Ragged.from_rows(t.tokenizer.encode_tgt(references))
    batch = collate(*sides, np.arange(2), pad_id=t.tokenizer.pad_id, bos_id=t.tokenizer.bos_id)
    by_ids = Evaluator(t, lines, references)
    by_ids.add(batch, losses)
    found = by_ids.result()
    assert (found.sources, found.references, found.hypotheses) == (lines, references, t.texts(lines))
    assert found.hypotheses[1] == ""


def test_ranks_are_merged_and_a_sentence_counts_once(translator):
    whole = filled(translator, list(range(16))).result()
    ranks = [filled(translator, rows) for rows in ([0, 2, 4, 6, 8, 10, 12, 14], [1, 3, 5, 7, 9, 11, 13, 15, 0])]
    parts = [rank.partial() for rank in ranks]
    for rank in ranks:
        rank.merge(parts)
    first, second = (rank.result() for rank in ranks)
    assert first == second
    assert first.hypotheses == whole.hypotheses
    assert first.bleu == whole.bleu
    merged = evaluator(translator)
    merged.merge([Partial(torch.tensor([6.0, 3.0, 3.0]), {1: "b"}), Partial(torch.tensor([2.0, 3.0, 1.0]), {0: "a"})])
    assert merged.result().hypotheses == ["a", "b"]
    assert (merged.result().loss, merged.result().nll) == (2.0, 1.5)


def test_directions_are_scored_separately(translator):
    parts = [
        Direction("de-en", "13a", range(6)),
        Direction("en-de", "char", range(6, 16)),
        Direction("x", "13a", range(0)),
    ]
    result = filled(translator, list(range(16)), directions=parts).result()
    hypotheses, references = result.hypotheses, result.references
    assert result.directions == (
        ("de-en", scorers.bleu(hypotheses[:6], references[:6])),
        ("en-de", scorers.bleu(hypotheses[6:], references[6:], tokenize="char")),
    )
    assert result.numbers()["bleu_en-de"] == result.directions[1][1].value
    # 13a would take a Chinese sentence for one word
    assert result.bleu == scorers.bleu(hypotheses, references, tokenize="char")
    assert len(result.report()["signatures"]) == 4
    assert result.report()["sentences"] == 16


def test_a_limit_is_spread_over_the_file(translator):
    limited = filled(translator, list(range(16)), limit=4).result()
    assert limited.sources == [SOURCES[i] for i in (0, 5, 10, 15)]
    assert filled(translator, list(range(16)), limit=99).result().sources == SOURCES


def test_the_longest_line_is_the_same_everywhere():
    assert _parser().parse_args(["--ckpt", "x"]).max_len == LONGEST_SOURCE


def test_crop_keeps_the_end_of_sentence(translator):
    eos = translator.tokenizer.eos_id
    whole = batches(translator, [0, 15])[0]
    lengths = whole.src_mask.sum(1).tolist()
    assert lengths[0] > 5
    cut = crop(whole, 5, 4, eos_id=eos)
    assert cut.src_mask.sum(1).tolist() == [5, 5]
    assert cut.src[1].tolist() == [*whole.src[1, :4].tolist(), eos]
    assert [side.shape[1] for side in (cut.tgt_in, cut.tgt_out, cut.tgt_mask)] == [4, 4, 4]
    some = crop(whole, lengths[0], 1024, eos_id=eos)
    assert some.src[0].equal(whole.src[0, : lengths[0]])
    assert some.tgt_in.equal(whole.tgt_in)
    assert crop(whole, 1024, 1024, eos_id=eos).src.equal(whole.src)


def test_select_rows(translator):
    selected = select_rows(batches(translator, [4, 5, 6])[0], np.array([True, False, True]))
    assert selected.index.tolist() == [4, 6]
    assert selected.tgt_mask.shape[0] == 2


def test_cut_pairs_and_references_beyond_the_limit_are_known(translator, monkeypatch):
    monkeypatch.setattr("seq2seq.evaluation.evaluator.LONGEST_SOURCE", 11)
    limits = dataclasses.replace(translator.settings, max_len_ratio=0.0, max_len_extra=6)
    monkeypatch.setattr(translator, "settings", limits)
    lengths = [len(row) for row in translator.tokenizer.encode_tgt(REFERENCES)]  # each with its end
    seen: list[int] = []

    def widths(batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        seen.append(batch.tgt_in.shape[1])
        return losses(batch)

    result = evaluator(translator)
    for batch in batches(translator, list(range(16))):
        result.add(batch, widths)
    sources = [len(row) for row in translator.tokenizer.encode_src(SOURCES)]
    assert result.cut == {row for row in range(16) if lengths[row] > 11 or sources[row] > translator.max_len}
    assert 15 in result.cut
    # A blank source has an empty translation in any case
    assert result.beyond == {row for row, length in enumerate(lengths) if length > 6 and SOURCES[row].strip()}
    assert not SOURCES[14].strip()
    assert lengths[14] > 6
    assert max(seen) == 11 < max(lengths)
    merged = evaluator(translator)
    merged.merge([result.partial(), evaluator(translator).partial()])
    assert (merged.cut, merged.beyond) == (result.cut, result.beyond)
