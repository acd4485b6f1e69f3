"""Fine-tuning takes the checkpoint's model and tokenizer, and refuses a choice of the user that contradicts them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import tiny

from seq2seq import checkpoint
from seq2seq.config.chosen import chosen_settings, is_chosen
from seq2seq.config.compose import resolved_settings
from seq2seq.training import dry_run, finetune
from seq2seq.training.plan import RunPlan, make_plan

_CONTRADICTIONS = (
    r"model.dim=128-model\\.dim is 16 there and 128 here; add model\\.dim=16",
    r"mixer=gru-mixer\\.encoder\\._target_ is .*leave mixer=\\.\\.\\. out",
    r"data.vocab_size=2000-data\\.vocab_size is 300 there and 2000 here; leave it out",
    "experiment=iwslt14_de_en_transformer-is .* there and .* here",
)
REPRESENTATIVE = {"test_a_choice_that_contradicts_the_checkpoint_is_refused_with_both_values": _CONTRADICTIONS}


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save(tmp_path_factory.mktemp("start"))


def plan(start: Path, *words: str) -> RunPlan:
    """The plan of `train init_from=<start> <words>`, as typed on a command line."""
    words = (f"init_from={start}", *words)
    return make_plan(resolved_settings(words), mixer="dynamicconv", chosen=chosen_settings(words))


def adopted(start: Path, *words: str) -> dict[str, Any]:
    return finetune.adopt(plan(start, *words), checkpoint.load(start)).config


def test_nothing_of_the_model_needs_to_be_typed(start, caplog):
    caplog.set_level(logging.INFO)
    config = adopted(start)
    model = checkpoint.load(start).meta["model"]
    for section in ("model", "mixer"):
        assert all(config[section][key] == value for key, value in model[section].items())
    assert config["optim"]["lr"] == finetune.LEARNING_RATE
    assert "highest learning rate is 0.0001, for fine-tuning (from scratch it would be 0.004)" in caplog.text
    assert finetune.adopt(plan(start), checkpoint.load(start)).mixer == "attention"


def test_what_may_differ_is_obeyed(start):
    config = adopted(start, "model.dropout=0.4", "optim.lr=0.01", "model.dim=16", "data.vocab_size=300")
    assert (config["model"]["dropout"], config["model"]["dim"], config["optim"]["lr"]) == (0.4, 16, 0.01)
    # That of another optimizer is what was asked for
    assert adopted(start, "optim=cosine")["optim"]["lr"] == 1e-3


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("model.dim=128", r"model\.dim is 16 there and 128 here; add model\.dim=16"),
        ("model=base", r"model\.dim is 16 there and 512 here"),
        ("mixer=gru", r"mixer\.encoder\._target_ is .*leave mixer=\.\.\. out"),
        ("mixer/cross=additive", r"mixer\.cross\._target_"),
        ("data.vocab_size=2000", r"data\.vocab_size is 300 there and 2000 here; leave it out"),
        ("tokenizer.joint=false", r"tokenizer\.joint is True there and False here"),
        ("tokenizer.type=bpe", r"tokenizer\.type=bpe has no effect"),
        ("experiment=iwslt14_de_en_transformer", r"is .* there and .* here"),
    ],
)
def test_a_choice_that_contradicts_the_checkpoint_is_refused_with_both_values(start, word, message):
    with pytest.raises(ValueError, match=message) as caught:
        adopted(start, word)
    assert f"init_from={start}" in str(caught.value)


def test_a_setting_within_the_mixer_leaves_it_its_name(start):
    assert finetune.adopt(plan(start, "mixer.encoder.num_heads=2"), checkpoint.load(start)).mixer == "attention"


def test_a_dry_run_starts_from_the_same_model_at_the_same_rate(start):
    short = dry_run.shortened(plan(start, "model.dropout=0.4"))
    config = finetune.adopt(short, checkpoint.load(start)).config
    assert (config["model"]["dim"], config["model"]["dropout"]) == (16, 0.4)
    assert config["optim"]["lr"] == finetune.LEARNING_RATE


def test_settings_from_python_all_count_as_chosen(start):
    given = make_plan(resolved_settings([f"init_from={start}"]), mixer="dynamicconv")
    assert finetune.adopt(given, checkpoint.load(start)) is given


def test_keys_that_were_typed():
    chosen = chosen_settings(
        ["mixer=gru", "mixer/self@mixer.decoder=lstm", "+model.x=1", "~data.y", "trainer.max_steps=3"]
    )
    assert chosen == {"mixer", "mixer.decoder", "model.x", "data.y", "trainer.max_steps"}
    assert is_chosen("mixer.encoder.num_heads", chosen)
    assert is_chosen("trainer", chosen)
    assert not is_chosen("model.dim", chosen)
    assert not is_chosen("model", {"modelling"})
    recipe = chosen_settings(["experiment=iwslt14_de_en_transformer"])
    assert {"model", "mixer", "optim", "data.vocab_size"} <= recipe
    assert chosen_settings(["experiment=null"]) == frozenset()


def test_dropout_of_the_model_reaches_its_mixers(tmp_path):
    """A checkpoint's mixers have values, where a preset refers to the model's; a choice of their own stays."""
    attention = {"_target_": "seq2seq.mixers.attention.Attention", "num_heads": 2, "dropout": 0.0}
    conv = {"_target_": "seq2seq.mixers.lightconv.LightConv", "num_heads": 2, "kernel_size": 3, "weight_dropout": 0.0}
    cross = {"_target_": "seq2seq.mixers.attention.CrossAttention", "num_heads": 2, "dropout": 0.0}
    depthwise = {"_target_": "seq2seq.mixers.depthwise.Depthwise", "kernel_size": 3, "weight_dropout": 0.0}
    # Kinds may have kinds
    deep = {"kinds": {"one": dict(attention)}, "pattern": ["one"]}
    stack = {"kinds": {"deep": deep, "two": conv, "own": depthwise}, "pattern": ["deep", "two", "own"]}
    start = tiny.save(
        tmp_path, mixer={"encoder": stack, "decoder": attention, "cross": cross}, encoder_layers=3, weight_dropout=0.0
    )
    words = ("model.attention_dropout=0.3", "model.weight_dropout=0.2", "mixer.cross.dropout=0.1")
    fine = finetune.adopt(plan(start, *words), checkpoint.load(start))
    assert fine.mixer == "attention"
    config = fine.config
    mixer = config["mixer"]
    assert (config["model"]["attention_dropout"], config["model"]["weight_dropout"]) == (0.3, 0.2)
    assert mixer["encoder"]["kinds"]["deep"]["kinds"]["one"]["dropout"] == mixer["decoder"]["dropout"] == 0.3
    assert mixer["encoder"]["kinds"]["two"]["weight_dropout"] == 0.2
    assert mixer["cross"]["dropout"] == 0.1
    # Its file has a value of its own
    assert mixer["encoder"]["kinds"]["own"]["weight_dropout"] == 0.0


def test_another_machine_computes_in_its_own_way(tmp_path):
    """A checkpoint of a GPU, fine-tuned on a CPU, and the other way round."""
    gpu = {"_target_": "seq2seq.mixers.attention.Attention", "num_heads": 2, "packed": True}
    cross = {"_target_": "seq2seq.mixers.attention.CrossAttention", "num_heads": 2}
    start = tiny.save(tmp_path, mixer={"encoder": gpu, "decoder": gpu | {"packed": False}, "cross": cross})
    words = ("mixer=transformer", "model.num_heads=2", "+mixer.encoder.packed=false", "+mixer.cross.packed=true")
    mixer = adopted(start, *words)["mixer"]
    assert [mixer[slot]["packed"] for slot in ("encoder", "cross")] == [False, True]
    conv = {"_target_": "seq2seq.mixers.dynamicconv.DynamicConv", "num_heads": 2, "kernel_size": 3, "backend": "triton"}
    start = tiny.save(tmp_path, mixer={"encoder": conv, "decoder": conv, "cross": cross})
    assert adopted(start)["mixer"]["encoder"]["backend"] == "triton"
    mixer = adopted(start, "mixer.encoder.backend=auto")["mixer"]
    assert [mixer[slot]["backend"] for slot in ("encoder", "decoder")] == ["auto", "triton"]


def test_a_file_of_the_data_chooses_no_vocabulary(start, tmp_path):
    """Its default size stands in the composed settings, and is nobody's choice."""
    data = [f"data.{split}={tmp_path / split}" for split in ("train", "valid", "test")]
    assert adopted(start, "data=files", "data.name=mine", "data.src=de", "data.tgt=en", *data)["data"]["name"] == "mine"
    assert adopted(start, "tokenizer=bpe")
