"""Models from the composed Hydra settings, at sizes that tests can afford."""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from conftest import jiggle
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from torch import Tensor

from seq2seq.build import build_model, layer_values
from seq2seq.model import Seq2Seq
from seq2seq.resources import conf_dir

PAD, UNK, BOS, EOS = range(4)
VOCAB = 23
# wide enough in depth for any per_layer list, and every dropout on
TINY = (
    "model=tiny",
    "model.dim=16",
    "model.ffn_dim=24",
    "model.num_heads=2",
    "model.encoder_layers=4",
    "model.decoder_layers=4",
    "model.dropout=0.2",
    "model.activation_dropout=0.2",
    "model.attention_dropout=0.2",
    "model.weight_dropout=0.2",
)


def names(folder: str) -> list[str]:
    """The settings files of conf/mixer/<folder> ("" = the presets), `none` skipped."""
    found = sorted(path.stem for path in (Path(conf_dir()) / "mixer" / folder).glob("*.yaml"))
    return [name for name in found if name != "none"]


PRESETS, SELF, CROSS = names(""), names("self"), names("cross")


@functools.cache
def _compose(overrides: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, str]]:
    with initialize_config_dir(version_base="1.3", config_dir=str(conf_dir())):
        found = compose("train", list(overrides), return_hydra_config=True)
    plain = {key: OmegaConf.to_container(found[key], resolve=True) for key in ("model", "mixer")}
    return plain, dict(found.hydra.runtime.choices)


def choices(*overrides: str) -> dict[str, str]:
    """Which file Hydra took for each group."""
    return _compose(overrides)[1]


def config(*overrides: str, **extra: Any) -> dict[str, Any]:
    """What build_model takes, composed with `overrides`; `extra` replaces vocabulary sizes and the like."""
    rest = {"src_vocab_size": VOCAB, "tgt_vocab_size": VOCAB, "pad_id": PAD, "joint": True}
    return {**copy.deepcopy(_compose(overrides)[0]), **rest, **extra}


def tiny(*overrides: str, **extra: Any) -> Seq2Seq:
    """A small model, in eval mode, with every parameter (biases and norms too) moved off its initial value."""
    return jiggle(build_model(config(*TINY, *overrides, **extra))).eval()


def variants(slot: str, name: str, *overrides: str, moved: bool = True) -> list[Any]:
    """The distinct mixers that settings file `name` makes in slot encoder, decoder or cross of an 8-layer stack.

    Their parameters are moved off the initial values unless moved=False.
    """
    group = f"mixer/cross={name}" if slot == "cross" else f"mixer/self@mixer.{slot}={name}"
    deep = ("model.encoder_layers=8", "model.decoder_layers=8")
    settings = config("mixer=transformer", group, *TINY, *deep, *overrides)
    model = build_model(settings)
    found: list[Any] = []
    seen: list[dict[str, Any]] = []
    for layer in range(8):
        values = layer_values(settings["mixer"][slot], layer, 8)
        if values not in seen:
            seen.append(values)
            stack = model.encoder.layers if slot == "encoder" else model.decoder.layers
            mixer = getattr(stack[layer], "cross_mixer" if slot == "cross" else "self_mixer")
            found.append(jiggle(mixer) if moved else mixer)
    return found


def lengths_mask(lengths: Sequence[int], total: int | None = None) -> Tensor:
    """(B, T) masks of right-padded sentences."""
    return torch.arange(total or max(lengths))[None] < torch.tensor(lengths)[:, None]


def random_tokens(mask: Tensor, vocab: int = VOCAB) -> Tensor:
    """Random ordinary tokens ending in eos, padded where mask is False."""
    tokens = torch.randint(EOS + 1, vocab, mask.shape)
    last = mask.sum(1, keepdim=True) - 1
    return tokens.scatter(1, last, EOS).masked_fill(~mask, PAD)
