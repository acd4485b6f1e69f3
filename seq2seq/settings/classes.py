"""The sections `mixer`, `logger` and `callbacks`, whose entries name classes and their arguments."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from seq2seq.settings.declare import Section, read_section, setting
from seq2seq.settings.dicts import flat

# The slots of the section `mixer`.
SLOTS = ("encoder", "decoder", "cross")


@dataclasses.dataclass(frozen=True)
class MixerSettings(Section):
    """Settings of the section `mixer`; constructors of mixers check their arguments."""

    section: ClassVar[str] = "mixer"

    encoder: Mapping[str, Any] = setting({}, "self mixers of the encoder")
    decoder: Mapping[str, Any] = setting({}, "self mixers of the decoder")
    cross: Mapping[str, Any] = setting({}, "cross mixers of the decoder")
    extra_encoder_layers: int = setting(0, "encoder layers besides model.encoder_layers", least=-1000, most=1000)


def read_mixers(section: Mapping[str, Any]) -> dict[str, Any]:
    """Return a plain section `mixer`, with its keys checked; ValueError for a wrong key."""
    settings = read_section(MixerSettings, section, "mixer")
    return {name: getattr(settings, name) for name in section}


def mixers_of(section: Mapping[str, Any], *, used: bool = False) -> Iterator[tuple[str, str, Any]]:
    """Yield slot, dotted path and settings of every mixer of a section `mixer`, in the order of the section.

    Args:
        used: Leave out kinds that no layer uses.
    """
    for slot in SLOTS:
        for path, values in _mixers(section.get(slot), f"mixer.{slot}", used=used):
            yield slot, path, values


def _mixers(values: Any, path: str, *, used: bool) -> Iterator[tuple[str, Any]]:
    """Yield path and settings of one mixer, or of the mixers of all `kinds`, which may have kinds of their own."""
    if not isinstance(values, Mapping):
        return
    if isinstance(values.get("kinds"), Mapping):
        for name, kind in values["kinds"].items():
            if not used or name in values["pattern"]:
                yield from _mixers(kind, f"{path}.kinds.{name}", used=used)
    elif "_target_" in values:
        yield path, values


def class_names(section: Mapping[str, Any]) -> dict[str, list[str]]:
    """List the class names of the mixers by slot of a section `mixer`; an empty slot has ["none"]."""
    names: dict[str, list[str]] = {slot: [] for slot in SLOTS}
    for slot, _, values in mixers_of(section):
        names[slot].append(str(values["_target_"]).rpartition(".")[2])
    return {slot: found or ["none"] for slot, found in names.items()}


def targets_of(mixer: Any) -> list[str]:
    """List every `_target_` of a section `mixer`, including kinds that no layer uses."""
    values = flat({"mixer": mixer}).items()
    return [str(value) for key, value in values if key.rpartition(".")[2] == "_target_"]


def packages_of(mixer: Any) -> tuple[str, ...]:
    """List the packages of all classes that a section `mixer` names; a run trusts its own settings."""
    return tuple(sorted({target.partition(".")[0] for target in targets_of(mixer)}))


# Packages that loggers of Lightning need but Lightning does not install.
_PACKAGES = {"WandbLogger": "wandb", "TensorBoardLogger": "tensorboard", "MLFlowLogger": "mlflow"}


def entries(section: Mapping[str, Any] | None) -> dict[str, Mapping[str, Any]]:
    """Return the entries of a section by name, without entries that null turns off."""
    return {str(name): node for name, node in (section or {}).items() if node is not None}


def require_classes(config: Mapping[str, Any]) -> None:
    """Check that the entries of `callbacks` and `logger` name classes, without importing them.

    Raises:
        ValueError: An entry names no class, or a logger whose package is not installed.
    """
    for section in ("callbacks", "logger"):
        for name, node in entries(config[section]).items():
            key = f"{section}.{name}"
            if not isinstance(node, Mapping) or "_target_" not in node:
                raise ValueError(
                    f"{key}={node} names no class: write {{_target_: package.module.Class, argument: value}}"
                )
            needed = _PACKAGES.get(class_name(node))
            if needed and not _installed(needed):
                raise ValueError(f"the logger '{name}' needs {needed}: pip install {needed}, or use logger=default")


def _installed(package: str) -> bool:
    return package in sys.modules or importlib.util.find_spec(package) is not None


def class_name(node: Mapping[str, Any]) -> str:
    """Return the class name of an entry, without its module."""
    return str(node.get("_target_")).rpartition(".")[2]
