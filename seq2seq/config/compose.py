"""Compose the settings of a training run outside of Hydra's command line, and list what they can name."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from seq2seq.config.unknown_keys import unknown_key
from seq2seq.resources import conf_dir


def presets() -> list[str]:
    """List the presets: the files of conf/mixer."""
    return sorted(path.stem for path in (conf_dir() / "mixer").glob("*.yaml"))


def self_mixers() -> list[str]:
    """List the self mixers: the files of conf/mixer/self but for the empty slot's."""
    return sorted(path.stem for path in (conf_dir() / "mixer" / "self").glob("*.yaml") if path.stem != "none")


def require_known(name: str, known: Sequence[str], what: str) -> str:
    """Return `name`.

    Raises:
        ValueError: it is not among `known`; names those that are spelled alike.
    """
    if name in known:
        return name
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(known)}"
    raise ValueError(f"unknown {what} '{name}'; {hint}")


def compose_settings(overrides: Sequence[str]) -> DictConfig:
    """Compose the settings of `python -m seq2seq.train` with these overrides; interpolations stay.

    Raises:
        ValueError: Hydra refuses the overrides; says why in one line.
    """
    if message := unknown_key(overrides):
        raise ValueError(message)
    with initialize_config_dir(version_base="1.3", config_dir=str(conf_dir())):
        try:
            return compose("train", list(overrides))
        except (HydraException, OmegaConfBaseException) as error:
            raise _in_one_line(error) from None


def resolved_settings(overrides: Sequence[str]) -> dict[str, Any]:
    """Compose settings as plain values, interpolations resolved.

    Raises:
        ValueError: Hydra refuses the overrides, or an interpolation has no value.
    """
    config = compose_settings(overrides)
    try:
        return OmegaConf.to_container(config, resolve=True)  # type: ignore[return-value]
    except OmegaConfBaseException as error:
        raise _in_one_line(error) from None


def _in_one_line(error: Exception) -> ValueError:
    lines = [" ".join(line.split()) for line in str(error).splitlines()]
    return ValueError(f"settings: {'; '.join(lines)}")
