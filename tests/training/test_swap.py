"""Fine-tuning with another mixer keeps the weights that fit, and refuses differences that nobody asked for."""

from __future__ import annotations

import copy
import dataclasses
import logging
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
import toycorpus
from composed import resolved

from seq2seq import checkpoint
from seq2seq.network.build import build_model
from seq2seq.runs.training_state import read_state
from seq2seq.settings.compose import chosen_settings, typed_mixers
from seq2seq.training import checks, finetune
from seq2seq.training.plan import RunPlan, make_plan
from seq2seq.training.run import TrainingRun

EXHAUSTIVE = {"test_the_same_preset_by_name_is_no_swap", "test_a_new_mixer_has_the_sizes_of_the_checkpoint"}
REPRESENTATIVE = {
    "test_a_new_mixer_starts_from_the_values_of_the_old_one": {"true-lightconv"},
    "test_a_typed_mixer_replaces_the_checkpoints": {
        "words0-expected0-new: 1,140 in decoder.layers.0-1.mix.f",
        "words3-expected3-left out: 2,048 in decoder.layers",
        "words4-expected4-17,776 of 17,776",
    },
}

SLOT = "mixer/self@mixer.decoder=lightconv"


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save(tmp_path_factory.mktemp("start"), encoder_layers=3, decoder_layers=2)


def plan(start: Path, *words: str) -> RunPlan:
    """The plan of `train init_from=<start> <words>`, as typed on a command line."""
    words = (f"init_from={start}", *words)
    given: dict[str, Any] = {"chosen": chosen_settings(words), "replaced": typed_mixers(words)}
    return make_plan(resolved(words), mixer="dynamicconv+decoder.lightconv", **given)


def swapped(start: Path, *words: str) -> RunPlan:
    """The plan with the settings of the checkpoint, once its model has been built."""
    loaded = checkpoint.load(start)
    found = finetune.adopt(plan(start, *words), loaded)
    checks.check_model(found, loaded)
    return found


def targets(found: RunPlan) -> list[str]:
    return [found.mixers[slot].get("_target_", "").rpartition(".")[2] for slot in ("encoder", "decoder", "cross")]


@pytest.mark.parametrize(
    ("words", "expected", "new"),
    [
        ((SLOT,), ["Attention", "LightConv", "CrossAttention"], "new: 1,140 in decoder.layers.0-1.mix.f"),
        (("mixer=lightconv",), ["LightConv", "LightConv", "CrossAttention"], "1,730 in encoder.layers.0-2.mix.f;"),
        (("mixer/cross=additive",), ["Attention", "Attention", "AdditiveAttention"], "decoder.layers.0-1.read.f"),
        (("mixer/self@mixer.decoder=none",), ["Attention", "", "CrossAttention"], "left out: 2,048 in decoder.layers"),
        # Another argument of one class, by a file for this slot
        (("mixer/self@mixer.decoder=rotary",), ["Attention", "Attention", "CrossAttention"], "17,776 of 17,776"),
        (("mixer=bahdanau",), ["BiGRU", "", "Bahdanau"], "in decoder.layers.0-1.read.f"),
    ],
)
def test_a_typed_mixer_replaces_the_checkpoints(start, caplog, words, expected, new):
    caplog.set_level(logging.INFO)
    assert targets(swapped(start, *words)) == expected
    assert new in caplog.text


def test_a_new_mixer_has_the_sizes_of_the_checkpoint(start):
    """Heads as the checkpoint's model (conf/ has 4), kernels for its layers, its depth, and its label."""
    found = swapped(start, SLOT)
    decoder = found.mixers["decoder"]
    assert (decoder["num_heads"], decoder["per_layer"]) == (2, {"kernel_size": [3, 7]})
    assert found.mixer == "attention+decoder.lightconv"
    # mixer=lightconv has another layer in its encoder
    assert swapped(start, "mixer=lightconv").mixers.get("extra_encoder_layers", 0) == 0
    deeper = swapped(start, "mixer=lightconv", "mixer.extra_encoder_layers=1").mixers
    assert (deeper["extra_encoder_layers"], len(deeper["encoder"]["per_layer"]["kernel_size"])) == (1, 4)
    typed = swapped(start, SLOT, "mixer.decoder.num_heads=4", "mixer.decoder.per_layer.kernel_size=[5]").mixers
    assert (typed["decoder"]["num_heads"], typed["decoder"]["per_layer"]) == (4, {"kernel_size": [5]})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((SLOT, "model.dim=32"), r"model\.dim is 16 there and 32 here"),
        (("mixer.encoder.num_heads=4",), r"mixer\.encoder\.num_heads is 2 there and 4 here"),
        ((SLOT, "mixer.decoder.per_layer.kernel_size=[3,5,7]"), "lists 3 values for 2 layers"),
    ],
)
def test_a_difference_that_no_one_typed_is_refused(start, words, message):
    with pytest.raises(ValueError, match=message):
        swapped(start, *words)


def test_a_mixer_that_an_experiment_chose_is_refused(start):
    """It is in `chosen`, but no word of the user names it."""
    found = dataclasses.replace(plan(start, "mixer=gru"), replaced=typed_mixers(["experiment=wu"]))
    with pytest.raises(ValueError, match=r"mixer\.encoder\._target_ is .*mixer/self@mixer\.decoder"):
        finetune.adopt(found, checkpoint.load(start))


def test_the_same_preset_by_name_is_no_swap(start, caplog):
    caplog.set_level(logging.INFO)
    assert targets(swapped(start, "mixer=transformer")) == ["Attention", "Attention", "CrossAttention"]
    assert "in place of" not in caplog.text


def test_keys_that_choose_a_mixer():
    words = ["mixer=gru", SLOT, "mixer/cross=additive", "mixer.encoder._target_=mine.Mixer", "experiment=wu", "seed=1"]
    assert typed_mixers(words) == {"mixer", "mixer.decoder", "mixer.cross", "mixer.encoder._target_"}


def test_weights_that_fit_are_kept_and_the_others_are_drawn(start):
    loaded = checkpoint.load(start)
    config = swapped(start, SLOT).model_config(
        {key: each for key, each in loaded.meta["model"].items() if key not in ("model", "mixer")}
    )
    torch.manual_seed(1)
    drawn = build_model(config).state_dict()
    torch.manual_seed(1)
    model = build_model(config)
    finetune.keep_weights(model, loaded.model.state_dict())
    old = loaded.model.state_dict()
    for name, weight in model.state_dict().items():
        fits = name in old and old[name].shape == weight.shape
        assert weight.equal((old if fits else drawn)[name]), name
        assert fits or (name.startswith("decoder.layers.") and ".mix.f." in name)


@pytest.mark.parametrize("name", ["lightconv", "dynamicconv"])
@pytest.mark.parametrize("glu", ["true", "false"])
def test_a_new_mixer_starts_from_the_values_of_the_old_one(start, caplog, name, glu):
    """At one position attention reads this alone, as a kernel of one tap does; the taps of longer ones are equal."""
    caplog.set_level(logging.INFO)
    loaded = checkpoint.load(start)
    words = (f"mixer/self@mixer.decoder={name}", f"mixer.decoder.glu={glu}", "mixer.decoder.per_layer=null")
    sizes = {key: each for key, each in loaded.meta["model"].items() if key not in ("model", "mixer")}
    for taps in (1, 2):
        found = swapped(start, *words, f"+mixer.decoder.kernel_size={taps}")
        model = build_model(found.model_config(sizes)).eval()
        finetune.keep_weights(model, loaded.model.state_dict())
        finetune.start_mixers(model, loaded.model, finetune.new_weights(model, loaded.model.state_dict()))
        x = torch.randn(2, 1, 16)
        layers: list[Any] = [*zip(loaded.model.decoder.layers, model.decoder.layers, strict=True)]
        for old, own in layers:
            if taps == 1:
                torch.testing.assert_close(own.self_mixer(x), old.self_mixer(x))
            elif name == "dynamicconv":
                torch.testing.assert_close(own.self_mixer(x), old.self_mixer(x) / 2)
    assert "values: 512 in decoder.layers.0-1.mix.f" in caplog.text


def test_a_kept_matrix_of_values_is_not_copied_again(start):
    """The same mixer again, of which all weights fit."""
    loaded = checkpoint.load(start)
    model = copy.deepcopy(loaded.model)
    finetune.start_mixers(model, loaded.model, finetune.new_weights(model, loaded.model.state_dict()))
    assert all(weight.equal(model.state_dict()[name]) for name, weight in loaded.model.state_dict().items())


def test_a_swapped_model_is_trained_translated_and_resumed(tmp_path):
    corpus = toycorpus.write(tmp_path / "corpus", (60, 6, 6))
    origin = tiny.save(tmp_path)
    words = toycorpus.words(corpus, tmp_path, f"init_from={origin}", SLOT, "trainer.test=false", "run=swap")
    words = [word for word in words if not word.startswith(("mixer=", "model.", "data.vocab_size"))]
    chosen = chosen_settings([SLOT, "data", "optim.lr", "trainer", "init_from"])

    def run(*more: str) -> TrainingRun:
        settings = resolved([*words, *more])
        made = TrainingRun(make_plan(settings, mixer="x", chosen=chosen, replaced=typed_mixers(words)))
        made.execute()
        return made

    folder = run("trainer.max_steps=1").folder
    model = checkpoint.load(folder.best).model
    assert [type(layer.self_mixer).__name__ for layer in model.decoder.layers] == ["LightConv"]
    run("trainer.max_steps=2", "resume=auto")
    assert read_state(folder.last)["global_step"] == 2
