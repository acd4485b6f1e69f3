"""Read all sections of a resolved configuration."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from seq2seq.config.data import DataSettings
from seq2seq.config.dicts import flat
from seq2seq.config.model import ModelSettings
from seq2seq.config.moved import modernize, new_key
from seq2seq.config.optim import OptimSettings
from seq2seq.config.run import RunSettings
from seq2seq.config.search import SearchSettings
from seq2seq.config.settings import defaults, nested_class, read_section
from seq2seq.config.tokenizer import TokenizerSettings
from seq2seq.config.trainer import TrainerSettings, bounded
from seq2seq.config.values import check_value, shown
from seq2seq.config.yaml_file import read_yaml
from seq2seq.resources import conf_dir

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


# Sections without a class, which are checked by what they build.
OPEN = ("mixer", "logger")


@dataclasses.dataclass(frozen=True)
class Sections:
    """Checked settings of every section but `mixer`, which the constructors of mixers check."""

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
    names = [name for name in (*SECTIONS, *OPEN) if name]
    run = read_section(RunSettings, config, "", extra=names, complete=True)
    for name in names:
        if not isinstance(config.get(name), Mapping):
            raise ValueError(
                f"{name}={shown(config.get(name))} is not a section; leave it out, or choose a file of conf/{name}"
            )
    check_mixer(config["mixer"])
    read = {
        name: read_section(SECTIONS[name], _bounded(name, config[name]), name, complete=True)
        for name in SECTIONS
        if name
    }
    return Sections(run=run, **read)


def _bounded(name: str, section: Mapping[str, Any]) -> Mapping[str, Any]:
    # With the default bound, which the class itself requires.
    return bounded(section) if name == "trainer" else section


def present_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return an older run's settings under the present names; a section has defaults for keys that are newer."""
    result = modernize(config)
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
    nested = {
        key: value | section[key]
        for key, value in known.items()
        # An open mapping, such as data.tokenize, is a value and not a section.
        if nested_class(cls, key) and isinstance(section.get(key), dict)
    }
    return known | dict(section) | nested


def check_mixer(mixer: Mapping[str, Any]) -> None:
    """Check the flags of mixers, which are true or false in conf/mixer, before any of them is imported.

    Raises:
        ValueError: A flag is neither true nor false, or a key has been renamed.
    """
    values = flat(mixer, "mixer.")
    for key, value in values.items():
        # A flag is known by the class beside it, which decides what its keys mean.
        slot, _, name = key.rpartition(".")
        target = str(values.get(f"{slot}._target_"))
        if target.startswith("seq2seq.") and (moved := new_key(key)):
            raise ValueError(f"{key} is now {moved}")
        if (target, name) in _flags():
            check_value(value, bool, {}, key)


@functools.cache
def _flags() -> frozenset[tuple[str, str]]:
    """List class and key of all that is true or false in conf/mixer."""
    # The files are the only list of flags: classes are not imported here.
    files = (conf_dir() / "mixer").glob("*/*.yaml")
    sections = [read_yaml(file) for file in files]
    return frozenset(
        (str(section.get("_target_")), key)
        for section in sections
        for key, value in section.items()
        if type(value) is bool
    )
