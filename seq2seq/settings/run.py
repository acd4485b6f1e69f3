"""The settings of a run: the top level, and all sections together in the one form that travels."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from seq2seq.settings.classes import class_name, entries, read_mixers, require_classes
from seq2seq.settings.data import DataSettings
from seq2seq.settings.declare import Section, defaults, join, keys, nested_class, plain, read_section, setting
from seq2seq.settings.dicts import flat
from seq2seq.settings.model import ModelSettings
from seq2seq.settings.optim import OptimSettings
from seq2seq.settings.search import SearchSettings
from seq2seq.settings.tokenizer import TokenizerSettings
from seq2seq.settings.trainer import TrainerSettings
from seq2seq.settings.values import shown


@dataclasses.dataclass(frozen=True)
class RunSettings(Section):
    """Settings of a run that belong to no section.

    Raises:
        ValueError: a value outside its range, or a folder outside `runs`.
    """

    seed: int = setting(1, "seed of weights, order of the data, and dropout", least=0, most=2**32 - 1)
    resume: str | None = setting(None, "auto continues the run of these settings if there is one; or a checkpoint")
    force: bool = setting(False, "continue a run although settings have changed: each change is reported")
    init_from: str | None = setting(None, "a checkpoint whose weights and tokenizer a new run starts from")
    runs: str = setting("runs", "where run folders are")
    run: str | None = setting(None, "a run folder's name; null = <data>-<mixer>-<hash of these settings>")
    callbacks: Mapping[str, Any] = setting(
        {}, "callbacks of your own, {name: {_target_: a class, argument: value}}; on the command line with +"
    )
    cache: str = setting(".cache", "where prepared data is kept; the variable SEQ2SEQ_CACHE changes it")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.run is not None:
            parts = PurePath(self.run).parts
            # `.` is the folder of all runs; file systems take 255 bytes, of which a copy's name needs some.
            too_long = any(len(part.encode()) > 200 for part in parts)
            if not parts or PurePath(self.run).is_absolute() or ".." in parts or too_long:
                raise ValueError(
                    f"run={shown(self.run)} is not the name of a folder below runs={shown(self.runs)}: "
                    "give a name, and choose where the folders of runs are with runs=<folder>"
                )


# The settings class of every section with declared settings; "" is the top level.
SECTIONS: dict[str, type[Any]] = {
    "": RunSettings,
    "data": DataSettings,
    "tokenizer": TokenizerSettings,
    "model": ModelSettings,
    "optim": OptimSettings,
    "search": SearchSettings,
    "trainer": TrainerSettings,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Checked settings of a run.

    Args:
        mixers: The section `mixer`, whose slots have arguments of mixers, which check them.
        loggers: The section `logger`, {name: class and arguments}.

    Raises:
        ValueError: Sections exclude each other.
    """

    run: RunSettings
    data: DataSettings
    tokenizer: TokenizerSettings
    model: ModelSettings
    optim: OptimSettings
    search: SearchSettings
    trainer: TrainerSettings
    mixers: Mapping[str, Any]
    loggers: Mapping[str, Any]

    def __post_init__(self) -> None:
        # The same section serves `translate`, where more than one is allowed.
        if self.search.n_best != 1:
            raise ValueError(
                f"search.n_best={self.search.n_best}: a score is that of the best translation alone; leave it at 1 "
                "(seq2seq.translate --n-best lists more)"
            )
        if self.optim.name == "muon" and self.trainer.sharded:
            raise ValueError(
                "optim.name=muon updates whole matrices, of which trainer.strategy=fsdp gives each process a part: "
                "set trainer.strategy=ddp, or optim.name=adam"
            )
        for name in ("accumulate", "accumulate_start"):
            micro_batches = getattr(self.trainer, name)
            if self.data.batch_tokens is not None and micro_batches not in (None, keys(TrainerSettings)[name].default):
                raise ValueError(
                    f"trainer.{name}={micro_batches} counts micro-batches of an update, and data.batch_tokens="
                    f"{self.data.batch_tokens} its tokens: set one of the two"
                )
        if self.optim.r_drop and not self._has_dropout():
            raise ValueError(
                f"optim.r_drop={self.optim.r_drop} compares two passes with dropout, and none is set but, at most, "
                "weight_dropout, whose mask the passes may share: set model.dropout=0.1, or optim.r_drop=0"
            )
        written = any(class_name(node) == "CsvLogger" for node in entries(self.loggers).values())
        if self.trainer.median_stop and not written:
            raise ValueError(
                f"trainer.median_stop={self.trainer.median_stop} compares the metrics.csv of jobs, and none is "
                "written: add logger=csv or logger=default, or leave trainer.median_stop out"
            )

    def _has_dropout(self) -> bool:
        """Return True if any dropout other than weight_dropout is on."""
        # Mixers that drop attention weights have a setting for it; in others model.attention_dropout does nothing.
        for key, value in flat(self.mixers).items():
            name = key.rpartition(".")[2]
            # One of `per_layer` is a list.
            if name.endswith("dropout") and name != "weight_dropout" and any(value if type(value) is list else [value]):
                return True
        return bool(self.model.dropout or (self.model.ffn_dim and self.model.activation_dropout))

    def plain(self) -> dict[str, Any]:
        """Return the configuration as config.yaml has it; `read_settings` reads it back."""
        sections = {name: plain(getattr(self, name)) for name in SECTIONS if name}
        classes = copy.deepcopy({"mixer": dict(self.mixers), "logger": dict(self.loggers)})
        return {**plain(self.run), **sections, **classes}


def read_settings(config: Mapping[str, Any]) -> Settings:
    """Read and check a resolved, plain configuration.

    Raises:
        ValueError: an unknown key, a section or a key that was deleted, or a value of the wrong type or range.
    """
    names = [*filter(None, SECTIONS), "mixer", "logger"]
    for name in names:
        if not isinstance(config.get(name), Mapping):
            raise ValueError(
                f"{name}={shown(config.get(name))} is not a section; leave it out, or choose a file of conf/{name}"
            )
    top = {key: value for key, value in config.items() if key not in names}
    run = read_section(RunSettings, top, "", complete=True)
    sections = {name: read_section(cls, config[name], name, complete=True) for name, cls in SECTIONS.items() if name}
    require_classes(config)
    return Settings(run=run, mixers=read_mixers(config["mixer"]), loggers=config["logger"], **sections)


def changed_values(config: Mapping[str, Any]) -> dict[str, Any]:
    """List the values that differ from the declared defaults, by `section.name`."""
    found: dict[str, Any] = {}
    for section, cls in SECTIONS.items():
        found |= _changed_values(cls, config.get(section, {}) if section else config, section)
    return found


def _changed_values(cls: type, section: Mapping[str, Any], name: str) -> dict[str, Any]:
    known = defaults(cls)
    found: dict[str, Any] = {}
    for key in (key for key in keys(cls) if key in section):
        nested, value = nested_class(cls, key), section[key]
        if nested and isinstance(value, Mapping):
            found |= _changed_values(nested, value, join(name, key))
        elif value != known[key]:
            found[join(name, key)] = value
    return found


def present_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return an earlier version's settings; a section has defaults for keys that are newer."""
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
