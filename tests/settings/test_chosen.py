"""Settings that the user typed, and lists of presets, which are cut to the depth of the model."""

from __future__ import annotations

import pytest
from composed import TINY, config

from seq2seq.network.build import build_model
from seq2seq.settings.compose import cut_lists, typed_settings

SHALLOW = ["model.encoder_layers=2", "model.decoder_layers=2"]


def kernel_sizes(words: list[str]) -> dict[str, list[int]]:
    mixer = cut_lists(config(*words), typed_settings(words))["mixer"]
    return {slot: mixer[slot]["per_layer"]["kernel_size"] for slot in ("encoder", "decoder")}


def test_lists_of_presets_are_cut_to_the_depth():
    """LightConv has one more encoder layer than the model."""
    assert kernel_sizes(["mixer=lightconv", *SHALLOW]) == {"encoder": [3, 7, 15], "decoder": [3, 7]}
    assert kernel_sizes(["mixer=lightconv"]) == {"encoder": [3, 7, 15, 31], "decoder": [3, 7, 15, 31]}
    without = ["mixer=lightconv", *SHALLOW, "mixer.extra_encoder_layers=-1"]
    assert kernel_sizes(without) == {"encoder": [3], "decoder": [3, 7]}


@pytest.mark.parametrize(
    "typed", ["mixer.encoder.per_layer.kernel_size=[5,5,5,5]", "mixer.encoder.per_layer={kernel_size: [5, 5, 5, 5]}"]
)
def test_a_typed_list_that_is_too_long_is_refused(typed):
    words = ["mixer=lightconv", *SHALLOW, typed]
    assert kernel_sizes(words) == {"encoder": [5, 5, 5, 5], "decoder": [3, 7]}
    with pytest.raises(ValueError, match="lists 4 values for 3 layers"):
        build_model(cut_lists(config(*TINY, *words), typed_settings(words)))


def test_lists_of_kinds_are_cut():
    kinds = {"a": {"_target_": "x", "per_layer": {"kernel_size": [3, 5, 7]}}, "b": {"_target_": "y"}}
    whole = {"model": {"encoder_layers": 2}, "mixer": {"encoder": {"kinds": kinds, "pattern": ["a", "b"]}}}
    cut = cut_lists(whole, ())["mixer"]["encoder"]["kinds"]
    assert cut == {"a": {"_target_": "x", "per_layer": {"kernel_size": [3, 5]}}, "b": {"_target_": "y"}}
    assert kinds["a"]["per_layer"] == {"kernel_size": [3, 5, 7]}


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"mixer": "lightconv", "model": {}},
        {"mixer": {"encoder": {"_target_": "x", "per_layer": [3]}}, "model": {"encoder_layers": 2}},
        {"mixer": {"encoder": {"_target_": "x", "per_layer": {"k": [3, 4]}}}, "model": {"encoder_layers": "two"}},
        {"mixer": {"decoder": {"_target_": "x", "per_layer": {"k": 3}}}, "model": {"decoder_layers": 2}},
    ],
)
def test_wrong_values_are_left_to_the_checks(wrong):
    assert cut_lists(wrong, ()) == wrong
