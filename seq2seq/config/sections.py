"""Read all sections of a resolved configuration."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from seq2seq.config.data import DataSettings
from seq2seq.config.dicts import flat
from seq2seq.config.extensions import class_name, entries, require_classes
from seq2seq.config.mixer import check_mixer
from seq2seq.config.model import ModelSettings
from seq2seq.config.optim import OptimSettings
from seq2seq.config.run import RunSettings
from seq2seq.config.search import SearchSettings
from seq2seq.config.settings import defaults, nested_class, read_section
from seq2seq.config.tokenizer import TokenizerSettings
from seq2seq.config.trainer import TrainerSettings, bounded
from seq2seq.config.values import shown

# The settings class of every section; "" is the top level.
SECTIONS: dict[str, type] = {
    "": RunSettings,
    "data": DataSettings,
    "tokenizer": TokenizerSettings,
    "model": ModelSettings,
    "optim": OptimSettings,
    "search": SearchSettings,
    "trainer": TrainerSettings,
}
# Sections that stay mappings, since they hold arguments of classes; `check_mixer` and what is built check them.
NOT_READ = ("mixer", "logger")


@dataclasses.dataclass(frozen=True)
class Sections:
    """Checked settings of every section but `mixer` and `logger`, which are arguments of classes."""

    run: RunSettings
    data: DataSettings
    tokenizer: TokenizerSettings
    model: ModelSettings
    optim: OptimSettings
    search: SearchSettings
    trainer: TrainerSettings


def read_sections(config: Mapping[str, Any]) -> Sections:
    """Check a resolved, plain configuration.

    Raises:
        ValueError: an unknown key, a section or a key that was deleted, or a value of the wrong type or range.
    """
    names = [name for name in (*SECTIONS, *NOT_READ) if name]
    run = read_section(RunSettings, config, "", extra=names, complete=True)
    for name in names:
        if not isinstance(config.get(name), Mapping):
            raise ValueError(
                f"{name}={shown(config.get(name))} is not a section; leave it out, or choose a file of conf/{name}"
            )
    read = {
        name: read_section(SECTIONS[name], _bounded(name, config[name]), name, complete=True)
        for name in SECTIONS
        if name
    }
    check_mixer(config["mixer"], config["model"])
    require_classes(config)
    if read["optim"].r_drop and not _has_dropout(config["model"], config["mixer"]):
        raise ValueError(
            f"optim.r_drop={read['optim'].r_drop} compares two passes with dropout, and none is set but, at most, that "
            "of kernels (weight_dropout), which passes may share: set model.dropout=0.1, or optim.r_drop=0"
        )
    if read["trainer"].median_stop and not _has_curve(config["logger"]):
        raise ValueError(
            f"trainer.median_stop={read['trainer'].median_stop} compares the metrics.csv of jobs, and none is written: "
            "add logger=csv or logger=default, or leave trainer.median_stop out"
        )
    return Sections(run=run, **read)


def _bounded(name: str, section: Mapping[str, Any]) -> Mapping[str, Any]:
    # With the default bound, which the class itself requires.
    return bounded(section) if name == "trainer" else section


def _has_curve(loggers: Mapping[str, Any]) -> bool:
    """Say whether a logger writes metrics.csv."""
    return any(class_name(node) == "CsvLogger" for node in entries(loggers).values())


def _has_dropout(model: Mapping[str, Any], mixer: Mapping[str, Any]) -> bool:
    """Say whether a dropout acts, but for that of kernels, `weight_dropout`: LightConv draws one for all."""
    # Mixers that drop attention weights have a setting for it; in others model.attention_dropout does nothing.
    of_mixer = [value for key, value in flat(mixer).items() if _is_dropout(key.rpartition(".")[2])]
    # One of `per_layer` is a list.
    values = [each for value in of_mixer for each in (value if isinstance(value, list) else [value])]
    return any([model["dropout"], model["ffn_dim"] and model["activation_dropout"], *values])


def _is_dropout(name: str) -> bool:
    return name.endswith("dropout") and name != "weight_dropout"


def present_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of an earlier version's run; a section has defaults for keys that are newer."""
    result = dict(config)
    for name, cls in SECTIONS.items():
        # Only sections that are there: a checkpoint's settings are those of its model alone.
        if not name:
            result = _filled(cls, result)
        elif isinstance(result.get(name), dict):
            result[name] = _filled(cls, result[name])
    return result


def _filled(cls: type, section: Mapping[str, Any]) -> dict[str, Any]:
    """Return a section with defaults for missing keys, in nested sections as well."""
    known = {key: value for key, value in defaults(cls).items() if value != "???"}
    result = known | dict(section)
    for key in known:
        # An open mapping, such as data.tokenize, is a value and not a section.
        nested = nested_class(cls, key)
        if nested and isinstance(result[key], dict):
            result[key] = _filled(nested, result[key])
    return result
