"""Test the Python face: compose, Run, and the translator's methods for scripts and notebooks."""

from __future__ import annotations

import dataclasses
import doctest
import itertools
import json
import math
import re
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import tiny
import torch
import toycorpus

import seq2seq
from seq2seq import Run, Translator, api, build_model, compose, mixers
from seq2seq.mixers import DynamicConv
from seq2seq.training.objective.optim import learning_rate

ROOT = Path(seq2seq.__file__).parent.parent
LINES = tiny.sentences(tiny.GERMAN, 3, seed=4)
SHORT = ("trainer.max_steps=4", "trainer.val_steps=2")


@pytest.fixture(scope="module")
def translator(tmp_path_factory) -> Translator:
    return Translator.load(tiny.save(tmp_path_factory.mktemp("tiny")), device="cpu")


@pytest.fixture
def overrides(tmp_path: Path) -> list[str]:
    return [*toycorpus.words(toycorpus.write(tmp_path / "corpus"), tmp_path), *SHORT]


def test_the_public_names_are_there():
    assert set(seq2seq.__all__) <= set(dir(seq2seq))
    assert all(getattr(seq2seq, name) for name in seq2seq.__all__)
    assert {"CrossAttention", "DynamicConv", "LSTM", "NonLocal"} <= set(dir(mixers))


def test_compose_cuts_lists_as_the_command_does():
    """The lists of the presets have an entry for each layer of a deeper model."""
    config = compose(["mixer=dynamicconv", "model.encoder_layers=1", "model.decoder_layers=1"])
    sizes = {"src_vocab_size": 20, "tgt_vocab_size": 20, "pad_id": 0, "joint": True}
    assert build_model({**config, **sizes}).decoder.layers[0].self_mixer.dim == config["model"]["dim"]
    with pytest.raises(ValueError, match="modell"):
        compose(["modell.dim=3"])
    with pytest.raises(ValueError, match="src_vocab_size"):
        build_model({"model": {"dim": 64}})


def test_examples_in_docstrings():
    found = doctest.testmod(api)
    assert found.attempted > 0
    assert not found.failed


def test_a_mixer_is_a_plain_module():
    x = torch.randn(2, 5, 8)
    mixer = DynamicConv(dim=8, causal=True, num_heads=2, kernel_size=3)
    assert torch.equal(mixer(x), mixer(x, torch.ones(2, 5, dtype=torch.bool)))


def test_a_run(overrides):
    run = Run.train(overrides)
    assert repr(run) == f"Run('{run.path}')"
    assert run.results["test"]["bleu"] >= 0
    assert run.translator.texts(LINES) == Run(run.path).translator.texts(LINES)
    for wrong, message in (
        ("trainer.dry_run=true", "trainer.dry_run"),
        ("optim.lrr=1", "optim.lr"),
        ("resume=nowhere", "resume"),
    ):
        with pytest.raises(ValueError, match=message):
            Run.train([*overrides, wrong])
    with pytest.raises(ValueError, match="nowhere"):
        Run("nowhere")
    # Hydra takes these
    for method, wrong in itertools.product((Run.train, compose), ("~mixer", "mixer=[gru]")):
        with pytest.raises(ValueError, match=re.escape(wrong[:6])):
            method([wrong])
    for method in (Run.train, Run.lightning):
        with pytest.raises(ValueError, match="overrides is the str 'mixer=gru'"):
            method("mixer=gru")


def test_a_trainer_of_the_users_own(overrides, tmp_path):
    task, data = Run.lightning(overrides)
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
    trainer = L.Trainer(max_steps=2, use_distributed_sampler=False, default_root_dir=tmp_path, **options)
    trainer.fit(task, datamodule=data)
    # The rate falls to the end of the Trainer's own updates
    (group,) = trainer.optimizers[0].param_groups[:1]
    assert group["lr"] == learning_rate(3, task.optim, share=1)
    task.save(tmp_path / "mine.safetensors")
    found = task.translator().texts(LINES)
    assert Translator.load(tmp_path / "mine.safetensors", device="cpu").texts(LINES) == found


def test_options_by_name(translator):
    settings = dataclasses.replace(translator.settings, beam_size=3, n_best=2)
    assert translator.translate(LINES, beam_size=3, n_best=2) == translator.translate(LINES, settings=settings)
    drawn = translator.translate(LINES, samples=4, temperature=0.5, seed=3, n_best=4)
    assert [len(row) for row in drawn] == [4, 4, 4]
    assert translator.texts(LINES[0], beam_size=2) == translator.texts(LINES, beam_size=2)[0]
    with pytest.raises(TypeError, match="beam_size"):
        translator.translate(LINES, beam_siz=3)
    with pytest.raises(ValueError, match="temperature"):
        translator.translate(LINES, temperature=0.5)


def test_given_translations(translator):
    written = "the dog sees"
    pairs = [(LINES[0], written), ("", "")]
    score, blank = translator.score(pairs)
    tokenizer = translator.tokenizer
    (source,), (target,) = tokenizer.encode_src([LINES[0]]), tokenizer.encode_tgt([written])
    src, given = torch.tensor([source]), torch.tensor([[tokenizer.bos_id, *target[:-1]]])
    with torch.no_grad():
        log_probs = translator.model(src, torch.ones_like(src).bool(), given).log_softmax(-1)[0]
    expected = sum(float(row[token]) for row, token in zip(log_probs, target, strict=True))
    assert math.isclose(score, expected, rel_tol=1e-5)
    assert blank is None
    words, blank = translator.align(pairs)
    assert (words.source, words.target) == (LINES[0].split(), written.split())
    assert blank is None
    attention, blank = translator.attention(pairs)
    layers, heads, targets, sources = attention.weights.shape
    assert (layers, heads, targets, sources) == (1, 2, len(attention.target), len(attention.source))
    assert torch.allclose(attention.weights.sum(-1), torch.ones(layers, heads, targets))
    assert blank is None


def run_code(blocks: list[str], overrides: list[str]) -> None:
    """Run blocks of code one after another, with the overrides of a tiny run in place of the number of updates."""
    names: dict[str, Any] = {}
    for block in blocks:
        block = re.sub(r'"trainer\.max_steps=\d+"', lambda _: ", ".join(map(repr, overrides)), block)
        exec(compile(block, "<example>", "exec"), names)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["docs/python.md", "examples/mixers.ipynb"])
def test_examples_run(name, overrides, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.chdir(tmp_path)
    text = (ROOT / name).read_text("utf-8")
    if name.endswith(".md"):
        blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    else:
        blocks = ["".join(each["source"]) for each in json.loads(text)["cells"] if each["cell_type"] == "code"]
    # An example chooses its mixer
    run_code(blocks, [each for each in overrides if not each.startswith("mixer=")])


def test_the_translator_describes_itself(translator):
    assert repr(translator).startswith("Translator(de to en, ")


@pytest.mark.parametrize("wrong", [{"max_len": 0}, {"max_len": -5}, {"max_len": 1}, {"max_tokens": -1}])
def test_sizes_that_hold_no_text_are_refused(translator, wrong):
    ((name, value),) = wrong.items()
    with pytest.raises(ValueError, match=f"{name}={value} is not"):
        dataclasses.replace(translator, **wrong)


def test_devices_and_formats_may_be_torch_objects(tmp_path):
    path = tiny.save(tmp_path)
    made = Translator.load(path, device=torch.device("cpu"), dtype=torch.float32)
    assert repr(made) == repr(Translator.load(path, device="cpu", dtype="float32"))
    # Others are refused by their names
    for wrong, message in (
        ({"dtype": torch.float16}, "dtype 'float16'"),
        ({"device": torch.device("meta")}, "device 'meta'"),
        ({"trust": "numpy"}, "trust is the str 'numpy'"),
        ({"ensemble": str(path)}, "ensemble is the str"),
        ({"shortlist": tmp_path / "nowhere"}, "nowhere: no such file"),
    ):
        with pytest.raises(ValueError, match=message):
            Translator.load(path, **{"device": "cpu", **wrong})
