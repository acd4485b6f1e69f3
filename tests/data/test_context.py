"""Context of a document: the same sources in training, translation, forced decoding and a stream of lines."""

from __future__ import annotations

import copy
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
import toycorpus
from service_client import served

from seq2seq import checkpoint
from seq2seq.data.batching import collate
from seq2seq.data.context import ContextWindow, fit_context, sentence_lengths
from seq2seq.data.marks import SEPARATOR
from seq2seq.data.preparation import prepare_corpora
from seq2seq.data.ragged import Ragged
from seq2seq.data.raw_pairs import open_split
from seq2seq.evaluation.checkpoint_score import score_checkpoint
from seq2seq.evaluation.evaluator import Evaluator
from seq2seq.evaluation.scoring import ScoreSettings
from seq2seq.inference import line_stream
from seq2seq.inference.forced import force
from seq2seq.inference.forced_text import force_candidates
from seq2seq.inference.translator import Translator
from seq2seq.metadata import describe
from seq2seq.settings.data import CorpusSettings
from seq2seq.settings.search import SearchSettings
from seq2seq.training.lightning_parts.datamodule import TranslationDataModule

LINES = ["das Haus.", "der Hund geht.", "", "ein Hund.", "die Katze kommt.", "ich und du."]
# By hand, for two sentences of context
SOURCES = [
    "das Haus.",
    "das Haus.|der Hund geht.",
    "",
    "ein Hund.",
    "ein Hund.|die Katze kommt.",
    "ein Hund.|die Katze kommt.|ich und du.",
]
ENGLISH = ["the house.", "the dog walks.", "", "a dog.", "the cat comes.", "I and you."]


def test_a_window_by_hand():
    window = ContextWindow(2)
    assert [window(line).replace(SEPARATOR, "|") for line in LINES] == SOURCES
    assert window("not you.") == SEPARATOR.join(["die Katze kommt.", "ich und du.", "not you."])
    # The code point in a user's text is no boundary
    assert ContextWindow(1)(f"a{SEPARATOR}b") == "a b"
    assert fit_context([5, 9, 6, 7, 9, 8], 9, 4) == [6, 7, 9, 8]
    assert fit_context([5, 9, 6, 7, 8], 9, 2) == [6, 7, 8]
    rows = Ragged.from_rows([[4, 5, 3], [4, 9, 5, 6, 9, 7, 3], [9, 3], [5, 3]])
    assert sentence_lengths(rows, 9).tolist() == [3, 2, 1, 2]
    assert sentence_lengths(rows.select(np.array([1, 0])), 9).tolist() == [2, 3]


@pytest.fixture(scope="module")
def tokenizer():
    return tiny.tokenizer(symbols=("<sep>",))


def by_hand(tokenizer) -> list[list[int]]:
    """Encode SOURCES sentence by sentence."""
    separator = tokenizer.src.piece_to_id("<sep>")
    rows = []
    for source in SOURCES:
        row: list[int] = []
        for sentence in source.split("|"):
            row += [*([separator] if row else []), *tokenizer.src.encode(sentence)]
        rows.append([*row, 3])
    return rows


@pytest.mark.parametrize("place", ["files", "folder", "part"])
def test_each_file_is_a_document(tmp_path, place):
    for number in (1, 2):
        rows = ({"de": f"d{number} s{i}", "en": "x"} for i in (1, 2))
        (tmp_path / f"train-{number}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    named: dict[str, Any] = (
        {"train": f"{tmp_path}/*.jsonl"} if place == "files" else {"path": str(tmp_path), "train": "train"}
    )
    named |= {"train": "train[1:]"} if place == "part" else {}
    chosen = CorpusSettings(src="de", tgt="en", context=2, valid="v", test="t", **named)
    found = [line for src, _ in open_split("train", chosen, cache_dir=tmp_path / "c") for line in src]
    expected = [["d1 s1"], ["d1 s1", "d1 s2"], ["d2 s1"], ["d2 s1", "d2 s2"]]
    assert found == [SEPARATOR.join(each) for each in ([["d1 s2"], *expected[2:]] if place == "part" else expected)]


def test_training_reads_the_context_and_cleans_the_sentence(tmp_path, tokenizer, caplog):
    model = tmp_path / "spm.model"
    model.write_bytes(tokenizer.to_state()["src_model"])
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.de").write_text("".join(f"{line}\n" for line in [*LINES, "same", "ein Hund."]))
        (tmp_path / f"{split}.en").write_text("".join(f"{line}\n" for line in [*ENGLISH, "same", "a dog."]))
    data = {"src": "de", "tgt": "en", "context": 2, "max_tokens": 400, "clean": {"length_ratio": 3}}
    data |= {split: str(tmp_path / split) for split in ("train", "valid", "test")}
    options = {"tokenizer": {"model": str(model)}, "cache_dir": tmp_path / "cache"}
    prepared = prepare_corpora(toycorpus.data_plan(data, **options))
    assert "6 of the 8 pairs of data.valid are also training pairs" in caplog.text
    expected = by_hand(tokenizer)
    made = TranslationDataModule(prepared)
    loaders = {"train": made.train_dataloader(), "valid": made.val_dataloader()}
    streamed = toycorpus.data_plan({**data, "streaming": True, "shuffle_buffer": 10}, **options)
    stream = iter(prepare_corpora(streamed).stream())
    for batches in (loaders["train"], [next(stream)]):
        rows = [row[mask].tolist() for b in batches for row, mask in zip(b.src, b.src_mask, strict=True)]
        # Not the blank pair and not `same`, which stays context; the last pair is new in its context
        last = [*tokenizer.encode_src([SEPARATOR.join(["ich und du.", "same", "ein Hund."])])[0]]
        assert sorted(rows) == sorted([row for row in expected if len(row) > 1] + [last])
    # Validation keeps every line, and its text has no context
    batches = [zip(b.index.tolist(), b.src, b.src_mask, strict=True) for b in loaders["valid"]]
    kept = {i: row[mask].tolist() for batch in batches for i, row, mask in batch}
    assert [kept[i] for i in range(6)] == expected
    assert prepared.sources("valid") == [*LINES, "same", "ein Hund."]
    # Statistics are of sentences, by which `translate` cuts lines
    longest = max(len(tokenizer.src.encode(line)) for line in LINES)
    assert (prepared.statistics.sentences, prepared.statistics.longest) == (1, longest)


@pytest.mark.parametrize("named", [False, True])
def test_documents_are_not_torn(tmp_path, named):
    place: dict[str, Any] = {"train": str(toycorpus.write(tmp_path, (40, 2, 2)) / "train")}
    data = {"src": "de", "tgt": "en", "context": 1, **({"corpora": {"train": place}} if named else place)}
    with pytest.raises(ValueError, match=r"data\.context=1: .* set data\.valid and data\.test"):
        prepare_corpora(toycorpus.data_plan(data, cache_dir=tmp_path / "cache"))


@pytest.fixture(scope="module")
def translator(tmp_path_factory, tokenizer) -> Translator:
    path = tmp_path_factory.mktemp("model") / "tiny.safetensors"
    stored = tiny.payload(t=tokenizer)
    keys = ("src_lang", "tgt_lang", "tokenize", "data")
    entry = describe(
        model_config=stored.meta["model"], tokenizer=tokenizer, context=2, **{key: stored.meta[key] for key in keys}
    )
    checkpoint.save(path, stored._replace(meta=entry))
    search = SearchSettings(beam_size=2, max_len_ratio=0, max_len_extra=6)
    return Translator.load(path, device="cpu", settings=search)


def best(translator: Translator, row: list[int]) -> str:
    if len(row) == 1:
        return ""
    src = torch.tensor([row])
    return translator.decode(src, torch.ones_like(src, dtype=torch.bool))[0][0].text


def test_translation_has_the_context_of_its_document(translator, tokenizer):
    expected = [best(translator, row) for row in by_hand(tokenizer)]
    alone = translator.texts(LINES, document=False)
    assert translator.context == 2
    assert translator.texts(LINES) == expected
    assert alone != expected
    assert alone == [best(translator, [*tokenizer.src.encode(line), 3]) for line in LINES]
    # A document goes on behind earlier lines, and in the sentences of a line
    assert translator.texts(LINES[4:], before=LINES[:4]) == expected[4:]
    assert translator.texts(["\n".join(LINES[3:])], document=False) == ["\n".join(expected[3:])]
    assert translator.texts(["\n".join(LINES)], document=False) == ["\n".join(expected)]
    # Documents that begin without a blank line
    assert translator.texts(LINES[3:], document=[1, 2]) == alone[3:]
    assert translator.texts(LINES[4:], before=LINES[:4], document=[0]) == translator.texts(LINES[4:])
    # As much context as fits
    narrow = copy.copy(translator)
    narrow.max_len = max(len(tokenizer.src.encode(line)) for line in LINES[:2]) + 1
    assert narrow.texts(LINES[:2]) == alone[:2]


def test_a_run_validates_with_as_much_context_as_fits(translator, tokenizer):
    narrow = copy.copy(translator)
    narrow.max_len = max(len(tokenizer.src.encode(line)) for line in LINES) + 3
    rows = by_hand(tokenizer)
    assert max(map(len, rows)) > narrow.max_len
    evaluator = Evaluator(narrow, LINES, ENGLISH)
    numbers = np.arange(len(LINES))
    src, tgt = Ragged.from_rows(rows), Ragged.from_rows(tokenizer.encode_tgt(ENGLISH))
    batch = collate(src, tgt, numbers, pad_id=tokenizer.pad_id, bos_id=tokenizer.bos_id)
    evaluator.add(batch, lambda batch: (torch.ones(()), torch.ones(()), batch.tgt_mask.sum()))
    assert evaluator.result().hypotheses == narrow.texts(LINES)
    assert not evaluator.cut


def test_score_knows_where_documents_begin(translator, tmp_path):
    """Each file is a document."""
    for number, rows in enumerate((range(2), range(3, 6))):
        text = "".join(f"{json.dumps({'de': LINES[i], 'en': ENGLISH[i]})}\n" for i in rows)
        (tmp_path / f"{number}.jsonl").write_text(text)
    settings = ScoreSettings(metrics=("bleu",))
    where: dict[str, Any] = {"ckpt": "none", "split": "test", "cache": tmp_path / "cache", "warn": print}
    saved = tmp_path / "saved"
    words = ["files", "src=de", "tgt=en", f"test={tmp_path}/*.jsonl"]
    score_checkpoint(translator, settings, data=words, save=saved, **where)
    assert saved.read_text().splitlines() == [text for text in translator.texts(LINES) if text]


def test_a_service_shows_parts_without_their_context(translator):
    with served(translator) as running:
        (one,) = running.call({"text": "\n".join(LINES[:2]), "alignment": True}).json["translations"]
    assert [part["source"] for part in one["candidates"][0]["parts"]] == LINES[:2]


def test_a_stream_of_lines_keeps_the_document_between_windows(translator, tokenizer, monkeypatch):
    expected = [best(translator, row) for row in by_hand(tokenizer)]
    monkeypatch.setattr(line_stream, "WINDOW_LINES", 2)
    sink = io.BytesIO()
    stream = line_stream.LineStream(translator=translator, format="text", warn=lambda message: None)
    stream.run(io.BytesIO("".join(f"{line}\n" for line in LINES).encode()), sink)
    assert sink.getvalue().decode().split("\n")[:-1] == expected


def test_forced_scores_have_the_context_and_alignments_the_sentence(translator, tokenizer):
    pairs = list(zip(LINES, ENGLISH, strict=True))
    rows = list(zip(by_hand(tokenizer), tokenizer.encode_tgt(ENGLISH), strict=True))
    del rows[2]
    how = {"special": translator.special, "device": torch.device("cpu")}
    expected = [sum(each.log_probs) for each in force(translator.model, rows, **how)]
    assert translator.score(pairs) == [*map(pytest.approx, expected[:2]), None, *map(pytest.approx, expected[2:])]
    words = [each.source for each in translator.align(pairs) if each]
    assert words == [line.split() for line in LINES if line]
    # The translator's own translations, which carry their context with them
    found = translator.translate(LINES)
    own = force_candidates(translator, LINES, found, align=True)
    scores = translator.score([(line, row[0].text) for line, row in zip(LINES, found, strict=True)])
    assert [row[0].log_prob for row in own] == [score and pytest.approx(score) for score in scores]
    assert [row[0].words.source for row in own if row[0].words] == words


def test_an_ensemble_needs_one_context(translator, tokenizer, tmp_path: Path):
    stored = tiny.payload(t=tokenizer)
    checkpoint.save(tmp_path / "one.safetensors", stored)
    checkpoint.save(tmp_path / "two.safetensors", stored._replace(meta={**stored.meta, "context": 3}))
    with pytest.raises(ValueError, match=r"data\.context=3, and .* with 0"):
        Translator.load(tmp_path / "one.safetensors", ensemble=[tmp_path / "two.safetensors"], device="cpu")
