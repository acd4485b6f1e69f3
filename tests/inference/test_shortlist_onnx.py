"""A shortlist with ONNX graphs gives the same translations as full scores with -inf outside the lists."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from exported import need, plain
from test_shortlist import toy_shortlist

from seq2seq.inference.description import write_description
from seq2seq.inference.export.onnx_graphs import write_onnx
from seq2seq.inference.model_files import load_model
from seq2seq.inference.onnx_model import FORMAT, GRAPHS, OUTPUT
from seq2seq.inference.translator import Translator
from seq2seq.settings.search import SearchSettings

need("onnx", "onnxscript", "onnxruntime")

EXHAUSTIVE = ("test_graphs_take_a_shortlist",)
LINES = tiny.sentences(tiny.GERMAN, 12, seed=4)
HOW = SearchSettings(beam_size=3, n_best=3, max_len_ratio=1.0, max_len_extra=5)


class Masked:
    """A model whose scores are -inf outside the list of one sentence, normalized over the list."""

    normalized = True

    def __init__(self, model: Any, allowed: torch.Tensor) -> None:
        self.model = model
        self.allowed = allowed
        self.context, self.init_state = model.context, model.init_state

    def step(self, *given: Any) -> Any:
        log_probs, state = self.model.step(*given)
        return log_probs.masked_fill(~self.allowed, -torch.inf).log_softmax(-1), state


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_graphs_take_a_shortlist(dtype, tmp_path):
    """Lines one by one with full scores, and all together with narrow scores."""
    tokenizer = tiny.tokenizer()
    write_onnx(tmp_path, plain(tokenizer), positions=None, tags=[], dtype=dtype)
    given = load_model(tmp_path, device="cpu")
    rest = {"tokenizer": tokenizer, "meta": given.meta, "settings": HOW}
    shortlist = toy_shortlist(tokenizer)
    found = Translator(model=given.model, shortlist=shortlist, **rest).translate(LINES)
    for line, candidates in zip(LINES, found, strict=True):
        (ids,) = tokenizer.encode_src([line])
        masked: Any = Masked(given.model, shortlist(ids))
        (twin,) = Translator(model=masked, **rest).translate([line])
        for mine, theirs in zip(candidates, twin, strict=True):
            assert mine.score == pytest.approx(theirs.score, abs=1e-4)
            assert mine.text == theirs.text or mine.score == pytest.approx(theirs.score, abs=1e-5)


class NarrowSession:
    """Stand-in for a session of ONNX Runtime, which is never run."""

    def get_inputs(self) -> list[Any]:
        """Return one input."""
        return [SimpleNamespace(name="scored", shape=["tokens"])]


def test_a_folder_without_the_output_layer_is_refused_before_any_line(tmp_path, monkeypatch):
    """With a shortlist, a missing, truncated, packed or foreign file of the output layer is refused."""
    given, short, weights = plain(tiny.tokenizer()), tmp_path / "short.npz", tmp_path / OUTPUT
    write_description(tmp_path, given.meta, given.tokenizer, "onnx", {"format": FORMAT})
    toy_shortlist(given.tokenizer).save(short)
    shape = tuple(given.model.output.weight.shape)
    arrays = {"weight": np.ones(shape, np.float32)}
    arrays |= {} if given.model.output.bias is None else {"bias": np.ones(shape[0], np.float32)}
    others = []
    changes = {
        "rows": {"weight": np.ones((shape[0] - 1, shape[1]))},
        "scale": {"scale": np.ones(7)},
        "more": {"x": [1]},
    }
    for change in ({"bias": np.ones(7)}, *changes.values()):
        np.savez(weights, **{**arrays, **change})  # type: ignore[arg-type]
        others.append(weights.read_bytes())
    np.savez_compressed(weights, **arrays)  # type: ignore[arg-type]
    others.append(weights.read_bytes())
    np.savez(weights, **arrays)  # type: ignore[arg-type]
    whole = weights.read_bytes()
    for name in GRAPHS:
        (tmp_path / name).write_bytes(bytes(10_000))
    monkeypatch.setattr("seq2seq.inference.onnx_model._session", lambda *_: NarrowSession())
    how = {"settings": HOW, "device": "cpu"}
    Translator.load(tmp_path, shortlist=short, **how)
    for content in (whole[:100], short.read_bytes(), b"", *others):
        weights.write_bytes(content)
        with pytest.raises(ValueError, match=OUTPUT):
            Translator.load(tmp_path, shortlist=short, **how)
    weights.unlink()
    with pytest.raises(ValueError, match=OUTPUT):
        Translator.load(tmp_path, shortlist=short, **how)
    Translator.load(tmp_path, **how)
