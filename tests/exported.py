"""Shared parts of the tests of exports: the packages they need, and small models ready to be exported."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import tiny
import torch
from composed import preset_config
from conftest import jiggle

from seq2seq.checkpoint import Loaded
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.metadata import describe
from seq2seq.network.build import build_model


def need(*packages: str) -> None:
    """Skip the calling file where a package is missing, or fail in CI (see conftest.PACKAGES); imports none."""
    for package in packages:
        if find_spec(package) is None:
            raise ModuleNotFoundError(f"No module named '{package}'")


def loaded(config: dict[str, Any], tokenizer: Tokenizer) -> Loaded:
    """A model of random weights, sharp enough that its translations differ from line to line."""
    model = jiggle(build_model(config)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0)
    names = {"src_lang": "de", "tgt_lang": "en", "tokenize": "13a", "data": "phrasebook"}
    return Loaded(model, tokenizer, describe(model_config=config, tokenizer=tokenizer, **names))


def plain(tokenizer: Tokenizer, **model: Any) -> Loaded:
    """A plain Transformer of width 16."""
    return loaded(tiny.model_config(tokenizer, **model), tokenizer)


def preset(name: str, tokenizer: Tokenizer) -> Loaded:
    """A model of a preset, as shallow as its kinds of layers allow: tracing takes seconds per layer."""
    sizes = {"src_vocab_size": tokenizer.src_vocab_size, "tgt_vocab_size": tokenizer.tgt_vocab_size}
    ids = {"pad_id": tokenizer.pad_id, "joint": tokenizer.joint}
    return loaded({**_shallow(preset_config(name)), **sizes, **ids}, tokenizer)


def _shallow(config: dict[str, Any]) -> dict[str, Any]:
    """The settings with one layer per side, or with two, of the first and the last kind, if layers differ."""
    for side in ("encoder", "decoder"):
        slot = config["mixer"].get(side) or {}
        for key, values in (slot.get("per_layer") or {}).items():
            slot["per_layer"][key] = [values[0], values[-1]]
        config["model"][f"{side}_layers"] = 2 if {"per_layer", "kinds"} & set(slot) else 1
    return config
