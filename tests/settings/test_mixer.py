"""The section `mixer`: its keys, and arguments, which constructors check."""

from __future__ import annotations

import copy
import inspect
import typing
from collections.abc import Sequence
from typing import Any

import pytest
from composed import WIDTH, Case, names, resolved

from seq2seq.network.build import build_model, on_meta_device
from seq2seq.network.make_mixer import layer_values, mixer_class
from seq2seq.network.mixer import CrossMixer, SelfMixer
from seq2seq.network.model import Seq2Seq
from seq2seq.settings.classes import class_names, mixers_of, read_mixers
from seq2seq.settings.compose import presets
from seq2seq.settings.dicts import put

# Each composes settings, as other tests of every preset do; `make test-all` has every case
REPRESENTATIVE = {
    "test_every_preset_passes_unchanged": ["transformer", "lightconv", "dynamicconv", "bahdanau", "local_blocks"],
}


@pytest.fixture(scope="module")
def stack():
    return resolved(["mixer=dynamicconv"])


def build(config: dict, mixer: dict) -> Seq2Seq:
    sizes = {"src_vocab_size": 8, "tgt_vocab_size": 8, "pad_id": 0, "joint": True}
    with on_meta_device():
        return build_model({"model": config["model"], "mixer": read_mixers(mixer), **sizes})


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("foo", 1, r"^unknown setting mixer\.foo"),
        ("encoder.foo", 1, r"^unknown setting mixer\.encoder\.foo .*known: num_heads"),
        ("encoder.dim", 3, r"^unknown setting mixer\.encoder\.dim"),
        ("encoder.num_head", 4, r"^unknown setting mixer\.encoder\.num_head; did you mean num_heads"),
        ("encoder.num_heads", 7, r"^mixer\.encoder: dim 128 is not divisible by num_heads 7"),
        ("decoder.num_heads", 0, r"^mixer\.decoder: .*num_heads 0"),
        ("decoder.num_heads", 10**12, r"^mixer\.decoder\.num_heads=1000000000000 is not a whole number"),
        ("decoder.glu", "maybe", r"^mixer\.decoder\.glu=maybe is not true or false"),
        ("cross.dropout", 1, r"^mixer\.cross: .*dropout is 1"),
        ("encoder.per_layer.kernel_size", [3, "x"], r"^mixer\.encoder\.per_layer\.kernel_size=x is not a whole"),
        ("encoder.per_layer.kernel_size", 3, "is not a list of one value for each layer"),
        ("encoder.per_layer", 3, r"^mixer\.encoder\.per_layer=3 is not a mapping"),
        ("encoder.per_layer.foo", [3], r"^unknown setting mixer\.encoder\.per_layer\.foo"),
        ("encoder", "attention", r"^mixer\.encoder=attention is not a mapping"),
        ("extra_encoder_layers", "one", r"^mixer\.extra_encoder_layers=one is not a whole number"),
    ],
)
def test_a_wrong_argument_is_named(stack, key, value, message):
    mixer = copy.deepcopy(stack["mixer"])
    put(mixer, key, value)
    with pytest.raises(ValueError, match=message) as error:
        build(stack, mixer)
    assert "\n" not in str(error.value)


def test_a_slot_with_kinds_has_no_other_keys():
    config = resolved(["mixer=local_blocks"])
    build(config, config["mixer"])
    wrong = copy.deepcopy(config["mixer"])
    wrong["encoder"]["kinds"]["shifted"]["blocks"] = "no"
    for change, message in (
        ({"window": 3}, r"^mixer\.encoder\.window has no effect"),
        ({"pattern": ["a"]}, r"mixer\.encoder\.pattern=.* is not a list of the kinds straight, shifted"),
        ({"pattern": None}, "is not a list of"),
        ({"kinds": 3}, r"mixer\.encoder\.kinds=3 is not a mapping"),
        (wrong["encoder"], r"^mixer\.encoder\.kinds\.shifted\.blocks=no is not true or false"),
    ):
        with pytest.raises(ValueError, match=message):
            build(config, {**config["mixer"], "encoder": config["mixer"]["encoder"] | change})


def test_numbers_are_read_as_a_constructor_takes_them(stack):
    mixer = copy.deepcopy(stack["mixer"])
    mixer["extra_encoder_layers"] = 1.0
    mixer["encoder"] |= {"num_heads": 4.0, "per_layer": {"kernel_size": [3.0, 7]}}
    model = build(stack, mixer)
    first: Any = model.encoder.layers[0].self_mixer
    assert repr(first.num_heads) == "4"
    assert repr(read_mixers(mixer)["extra_encoder_layers"]) == "1"
    config = resolved(["mixer=multiscale"])
    config["mixer"]["encoder"] |= {"kernel_sizes": 7}
    first = build(config, config["mixer"]).encoder.layers[0].self_mixer
    assert first.kernel_sizes == [7]


@pytest.mark.parametrize("given", [{"head_dim": 5}, {"per_layer": {"head_dim": [5]}}], ids=str)
def test_num_heads_need_not_divide_dim_if_head_dim_is_set(given):
    config = resolved(["mixer=quadratic"])
    slot = {key: value for key, value in config["mixer"]["encoder"].items() if key != "head_dim"}
    build(config, {**config["mixer"], "encoder": {**slot, "num_heads": 3, **given}})


def test_every_mixer_of_a_section_is_found():
    """Kinds may have kinds, a slot may be empty, and unused kinds are found, too."""
    conv, attention, cross = ({"_target_": f"theirs.{name}"} for name in ("Conv", "Attention", "Cross"))
    deep = {"kinds": {"a": attention, "b": conv}, "pattern": ["b"]}
    section = {"cross": cross, "encoder": {"kinds": {"x": conv, "y": deep}, "pattern": ["x"]}, "decoder": {}}
    assert list(mixers_of(section)) == [
        ("encoder", "mixer.encoder.kinds.x", conv),
        ("encoder", "mixer.encoder.kinds.y.kinds.a", attention),
        ("encoder", "mixer.encoder.kinds.y.kinds.b", conv),
        ("cross", "mixer.cross", cross),
    ]
    assert [path for _, path, _ in mixers_of(section, used=True)] == ["mixer.encoder.kinds.x", "mixer.cross"]
    assert class_names(section) == {"encoder": ["Conv", "Attention", "Conv"], "decoder": ["none"], "cross": ["Cross"]}


@pytest.mark.parametrize("name", presets())
def test_every_preset_passes_unchanged(name):
    mixer = resolved([f"mixer={name}"])["mixer"]
    assert read_mixers(mixer) == mixer


WRONG = {str: "nosuch", int: -1, float: -1.0, Sequence[int]: [-1]}


@pytest.mark.parametrize(
    "case",
    [Case(slot, name) for slot, part in (("encoder", "self"), ("cross", "cross")) for name in names(part)],
    ids=str,
)
def test_constructors_refuse_impossible_arguments(case):
    """For an unknown word or a negative number, a ValueError names the argument."""
    cross = case.slot == "cross"
    contract, sizes = (CrossMixer, {"memory_dim": WIDTH}) if cross else (SelfMixer, {"causal": False})
    given = layer_values(case.settings(), 0, 8)
    mixer = mixer_class(given.pop("_target_"), contract)
    hints = typing.get_type_hints(mixer.__init__)
    for name in inspect.signature(mixer).parameters:
        kind = next((each for each in (hints[name], *typing.get_args(hints[name])) if each in WRONG), None)
        if kind is not None and name not in ("dim", "memory_dim"):
            with pytest.raises(ValueError, match=name):
                mixer(dim=WIDTH, **sizes, **{**given, name: WRONG[kind]})
