"""Wrong values of every setting: a message of one line names the setting."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

import pytest
from composed import resolved

from seq2seq.network.model import ACTIVATIONS
from seq2seq.settings import model
from seq2seq.settings.declare import keys, nested_class
from seq2seq.settings.dicts import put
from seq2seq.settings.run import SECTIONS, read_settings
from seq2seq.settings.values import check_value, shown

WRONG = {
    "null": None,
    "nan": math.nan,
    "infinity": math.inf,
    "minus infinity": -math.inf,
    "a fraction": 1.5,
    "a negative number": -1,
    "zero": 0,
    "a huge number": 10**26,
    "a huge float": 1e300,
    "true": True,
    "a word": "nonsense",
    "an empty word": "",
    "blanks": "  ",
    "a control character": "a\0b",
    "a long word": "x" * 10_000,
    "a list": [1, "a"],
    "an empty list": [],
    "a list in a list": [[]],
    "a mapping": {"a": {"b": 1}},
    "a set": {1},
}
# Not a number, a word, a list of words or a mapping
NO_VALUE = ("a set", "a list in a list", "nan")
# Fields that take any value here, and are checked where they are used.
ANYTHING = ("data.train", "data.valid", "data.test", "data.corpora", "callbacks")


@pytest.fixture(scope="module")
def config():
    return resolved(["trainer.max_steps=1"])


def names(cls: type, section: str) -> Iterator[str]:
    for name in keys(cls):
        full = f"{section}.{name}" if section else name
        nested = nested_class(cls, name)
        yield full
        if nested and nested.__name__ != "PatchGrid":
            yield from names(nested, full)


SETTINGS = [name for section, cls in SECTIONS.items() for name in names(cls, section)]


def with_value(config: dict, setting: str, value: Any) -> dict:
    changed = copy.deepcopy(config)
    put(changed, setting, value)
    return changed


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_wrong_value_is_refused_in_one_line(config, setting):
    leaf = setting.rpartition(".")[2]
    for name, value in WRONG.items():
        never = name in NO_VALUE and setting not in ANYTHING
        try:
            read_settings(with_value(config, setting, value))
        except ValueError as error:
            message = str(error)
            assert "\n" not in message
            assert len(message) < 1000
            # A wrong value may also contradict another setting, which is named then.
            assert leaf in message or (not never and ("is needed" in message or "exclude" in message)), message
        else:
            assert not never, name


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("seed", 1.5),
        ("seed", -1),
        ("seed", 10**26),
        ("run", ""),
        ("run", "../../x"),
        ("run", "/abs/x"),
        ("run", "a/../../x"),
        ("run", "."),
        ("run", "x" * 300),
        ("run", 1.10),
        ("data.clean.length_ratio", 0),
        ("data.max_tokens", "many"),
        ("data.temperature", 0.5),
        ("data.num_workers", 10**9),
        ("trainer.max_steps", 1e23),
        ("trainer.line_time", None),
        ("trainer.max_time", 1e-300 * 0),
        ("trainer.threads", 100_000),
        ("search.length_penalty", 300),
        ("search.beam_size", 0),
        ("optim.betas", [0.9]),
        ("mixer.extra_encoder_layers", 1.5),
    ],
)
def test_a_value_out_of_range_is_refused(config, setting, value):
    with pytest.raises(ValueError, match=f"^{setting}="):
        read_settings(with_value(config, setting, value))


def test_a_name_may_look_like_a_number(config):
    assert read_settings({**config, "run": 2024}).run.run == "2024"
    assert read_settings({**config, "run": "a/b"}).run.run == "a/b"


@pytest.mark.parametrize(
    ("hint", "limits", "text"),
    [
        (int, {"least": 1}, "a whole number from 1"),
        (int | None, {"least": 0, "most": 2**16}, "a whole number from 0 to 65,536 or null"),
        (float, {"above": 0, "below": 1}, "a number above 0 and below 1"),
        (float, {"above": 0, "most": 1}, "a number above 0 and at most 1"),
        (int | str, {"least": 1, "words": ("auto",)}, "a whole number from 1 or auto"),
        (int | bool | None, {"least": 1}, "a whole number from 1 or null or false"),
        (str, {"choices": ("a", "b")}, "one of a, b"),
        (tuple[str, ...] | None, {}, "a list of words or null"),
        (tuple[float, float], {"least": 0}, "a list of 2 numbers from 0"),
        (bool, {}, "true or false"),
    ],
)
def test_a_message_says_which_values_are_allowed(hint, limits, text):
    with pytest.raises(ValueError, match=r"^x\.y=\{1\} is not ") as error:
        check_value({1}, hint, limits, "x.y")
    assert str(error.value) == f"x.y={{1}} is not {text}"


def test_a_misspelled_choice_suggests_similar_ones():
    with pytest.raises(ValueError, match=r"optim\.name=adma is not one of adam, adadelta; did you mean adam"):
        check_value("adma", str, {"choices": ("adam", "adadelta")}, "optim.name")


def test_any_value_is_shown_on_a_short_line():
    for value in (*WRONG.values(), [[[[[[[[[]]]]]]]]] * 1000, {"a": "b\nc"}):
        assert 0 < len(shown(value)) <= 100
        assert "\n" not in shown(value)


def test_choices_are_those_of_the_model():
    """The settings do not import torch, so they repeat the list of the functions' names."""
    assert tuple(ACTIVATIONS) == model.ACTIVATIONS
