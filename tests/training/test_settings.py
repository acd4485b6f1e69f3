"""Durations, precision and devices, and values of the wrong kind."""

from __future__ import annotations

import math
import re

import pytest
import torch
from composed import settings_of
from omegaconf import OmegaConf

from seq2seq.config.chosen import chosen_settings
from seq2seq.config.compose import resolved_settings
from seq2seq.config.durations import seconds
from seq2seq.config.sections import read_sections
from seq2seq.config.settings import read_section
from seq2seq.config.trainer import DEFAULT_EPOCHS, TrainerSettings, bounded
from seq2seq.training.hardware import resolve_accelerator, resolve_precision
from seq2seq.training.plan import make_plan


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (90, 90),
        ("90", 90),
        ("0.5", 0.5),
        ("90s", 90),
        ("10m", 600),
        ("1h30m", 5400),
        ("2d", 172800),
        ("02:30", 150),
        ("1:00:00", 3600),
        ("00:00:10:00", 600),
        ("01:00:00:01", 86401),
    ],
)
def test_durations(text, expected):
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["", "0", "soon", "10 minutes", "-5m", "1:2:3:4:5", "m"])
def test_no_durations(text):
    with pytest.raises(ValueError, match=r"trainer\.max_time"):
        seconds(text, "trainer.max_time")


def test_six_epochs_bound_a_run_that_nothing_else_does():
    assert bounded({})["max_epochs"] == DEFAULT_EPOCHS == 6
    free = {"max_steps": None, "max_epochs": None, "max_time": None}
    assert read_section(TrainerSettings, bounded(free), "trainer").max_epochs == DEFAULT_EPOCHS
    for key in free:
        given = read_section(TrainerSettings, bounded(free | {key: 7}), "trainer")
        assert (given.max_epochs, getattr(given, key)) == (7 if key == "max_epochs" else None, 7)
    with pytest.raises(ValueError, match="nothing bounds"):
        TrainerSettings()


def test_precision_follows_the_hardware(monkeypatch):
    monkeypatch.setattr("seq2seq.training.hardware.has_bf16", lambda accelerator: True)
    assert resolve_precision("auto", "cpu") == "bf16-mixed"
    monkeypatch.setattr("seq2seq.training.hardware.has_bf16", lambda accelerator: False)
    assert resolve_precision("auto", "cpu") == "32-true"
    assert resolve_precision("bf16", "cpu") == "bf16-mixed"
    assert resolve_precision("32", "gpu") == "32-true"


def test_a_gpu_that_is_not_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="no GPU"):
        resolve_accelerator(TrainerSettings(max_steps=1, accelerator="gpu"))
    assert resolve_accelerator(TrainerSettings(max_steps=1)) == "cpu"


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"max_steps": 0}, "max_steps=0"),
        ({"max_steps": 1, "accumulate": 1.5}, "accumulate=1.5"),
        ({"max_steps": 1, "samples": -1}, "samples=-1"),
        ({"max_steps": 1, "samples": 2.5}, "samples=2.5"),
        ({"max_steps": 1, "ema": "abc"}, "ema=abc"),
        ({"max_steps": 1, "ema": 1.0}, "ema=1.0"),
        ({"max_steps": 1, "val_interval": 5}, "trainer.val_interval"),
        ({"max_steps": 1, "accelerator": "tpu"}, "accelerator=tpu"),
    ],
)
def test_wrong_settings_are_named(values, word):
    with pytest.raises(ValueError, match=word):
        read_section(TrainerSettings, values, "trainer")


def composed(*overrides: str) -> dict:
    return OmegaConf.to_container(settings_of(*overrides), resolve=True)  # type: ignore[return-value]


@pytest.fixture(scope="module")
def defaults() -> dict:
    return composed()


def changed(config: dict, key: str, value: object) -> dict:
    """`config` with the value of one setting replaced."""
    *section, name = key.split(".")
    inner = config[section[0]] if section else config
    return {**config, section[0]: {**inner, name: value}} if section else {**config, name: value}


@pytest.mark.parametrize("value", ["no", "off", "yes", None, 2, []])
def test_what_is_neither_true_nor_false_is_named(defaults, value):
    shown = "null" if value is None else re.escape(str(value))
    for key in ("force", "trainer.test", "data.streaming", "model.residual", "tokenizer.joint"):
        with pytest.raises(ValueError, match=f"^{key}={shown} is not true or false$"):
            read_sections(changed(defaults, key, value))
    mixer = changed(defaults["mixer"], "decoder.glu", value)
    with pytest.raises(ValueError, match=f"^mixer.decoder.glu={shown} is not true or false$"):
        read_sections(defaults | {"mixer": mixer})


def test_a_flag_of_a_mixer_among_several_kinds_is_named():
    config = composed("mixer=local_blocks")
    read_sections(config)
    config["mixer"]["encoder"]["kinds"]["shifted"]["blocks"] = "no"
    with pytest.raises(ValueError, match=r"^mixer.encoder.kinds.shifted.blocks=no is not true or false"):
        read_sections(config)


@pytest.mark.parametrize("value", ["abc", None, math.nan, math.inf, True, [1]])
def test_what_is_no_number_is_named(defaults, value):
    shown = {None: "null", True: "true"}.get(value) if isinstance(value, bool | None) else re.escape(str(value))
    for key in ("seed", "optim.lr", "optim.rho", "trainer.samples", "search.length_penalty", "model.dropout"):
        with pytest.raises(ValueError, match=f"^{key}={shown} is not a (whole )?number( |$)"):
            read_sections(changed(defaults, key, value))


def test_values_of_another_kind_that_mean_something():
    """Words and null where they are known, whole numbers for others, 0 and 1, and lists."""
    given = [
        "data.max_tokens=auto", "data.temperature=inf", "data.clean.max_length=null", "data.clean.length_ratio=false",
        "data.clean.duplicates=null", "trainer.max_time=10m", "trainer.save_time=null", "trainer.precision=bf16",
        "trainer.test=0", "trainer.max_epochs=2", "trainer.ema=0.9", "optim.lr=1", "optim.warmup_steps=4e3",
        "search.max_len_ratio=2", "search.length_penalty=-1", "+mixer.encoder.kernel_size=${model.num_heads}",
        "+mixer.encoder.per_layer.kernel_size=[3,7]", "logger=csv",
    ]  # fmt: skip
    read_sections(composed(*given))


def test_a_whole_number_may_be_written_as_a_float():
    """It is the same run, with the same name."""
    written = [
        "trainer.max_steps=1e3",
        "seed=1.0",
        "data.max_tokens=4e3",
        "data.clean.max_length=200.0",
        "model.dim=64.0",
    ]
    plan = make_plan(composed(*written), mixer="transformer")
    same = ["trainer.max_steps=1000", "seed=1", "data.max_tokens=4000", "data.clean.max_length=200", "model.dim=64"]
    assert plan == make_plan(composed(*same), mixer="transformer")
    assert "4000.0" not in plan.config_yaml


def test_a_peak_that_no_schedule_reads_is_refused():
    def plan(*words: str) -> float:
        return make_plan(resolved_settings(words), mixer="transformer", chosen=chosen_settings(words)).optim.lr

    assert plan("optim.peak_lr=1e-2") == plan("optim=muon", "optim.peak_lr=1e-2") == 1e-2
    for words in (["optim=adam"], ["optim.lr=1e-3"]):
        with pytest.raises(ValueError, match=r"optim\.peak_lr=0\.01 has no effect, .* is optim\.lr=.*: set optim\.lr"):
            plan(*words, "optim.peak_lr=1e-2")
