"""Batch sizes of a search: by tokens, by the numbers of a step, and on a GPU by its free memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from composed import VOCAB
from composed import tiny as model_of

import seq2seq.inference.translator
from seq2seq.inference import batch_rows
from seq2seq.inference.batch_rows import fitting_rows, kept_bytes, most_rows
from seq2seq.inference.limits import evaluation_tokens
from seq2seq.inference.translator import Translator
from seq2seq.settings.search import SearchSettings

CPU = torch.device("cpu")
BEAM = SearchSettings(beam_size=4, max_len_ratio=0, max_len_extra=20)


@pytest.fixture
def translator(tmp_path: Path) -> Translator:
    return Translator.load(tiny.save(tmp_path), settings=BEAM, device="cpu")


def test_the_memory_of_attention_for_a_sentence():
    """One layer of width 16 stores keys and values of the source, and of the target of each hypothesis."""
    t = tiny.tokenizer()
    model = tiny.build_model(tiny.model_config(t)).eval()
    expected = 4 * 16 * 2 * 8 + 4 * 4 * 16 * 2 * 20
    assert expected <= kept_bytes(model, 8, BEAM, CPU) <= 1.1 * expected


@pytest.mark.parametrize("mixer", ["transformer", "dynamicconv", "bahdanau"])
def test_rows_follow_memory_and_the_beam(monkeypatch, mixer):
    model, free = model_of(f"mixer={mixer}"), 10**8
    monkeypatch.setattr(batch_rows, "free_memory", lambda device: free)
    rows = fitting_rows(model, 8, BEAM, VOCAB, CPU)
    assert rows & (rows - 1) == 0
    each = kept_bytes(model, 8, BEAM, CPU) + 4 * BEAM.beam_size * VOCAB
    assert free / 4 <= 8 * rows * each <= free
    free *= 4
    assert fitting_rows(model, 8, BEAM, VOCAB, CPU) == 4 * rows
    assert (
        fitting_rows(model, 8, SearchSettings(beam_size=16, max_len_ratio=0, max_len_extra=20), VOCAB, CPU) < 4 * rows
    )
    free = 0
    assert fitting_rows(model, 8, BEAM, VOCAB, CPU) == 1


def test_free_memory_is_not_read_on_a_cpu_or_with_a_users_limit(translator, monkeypatch):
    monkeypatch.setattr(batch_rows, "free_memory", None)
    assert translator.rows(10, BEAM, 10**6) == 204
    assert translator.rows(5000, BEAM, 10**6) == 1
    assert translator.rows(1, SearchSettings(beam_size=1000), 10**6) == most_rows(
        1000, translator.tokenizer.tgt_vocab_size
    )
    given = {"model": translator.model, "tokenizer": translator.tokenizer, "meta": translator.meta, "settings": BEAM}
    own = Translator(**given, device="cuda", max_tokens=100_000)
    assert own.rows(10, BEAM, 10**6) == 10_000


def test_free_memory_of_a_gpu_matters_if_more_sentences_wait(translator, monkeypatch):
    given = {"model": translator.model, "tokenizer": translator.tokenizer, "meta": translator.meta, "settings": BEAM}
    on_gpu = Translator(**given, device="cuda")
    fitting = 5000
    monkeypatch.setattr("seq2seq.inference.translator.fitting_rows", lambda *given: fitting)
    assert on_gpu.rows(10, BEAM, 819) == 819
    assert on_gpu.rows(10, BEAM, 820) == 5000
    assert on_gpu.rows(100, BEAM, 820) == 655
    fitting = 2
    assert on_gpu.rows(100, BEAM, 820) == 2
    assert on_gpu.rows(100_000, BEAM, 820) == 1


def test_evaluations_have_larger_batches_on_a_gpu_only():
    assert [evaluation_tokens(given, gpu=True) for given in (1024, 16_384, 10**6)] == [4096, 65_536, 65_536]
    assert [evaluation_tokens(given, gpu=False) for given in (1024, 16_384, 10**6)] == [1024, 8192, 8192]


def test_a_padded_batch_is_searched_in_parts(translator, monkeypatch):
    src = torch.randint(4, 50, (5, 6))
    whole, sizes = translator.decode(src, src > 0), []
    plain = seq2seq.inference.translator.search

    def counted(model: Any, rows: torch.Tensor, *rest: Any, **how: Any) -> Any:
        sizes.append(len(rows))
        return plain(model, rows, *rest, **how)

    monkeypatch.setattr("seq2seq.inference.translator.search", counted)
    monkeypatch.setattr("seq2seq.inference.translator.fitting_rows", lambda *given: 2)
    translator.max_tokens, translator.by_memory = 6, True
    assert [row[0].text for row in translator.decode(src, src > 0)] == [row[0].text for row in whole]
    assert sizes == [2, 2, 1]
