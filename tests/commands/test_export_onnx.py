"""Test ONNX graphs of every preset, run by ONNX Runtime inside our own search, against our own layers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny
import torch
from composed import PRESETS
from exported import loaded, need, plain, preset

from seq2seq.archive import CheckpointError
from seq2seq.build import max_positions
from seq2seq.checkpoint import Loaded
from seq2seq.config.search import SearchSettings
from seq2seq.config.tokenizer import TokenizerSettings
from seq2seq.data.tokenizer import Tokenizer, train_tokenizer
from seq2seq.inference.export.agreement import SENTENCES
from seq2seq.inference.export.onnx_graphs import write_onnx
from seq2seq.inference.onnx_model import load_onnx
from seq2seq.inference.translator import Translator
from seq2seq.resources import data_dir

need("onnx", "onnxscript", "onnxruntime")

# a trace takes seconds
EXHAUSTIVE = (
    "test_200_sentences_translate_alike",
    "test_graphs_take_long_sources_and_wide_beams",
    "test_the_published_rnnsearch_has_a_graph_too",
)
REPRESENTATIVE = {"test_the_graphs_of_every_preset_agree": ["transformer"]}


@pytest.fixture(scope="module")
def phrasebook() -> list[dict[str, str]]:
    lines = (data_dir() / "phrasebook" / "test.jsonl").read_text("utf-8").splitlines()[:200]
    return [json.loads(line)["translation"] for line in lines]


@pytest.fixture(scope="module")
def tokenizer(phrasebook) -> Tokenizer:
    sides = {"src_lines": [pair["de"] for pair in phrasebook], "tgt_lines": [pair["en"] for pair in phrasebook]}
    return train_tokenizer(**sides, settings=TokenizerSettings(vocab_size=400))


def write(folder: Path, given: Loaded) -> Loaded:
    """Export and read back."""
    assert write_onnx(folder, given, positions=max_positions(given.meta["model"]), tags=[]) == SENTENCES
    return load_onnx(folder)


def translator(given: Loaded, beam_size: int) -> Translator:
    settings = SearchSettings(
        beam_size=beam_size, n_best=min(3, beam_size), max_len_extra=6, max_len=max_positions(given.meta["model"])
    )
    return Translator(model=given.model, tokenizer=given.tokenizer, meta=given.meta, settings=settings)


@pytest.mark.parametrize("name", PRESETS)
def test_the_graphs_of_every_preset_agree(name, tokenizer, tmp_path):
    """Greedy search is compared while exporting; here a beam, whose hypotheses change places, and a batch."""
    given = preset(name, tokenizer)
    lines = tiny.sentences(tiny.GERMAN, 6)
    theirs = translator(write(tmp_path, given), 3).translate(lines)
    ours = translator(given, 3).translate(lines)
    assert [[each.text for each in row] for row in theirs] == [[each.text for each in row] for row in ours]
    scores = [[each.score for row in rows for each in row] for rows in (theirs, ours)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-4)


@pytest.mark.parametrize("name", ["transformer", "bahdanau", "lightconv", "dynamicconv"])
def test_200_sentences_translate_alike(name, tokenizer, phrasebook, tmp_path):
    given = preset(name, tokenizer)
    lines = [pair["de"] for pair in phrasebook]
    assert len(lines) == 200
    theirs = translator(write(tmp_path, given), 5).translate(lines)
    ours = translator(given, 5).translate(lines)
    # a difference needs a tie: scores that agree although texts do not
    for mine, other in zip(ours, theirs, strict=True):
        assert [each.score for each in other] == pytest.approx([each.score for each in mine], abs=1e-4)
    different = sum([a.text for a in mine] != [b.text for b in other] for mine, other in zip(ours, theirs, strict=True))
    assert different <= 2


@pytest.mark.parametrize("name", ["transformer", "dynamicconv", "local", "gated_delta", "bahdanau", "lstm"])
def test_graphs_take_long_sources_and_wide_beams(name, tokenizer, tmp_path):
    """Sizes far from those of the trace, on either side of every block and chunk."""
    given = preset(name, tokenizer)
    written = write(tmp_path, given)
    for batch_size, length in ((1, 1), (1, 200), (5, 130)):
        src = torch.randint(4, tokenizer.src_vocab_size, (batch_size, length))
        mask = torch.ones_like(src).bool()
        mask[-1, length - length // 3 :] = False
        with torch.inference_mode():
            ours = given.model.context(src, mask)
            theirs = written.model.context(src, mask)
            token = torch.full((batch_size * 7,), tokenizer.bos_id)
            states = [given.model.init_state(ours, beam_size=7, max_len=40) for _ in range(2)]
            for step in range(20):
                position = torch.full_like(token, step)
                logits, states[0] = given.model.step(token, ours, states[0], position)
                found, states[1] = written.model.step(token, theirs, states[1], position)
                assert found == pytest.approx(logits, abs=1e-2)
                token = torch.randint(4, tokenizer.tgt_vocab_size, token.shape)


def test_the_published_rnnsearch_has_a_graph_too(tokenizer, tmp_path):
    """Its GRU resets before the product, which is a loop in Python."""
    config = preset("bahdanau", tokenizer).meta["model"]
    for slot in ("encoder", "cross"):
        config["mixer"][slot]["reset"] = "before"
    write(tmp_path, loaded(config, tokenizer))


def test_graphs_run_on_the_cpu_in_float32_alone(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"seq2seq": {}, "onnx": {"format": 1}}))
    with pytest.raises(ValueError, match="ONNX graphs, which run on the CPU in float32, not on cpu in bfloat16"):
        Translator.load(tmp_path, dtype="bfloat16")


def test_a_folder_of_another_format_or_without_a_graph_is_one_line(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"seq2seq": {"tokenizer": {}}, "onnx": {"format": 2}}))
    with pytest.raises(CheckpointError, match="its graphs are of format 2, not 1"):
        load_onnx(tmp_path)


def test_whole_targets_are_refused(tokenizer):
    from seq2seq.inference.onnx_model import OnnxModel

    class NoSession:
        def get_inputs(self) -> list:
            return []

    model = OnnxModel(plain(tokenizer).model.to("meta"), NoSession(), NoSession())
    src = torch.ones(1, 2, dtype=torch.int64)
    with pytest.raises(ValueError, match="decodes step by step only"):
        model(src, src.bool(), src)
