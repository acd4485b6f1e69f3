"""The section `mixer`, checked against constructors that are not imported."""

from __future__ import annotations

import copy

import pytest

from seq2seq.config.compose import presets, resolved_settings
from seq2seq.config.mixer import LIMITS, check_mixer, class_names, mixers_of
from seq2seq.kernels.attention.weights import WEIGHTS
from seq2seq.kernels.dispatch import BACKENDS
from seq2seq.mixers.bahdanau import INITIALS, READOUTS
from seq2seq.mixers.fixed_context import SUMMARIES
from seq2seq.mixers.gru import RESETS
from seq2seq.mixers.luong import SCOPES, SCORES
from seq2seq.mixers.nonlocal_ import PAIRWISE
from seq2seq.mixers.relative import ENCODINGS

# Each composes settings, as other tests of every preset do; `make test-all` has every case
REPRESENTATIVE = {
    "test_every_preset_passes_unchanged": ["transformer", "lightconv", "dynamicconv", "bahdanau", "local_blocks"],
}


@pytest.fixture(scope="module")
def stack():
    return resolved_settings(["mixer=dynamicconv"])


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("foo", 1, r"^unknown setting mixer\.foo"),
        ("encoder.foo", 1, r"^unknown setting mixer\.encoder\.foo .*known: num_heads"),
        ("encoder.dim", 3, r"^unknown setting mixer\.encoder\.dim"),
        ("encoder.num_head", 4, r"^unknown setting mixer\.encoder\.num_head; did you mean num_heads"),
        ("encoder.num_heads", 7, r"^mixer\.encoder: dim 128 is not divisible by num_heads 7"),
        ("decoder.num_heads", 0, r"^mixer\.decoder\.num_heads=0 is not a whole number from 1"),
        ("decoder.glu", "maybe", r"^mixer\.decoder\.glu=maybe is not true or false"),
        ("cross.dropout", 1, r"^mixer\.cross\.dropout=1 is not a number from 0 and below 1"),
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
    *path, leaf = key.split(".")
    section = mixer
    for part in path:
        section = section[part]
    section[leaf] = value
    with pytest.raises(ValueError, match=message) as error:
        check_mixer(mixer, stack["model"])
    assert "\n" not in str(error.value)


def test_kinds_of_layers_have_no_other_keys():
    config = resolved_settings(["mixer=local_blocks"])
    check_mixer(config["mixer"], config["model"])
    for change, message in (
        ({"window": 3}, r"^unknown setting mixer\.encoder\.window \(known: kinds, pattern\)"),
        ({"pattern": ["a"]}, r"mixer\.encoder\.pattern=.* is not a list of the kinds straight, shifted"),
        ({"pattern": None}, "is not a list of the kinds"),
        ({"kinds": 3}, r"mixer\.encoder\.kinds=3 is not a mapping"),
    ):
        with pytest.raises(ValueError, match=message):
            check_mixer({**config["mixer"], "encoder": config["mixer"]["encoder"] | change}, config["model"])


def test_whole_numbers_are_written_as_such(stack):
    mixer = copy.deepcopy(stack["mixer"])
    mixer["extra_encoder_layers"] = 1.0
    mixer["encoder"] |= {"num_heads": 4.0, "per_layer": {"kernel_size": [3.0, 7]}}
    checked = check_mixer(mixer, stack["model"])
    assert repr(checked["extra_encoder_layers"]) == "1"
    assert repr(checked["encoder"]["num_heads"]) == "4"
    assert repr(checked["encoder"]["per_layer"]["kernel_size"]) == "[3, 7]"


def test_a_number_is_a_list_of_one():
    config = resolved_settings(["mixer=multiscale"])
    config["mixer"]["encoder"] |= {"kernel_sizes": 7}
    assert check_mixer(config["mixer"], config["model"])["encoder"]["kernel_sizes"] == [7]


@pytest.mark.parametrize("given", [{"head_dim": 5}, {"per_layer": {"head_dim": [5]}}], ids=str)
def test_heads_of_a_width_of_their_own_need_not_divide_the_models(given):
    config = resolved_settings(["mixer=quadratic"])
    slot = {key: value for key, value in config["mixer"]["encoder"].items() if key != "head_dim"}
    config["mixer"]["encoder"] = {**slot, "num_heads": 3, **given}
    check_mixer(config["mixer"], config["model"])


def test_another_packages_mixer_is_left_to_its_class(stack):
    theirs = {"_target_": "theirs.Mixer", "anything": object()}
    assert check_mixer({**stack["mixer"], "encoder": theirs}, stack["model"])["encoder"] == theirs


def test_every_mixer_of_a_section_is_found():
    """Kinds may have kinds, a slot may be empty, and a kind that no layer uses is found too."""
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
    config = resolved_settings([f"mixer={name}"])
    assert check_mixer(config["mixer"], config["model"]) == config["mixer"]


@pytest.mark.parametrize(
    ("name", "choices"),
    [
        ("backend", BACKENDS),
        ("reset", RESETS),
        ("weights", WEIGHTS),
        ("encoding", ENCODINGS),
        ("readout", READOUTS),
        ("initial", INITIALS),
        ("summary", tuple(SUMMARIES)),
        ("score", SCORES),
        ("scope", SCOPES),
        ("pairwise", PAIRWISE),
    ],
)
def test_choices_are_those_of_the_mixers(name, choices):
    """The settings import no torch, so the names stand in both places."""
    assert LIMITS[name]["choices"] == choices
