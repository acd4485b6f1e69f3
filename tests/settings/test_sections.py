"""Settings classes: keys and values of sections, and defaults for settings that are newer than a run."""

from __future__ import annotations

import dataclasses

import pytest
from composed import resolved

from seq2seq.settings.data import DataSettings
from seq2seq.settings.declare import defaults, keys, read_section
from seq2seq.settings.run import SECTIONS, present_settings, read_settings
from seq2seq.settings.search import SearchSettings

EXHAUSTIVE = {"test_median_stopping_needs_the_curves_of_jobs"}


@pytest.mark.parametrize("section", SECTIONS)
def test_every_setting_has_a_help_of_one_line(section):
    for name, field in keys(SECTIONS[section]).items():
        text = field.metadata["help"]
        assert text, name
        assert "\n" not in text, name


@pytest.mark.parametrize("section", SECTIONS)
def test_composed_settings_have_the_keys_and_defaults_of_the_classes(section):
    composed = resolved(["optim=adam", "model=base", "data=files"])
    values = composed[section] if section else composed
    for name, value in defaults(SECTIONS[section]).items():
        assert name in values, name
        if name not in ("name", "src", "tgt", "cache", "peak_lr", "weight_decay"):  # set by files of conf/
            assert values[name] == value, name


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"beams": 3},
            r"^unknown setting search.beams; the setting is search.beam_size .known: beam_size, .*n_best, .*.$",
        ),
        ({"max_len": 3}, "unknown setting search.max_len"),
        ({"beam_size": "two"}, "^search.beam_size=two is not a whole number from 1 to 1,000$"),
        ({"beam_size": 2.5}, "^search.beam_size=2.5 is not a whole number"),
        ({"beam_size": None}, "^search.beam_size=null is not a whole number"),
    ],
)
def test_a_wrong_value_is_named(values, message):
    with pytest.raises(ValueError, match=message):
        read_section(SearchSettings, values, "search")


def test_a_required_setting_is_missing():
    """Hydra's mark ??? is not a word."""
    with pytest.raises(ValueError, match=r"^data\.tgt is missing: .*as in data\.tgt=en"):
        read_section(DataSettings, {"name": "mine", "src": "de", "tgt": "???"}, "data")


def test_numbers_have_the_types_of_the_class():
    settings = read_section(SearchSettings, {"beam_size": 4e0, "length_penalty": 1}, "search")
    assert [type(value) for value in dataclasses.astuple(settings)[:4]] == [int, float, int, float]


@pytest.mark.parametrize(
    ("section", "key", "message"),
    [
        ("model", "width", r"^unknown setting model\.width; .*known: dim, "),
        ("trainer", "val_interval", r"unknown setting trainer\.val_interval"),
    ],
)
def test_a_file_with_an_unknown_key_is_refused(section, key, message):
    """Hydra merges unknown keys of an experiment file."""
    config = resolved()
    config[section][key] = 1
    with pytest.raises(ValueError, match=message):
        read_settings(config)


def test_r_drop_needs_a_dropout():
    """Two passes without dropout are equal."""
    config = resolved(["mixer=lightconv", "optim.r_drop=5", "model.dropout=0"])
    assert config["model"]["weight_dropout"] > 0  # both passes may have the same mask
    with pytest.raises(ValueError, match=r"^optim\.r_drop=5\.0 .* set model\.dropout=0\.1"):
        read_settings(config)
    for reads in ("mixer.cross.dropout", "model.dropout", "model.activation_dropout"):
        has_one = resolved(["mixer=lightconv", "optim.r_drop=5", "model.dropout=0", f"{reads}=0.1"])
        assert read_settings(has_one).optim.r_drop == 5.0
    # A mixer of another package, with a name of its own
    own = resolved(["mixer=lightconv", "optim.r_drop=5", "model.dropout=0"])
    own["mixer"]["encoder"] = {"_target_": "mymix.Mine", "hidden_dropout": 0.1}
    assert read_settings(own).optim.r_drop == 5.0


def test_median_stopping_needs_the_curves_of_jobs():
    """The curves of jobs are in metrics.csv, which only the CSV logger writes."""
    for loggers in (["logger=tensorboard"], ["~logger.csv"]):
        with pytest.raises(ValueError, match=r"^trainer\.median_stop=2 .* add logger=csv"):
            read_settings(resolved([*loggers, "trainer.median_stop=2"]))
        read_settings(resolved(loggers))
    for loggers in ("logger=csv", "logger=default"):
        assert read_settings(resolved([loggers, "trainer.median_stop=2"])).trainer.median_stop == 2


def test_an_old_run_has_the_defaults_of_newer_settings():
    old = resolved(["optim=adadelta", "model=small"])
    new = resolved(["optim=adadelta", "model=small"])
    for section, key in (("model", "src_positions"), ("data", "num_workers"), ("search", "n_best"), ("optim", "betas")):
        del old[section][key]
    # In a section of a section, a whole one, and at the top
    del old["data"]["clean"]["same"], old["trainer"]["lightning"], old["callbacks"]
    assert present_settings(old) == present_settings(new) == new


def test_removed_settings_of_the_trainer_are_dropped():
    """Any other section keeps an unknown setting, which may change what a model computes."""
    old, newer, present = (resolved(["model=small"]) for _ in range(3))
    old["trainer"]["compile"] = "auto"
    assert present_settings(old) == present
    newer["model"]["unknown"] = 1
    with pytest.raises(ValueError, match=r"unknown setting model\.unknown"):
        read_settings(present_settings(newer))
