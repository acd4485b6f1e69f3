"""Arguments of Lightning's Trainer: some are passed on, and others are set by another setting."""

from __future__ import annotations

import inspect

import lightning as L
import pytest

from seq2seq.settings.compose import resolved_settings
from seq2seq.settings.declare import keys
from seq2seq.settings.hydra_call import mistake
from seq2seq.settings.run import read_settings
from seq2seq.settings.trainer import LightningSettings

_CLIP = "trainer.lightning.gradient_clip_val-the setting is optim.clip_norm"
# Each composes settings; `make test-all` has every case
REPRESENTATIVE = {
    "test_deterministic_takes_three_values": ["maybe"],
    "test_an_argument_without_a_setting_has_a_hint": {
        "trainer.lightning.gradient_clip_val-the setting is optim.clip_norm-+"
    },
    "test_a_new_entry_needs_a_plus": {"logger.mine._target_"},
}
EXHAUSTIVE = {"test_deterministic_takes_three_values"}


def test_arguments_that_are_passed_on_are_the_trainers():
    arguments = {name for name in inspect.signature(L.Trainer.__init__).parameters if name != "self"}
    assert {*keys(LightningSettings)} < arguments


@pytest.mark.parametrize("prefix", ["", "+", "++"])
@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("trainer.lightning.gradient_clip_val", "the setting is optim.clip_norm"),
        ("trainer.gradient_clip_val", "the setting is optim.clip_norm"),
        ("trainer.detect_anomaly", "did you mean trainer.lightning.detect_anomaly"),
        ("trainer.lightning.detect_anomoly", "detect_anomaly"),
    ],
)
def test_an_argument_without_a_setting_has_a_hint(prefix, key, message):
    word = f"{prefix}{key}=1"
    told = mistake(["-m", word])
    assert told.startswith((key, f"unknown setting {key}"))
    assert message in told
    assert "\n" not in told


@pytest.mark.parametrize("value", ["maybe", "2", "null", "[]"])
def test_deterministic_takes_three_values(value):
    with pytest.raises(ValueError, match=r"^trainer\.lightning\.deterministic=.* is not true or false or warn$"):
        read_settings(resolved_settings([f"trainer.lightning.deterministic={value}"]))
    for each in ("true", "false", "warn"):
        read_settings(resolved_settings([f"trainer.lightning.deterministic={each}"]))


@pytest.mark.parametrize("key", ["callbacks.mine._target_", "logger.mine._target_"])
def test_a_new_entry_needs_a_plus(key):
    assert mistake(["-m", f"{key}=lightning.Mine"]) == f"{key} is new: write +{key}=lightning.Mine"
    assert not mistake(["-m", f"+{key}=lightning.Mine"])
