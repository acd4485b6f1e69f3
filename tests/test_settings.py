"""Durations, precision and devices."""

from __future__ import annotations

import pytest
import torch

from seq2seq.settings import TrainerSettings, resolve_accelerator, resolve_precision, seconds


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


def test_four_minutes_bound_a_run_that_nothing_else_does():
    assert TrainerSettings.from_config({}).max_time == 240
    free = {"max_steps": None, "max_epochs": None, "max_time": None}
    assert TrainerSettings.from_config(free).max_time == 240
    for key in free:
        given = TrainerSettings.from_config(free | {key: 7})
        assert (given.max_time, getattr(given, key)) == (7 if key == "max_time" else None, 7)
    with pytest.raises(ValueError, match="nothing bounds"):
        TrainerSettings()


def test_precision_follows_the_hardware(monkeypatch):
    monkeypatch.setattr("seq2seq.settings.has_bf16", lambda accelerator: True)
    assert resolve_precision("auto", "cpu") == "bf16-mixed"
    monkeypatch.setattr("seq2seq.settings.has_bf16", lambda accelerator: False)
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
        ({"max_steps": 1, "val_interval": 5}, "trainer.val_interval"),
        ({"max_steps": 1, "accelerator": "tpu"}, "accelerator=tpu"),
    ],
)
def test_wrong_settings_are_named(values, word):
    with pytest.raises(ValueError, match=word):
        TrainerSettings.from_config(values)
