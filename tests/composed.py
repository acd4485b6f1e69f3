"""Models from the composed Hydra settings, at sizes that tests can afford."""

from __future__ import annotations

import copy
import functools
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from conftest import jiggle
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from seq2seq.network import build
from seq2seq.network.build import build_model, build_self_mixer
from seq2seq.network.make_mixer import layer_values, mixer_class
from seq2seq.network.mixer import CrossMixer, SelfMixer
from seq2seq.network.model import Seq2Seq
from seq2seq.network.state import first, move
from seq2seq.settings.hydra_call import plain_settings
from seq2seq.system.resources import conf_dir

PAD, UNK, BOS, EOS = range(4)
VOCAB = 23
VOCABULARY = {"src_vocab_size": VOCAB, "tgt_vocab_size": VOCAB, "pad_id": PAD, "joint": True}
WIDTH = 16
# Deep enough for any per_layer list, and with every dropout on
TINY = (
    "model=tiny",
    f"model.dim={WIDTH}",
    "model.ffn_dim=24",
    "model.num_heads=2",
    "model.encoder_layers=4",
    "model.decoder_layers=4",
    "model.dropout=0.2",
    "model.activation_dropout=0.2",
    "model.attention_dropout=0.2",
    "model.weight_dropout=0.2",
)


def names(part: str, folder: str = "") -> list[str]:
    """List the settings files of conf/mixer/<part> ("" = the presets), or the files of `folder` instead; no `none`."""
    root = Path(folder) if folder else Path(conf_dir())
    files = sorted(path.stem for path in (root / "mixer" / part).glob("*.yaml"))
    return [name for name in files if name != "none"]


PRESETS, SELF, CROSS = names(""), names("self"), names("cross")


def settings_of(*overrides: str) -> DictConfig:
    """Compose a run's settings as Hydra does, but only once for each choice of files, which takes 0.3 s."""
    files = [word for word in overrides if not _sets_a_value(word)]
    values = [word for word in overrides if _sets_a_value(word)]
    # Ten times faster than a deep copy
    settings = pickle.loads(_settings_of_files(tuple(files)))
    # After all files, as on Hydra's own command line
    for word in values:
        override = _parsed(word)
        OmegaConf.update(settings, override.key_or_group, override.value())
    return settings


def _sets_a_value(word: str) -> bool:
    """Tell whether an override sets a value: it chooses no file, adds nothing and deletes nothing."""
    key = word.split("=", 1)[0]
    # Hydra's own settings may say where files are
    special = key[0] in "+~" or "/" in key or "@" in key or key.startswith("hydra")
    return not special and not (conf_dir() / key).is_dir()


@functools.cache
def _settings_of_files(overrides: tuple[str, ...]) -> bytes:
    with initialize_config_dir(version_base="1.3", config_dir=str(conf_dir())):
        return pickle.dumps(compose("train", list(overrides)))


@functools.cache
def _parsed(word: str) -> Override:
    (override,) = OverridesParser.create().parse_overrides([word])
    return override


def resolved(overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Return what `resolved_settings` returns, in a thirtieth of its time; Hydra does not explain what it refuses."""
    return plain_settings(settings_of(*overrides))


@functools.cache
def _compose(overrides: tuple[str, ...]) -> dict[str, Any]:
    composed = settings_of(*overrides)
    return {key: OmegaConf.to_container(composed[key], resolve=True) for key in ("model", "mixer")}


def choices(*overrides: str) -> dict[str, str]:
    """Return the file that Hydra took for each group."""
    with initialize_config_dir(version_base="1.3", config_dir=str(conf_dir())):
        return dict(compose("train", list(overrides), return_hydra_config=True).hydra.runtime.choices)


def config(*overrides: str, **extra: Any) -> dict[str, Any]:
    """Compose what `build_model` takes; `extra` replaces vocabulary sizes and the like."""
    return {**copy.deepcopy(_compose(overrides)), **VOCABULARY, **extra}


def tiny(*overrides: str, **extra: Any) -> Seq2Seq:
    """A small model, in eval mode, with every parameter (biases and norms too) moved off its initial value."""
    return jiggle(build_model(config(*TINY, *overrides, **extra))).eval()


@functools.cache
def mixer_file(part: str, name: str, folder: str = "") -> DictConfig:
    """The settings of conf/mixer/<part>/<name>.yaml; Hydra composes it only if it has a list of defaults.

    `folder` is searched, too: it has its own conf/mixer.
    """
    places = [Path(folder) / "mixer", conf_dir() / "mixer"] if folder else [conf_dir() / "mixer"]
    file = next(path for place in places if (path := place / part / f"{name}.yaml").exists())
    settings = OmegaConf.load(file)
    if "defaults" in settings:
        ConfigStore.instance().store(name="one_mixer", node={"defaults": [{f"mixer/{part}@mixer": name}]})
        with initialize_config_dir(version_base="1.3", config_dir=str(conf_dir())):
            settings = compose("one_mixer", searched(folder)).mixer
    return settings  # type: ignore[return-value]


def searched(folder: str) -> list[str]:
    """The override by which Hydra searches `folder`, too."""
    return [f"hydra.searchpath=[file://{folder}]"] if folder else []


def preset_config(name: str, folder: str = "") -> dict[str, Any]:
    """The settings of a small model with preset `name`, as `config` returns them."""
    return config(*TINY, f"mixer={name}", *searched(folder))


@functools.cache
def _slot_settings(part: str, name: str, folder: str, sizes: tuple[str, ...]) -> dict[str, Any]:
    model, mixer = _compose((*TINY, *sizes))["model"], mixer_file(part, name, folder)
    both: Any = OmegaConf.to_container(OmegaConf.create({"model": model, "mixer": mixer}), resolve=True)
    return both["mixer"]


@functools.cache
def decodes(name: str) -> bool:
    """True if a self mixer has a causal form: an encoder-only mixer does not override `step`."""
    target = mixer_file("self", name).get("_target_")
    return target is None or build.decodes(mixer_class(target, SelfMixer))


class Case(NamedTuple):
    """A form of a mixer: a settings file, its slot, and values that replace values of the file."""

    slot: str  # encoder, decoder or cross
    name: str
    changes: tuple[tuple[str, Any], ...] = ()
    folder: str = ""  # where the settings file is, if not in conf
    trust: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "-".join([self.name, self.slot, *(f"{key}={value}" for key, value in self.changes)])

    def settings(self, *sizes: str) -> dict[str, Any]:
        """The slot's settings under the model section of TINY and `sizes`."""
        part = "cross" if self.slot == "cross" else "self"
        return {**copy.deepcopy(_slot_settings(part, self.name, self.folder, sizes)), **dict(self.changes)}

    def build(self, values: Mapping[str, Any], dim: int = WIDTH) -> Any:
        """Build the mixer from the values of one layer."""
        return build_mixer(values, self.slot, dim, trust=self.trust)

    def variants(self, *sizes: str, dim: int = WIDTH, moved: bool = True) -> list[Any]:
        """The distinct mixers of a stack of 8 layers, their parameters moved off the initial values unless told."""
        settings = self.settings(*sizes)
        distinct: list[dict[str, Any]] = []
        for layer in range(8):
            values = layer_values(settings, layer, 8)
            if values not in distinct:
                distinct.append(values)
        mixers = [self.build(values, dim) for values in distinct]
        return [jiggle(mixer) for mixer in mixers] if moved else mixers


def build_mixer(values: Mapping[str, Any], slot: str, dim: int = WIDTH, *, trust: Sequence[str] = ()) -> Any:
    """A mixer for slot encoder, decoder or cross, without a model around it."""
    if slot != "cross":
        return build_self_mixer(values, dim=dim, causal=slot == "decoder", where=slot, trust=trust)
    arguments = {key: value for key, value in values.items() if key != "_target_"}
    return mixer_class(values["_target_"], CrossMixer, trust=trust)(dim=dim, memory_dim=dim, **arguments)


def of_rows(state: Any, rows: Tensor, beam: int = 1) -> Any:
    """The sentences `rows` (n,) of a state or a context, moved to the first n rows as in a search that others leave.

    Row i is from i, or from a sentence behind the first n.
    """
    places = torch.arange(len(rows), device=rows.device)
    away = rows != places
    move(state, rows[away], places[away], beam)
    return first(state, len(rows), beam)


def lengths_mask(lengths: Sequence[int], total: int | None = None) -> Tensor:
    """(B, T) masks of right-padded sentences."""
    return torch.arange(total or max(lengths))[None] < torch.tensor(lengths)[:, None]


def random_tokens(mask: Tensor, vocab: int = VOCAB) -> Tensor:
    """Random ordinary tokens ending in eos, padded where mask is False."""
    tokens = torch.randint(EOS + 1, vocab, mask.shape)
    last = mask.sum(1, keepdim=True) - 1
    return tokens.scatter(1, last, EOS).masked_fill(~mask, PAD)
