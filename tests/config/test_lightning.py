"""Arguments of Lightning's Trainer: each one is passed on, is set by another setting, or is refused with a reason."""

from __future__ import annotations

import inspect

import lightning as L
import pytest

from seq2seq.config.compose import resolved_settings
from seq2seq.config.explain import explain
from seq2seq.config.lightning import OWN_SETTINGS, PASSED_ON, REFUSED, explain_argument
from seq2seq.config.sections import read_settings
from seq2seq.config.settings import keys
from seq2seq.config.trainer import LightningSettings

_CLIP = "trainer.lightning.gradient_clip_val-the setting for this is optim.clip_norm"
# Each composes settings; `make test-all` has every case
REPRESENTATIVE = {
    "test_an_argument_that_cannot_be_set_says_why": [
        *(f"{_CLIP}-", f"{_CLIP}-+"),
        "trainer.lightning.limit_test_batches-cannot be set: a score is that of a whole test set-++",
        "trainer.detect_anomaly-write trainer.lightning.detect_anomaly-",
        "trainer.lightning.detect_anomoly-detect_anomaly-",
    ],
    "test_deterministic_takes_three_values": ["maybe"],
}


def test_every_argument_of_the_installed_trainer_is_passed_on_set_elsewhere_or_refused():
    arguments = [name for name in inspect.signature(L.Trainer.__init__).parameters if name != "self"]
    assert sorted([*PASSED_ON, *OWN_SETTINGS, *REFUSED]) == sorted(arguments)
    assert sorted(keys(LightningSettings)) == sorted(PASSED_ON)


@pytest.mark.parametrize("prefix", ["", "+", "++"])
@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("trainer.lightning.gradient_clip_val", "the setting for this is optim.clip_norm"),
        ("trainer.gradient_clip_val", "the setting for this is optim.clip_norm"),
        ("trainer.lightning.limit_test_batches", "cannot be set: a score is that of a whole test set"),
        ("trainer.detect_anomaly", "write trainer.lightning.detect_anomaly"),
        ("trainer.lightning.detect_anomoly", "detect_anomaly"),
    ],
)
def test_an_argument_that_cannot_be_set_says_why(prefix, key, message):
    word = f"{prefix}{key}=1"
    told = explain([word])
    # What Hydra adds to the composed settings is refused when they are read
    if not told:
        with pytest.raises(ValueError, match=key) as error:
            read_settings(resolved_settings([word]))
        told = str(error.value)
    assert told.startswith((key, f"unknown setting {key}"))
    assert message in told
    assert "\n" not in told


@pytest.mark.parametrize("value", ["maybe", "2", "null", "[]"])
def test_deterministic_takes_three_values(value):
    with pytest.raises(ValueError, match=r"^trainer\.lightning\.deterministic=.* is not true or false or warn$"):
        read_settings(resolved_settings([f"trainer.lightning.deterministic={value}"]))
    for each in ("true", "false", "warn"):
        read_settings(resolved_settings([f"trainer.lightning.deterministic={each}"]))


def test_what_lightning_does_not_know_is_not_explained():
    assert explain_argument("trainer.nonsense") is None
    assert explain_argument("optim.callbacks") is None


@pytest.mark.parametrize("key", ["callbacks.mine._target_", "logger.mine._target_"])
def test_an_entry_of_ones_own_is_added_with_a_plus(key):
    assert explain([f"{key}=mine.Class"]) == f"{key} is new: write +{key}=mine.Class"
    assert not explain([f"+{key}=mine.Class"])
