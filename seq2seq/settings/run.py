"""All settings of a run, of the top level and of the sections, as one checked object."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from seq2seq.settings.classes import class_name, entries, read_mixers, require_classes
from seq2seq.settings.data import DataSettings
from seq2seq.settings.declare import Section, defaults, join, keys, nested_class, plain, read_section, setting
from seq2seq.settings.dicts import flat, merged
from seq2seq.settings.model import ModelSettings
from seq2seq.settings.optim import OptimSettings
from seq2seq.settings.search import SearchSettings
from seq2seq.settings.tokenizer import TokenizerSettings
from seq2seq.settings.trainer import TrainerSettings
from seq2seq.settings.values import shown


@dataclasses.dataclass(frozen=True)
class RunSettings(Section):
    """Settings of a run that belong to no section."""

    seed: int = setting(1, "seed of weights, order of the data, and dropout", least=0, most=2**32 - 1)
    resume: str | None = setting(None, "auto continues the run of these settings if it exists; or a checkpoint")
    force: bool = setting(False, "continue a run whose settings have changed, or replace one that has lost its state")
    init_from: str | None = setting(None, "a checkpoint whose weights and tokenizer a new run starts from")
    runs: str = setting("runs", "folder of all runs")
    run: str | None = setting(None, "name of the run's folder; null = <data>-<mixer>-<hash of these settings>")
    callbacks: Mapping[str, Any] = setting(
        {}, "your own callbacks, {name: {_target_: a class, argument: value}}; add with +"
    )
    cache: str = setting(".cache", "folder of prepared data; the variable SEQ2SEQ_CACHE sets the default")

    def __post_init__(self) -> None:
        super().__post_init__()
        # `.` would be the folder of all runs. File systems allow names of 255 bytes, and the name of a copy is longer.
        parts = PurePath(self.run).parts if self.run is not None else ("run",)
        if not parts or any(part in ("..", "/") or len(part.encode()) > 200 for part in parts):
            raise ValueError(f"run={shown(self.run)} is not the name of a folder below runs={shown(self.runs)}")


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
        mixers: The section `mixer`; the constructors of mixers check their arguments.
        loggers: The section `logger`, {name: class and arguments}.

    Raises:
        ValueError: Settings of two sections exclude each other.
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
        # Checked here and not in the section, which `translate` uses as well.
        if self.search.n_best != 1:
            raise ValueError(
                f"search.n_best={self.search.n_best} is for seq2seq.translate: a run scores one translation"
            )
        if self.optim.name == "muon" and self.trainer.sharded:
            raise ValueError(
                "optim.name=muon needs whole matrices, and trainer.strategy=fsdp divides them: set one of the two"
            )
        if self.optim.lora and self.run.init_from is None:
            raise ValueError(f"optim.lora={self.optim.lora} updates a trained model: set init_from, or leave it out")
        if self.optim.r_drop and self.optim.teacher:
            raise ValueError(f"optim.r_drop={self.optim.r_drop} and optim.teacher are two losses: set one of the two")
        for name in ("freeze", "lora"):
            if getattr(self.optim, name) and self.trainer.sharded:
                raise ValueError(
                    f"optim.{name} needs whole weights, and trainer.strategy=fsdp divides them: set one of the two"
                )
        for name in ("accumulate", "accumulate_start"):
            number, tokens = getattr(self.trainer, name), self.data.batch_tokens
            if tokens is not None and number not in (None, keys(TrainerSettings)[name].default):
                raise ValueError(
                    f"trainer.{name}={number} and data.batch_tokens={tokens} both size updates: set one of the two"
                )
        if self.optim.r_drop and not self._has_dropout():
            raise ValueError(
                f"optim.r_drop={self.optim.r_drop} compares two passes with dropout: set model.dropout=0.1"
            )
        loggers = [class_name(node) for node in entries(self.loggers).values()]
        if self.trainer.median_stop and "CsvLogger" not in loggers:
            raise ValueError(
                f"trainer.median_stop={self.trainer.median_stop} compares files metrics.csv: add logger=csv"
            )

    def _has_dropout(self) -> bool:
        """Return True if a dropout other than weight_dropout, whose mask two passes may share, is on."""
        # Mixers that drop attention weights have their own setting; others ignore model.attention_dropout.
        for key, value in flat(self.mixers).items():
            name = key.rpartition(".")[2]
            # A list in `per_layer`.
            rates = value if isinstance(value, list) else [value]
            if name.endswith("dropout") and name != "weight_dropout" and any(rates):
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
        ValueError: A key is unknown or was deleted, or a value has the wrong type or range.
    """
    values: dict[str, Any] = {name: config.get(name) for name in (*filter(None, SECTIONS), "mixer", "logger")}
    for name, section in values.items():
        if not isinstance(section, Mapping):
            raise ValueError(f"{name}={shown(section)} is not a section; leave it out, or choose a file of conf/{name}")
    top = {key: value for key, value in config.items() if key not in values}
    run = read_section(RunSettings, top, "")
    sections = {name: read_section(cls, values[name], name) for name, cls in SECTIONS.items() if name}
    require_classes(config)
    return Settings(run=run, mixers=read_mixers(values["mixer"]), loggers=values["logger"], **sections)


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
    """Give the settings of an earlier version the defaults of settings that it lacks, and drop removed ones."""
    result = {**defaults(RunSettings), **config}
    for name, cls in SECTIONS.items():
        # Complete only sections that exist: a checkpoint keeps only the settings of its model.
        if name and isinstance(config.get(name), Mapping):
            known = {key: value for key, value in defaults(cls).items() if value != "???"}
            given = config[name]
            # Removed settings of the trainer (`compile`) change no model; in other sections, an unknown key is refused
            if name == "trainer":
                given = {key: value for key, value in given.items() if key in keys(cls)}
            result[name] = merged(known, given)
    return result
