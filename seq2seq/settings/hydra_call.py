"""Call Hydra to compose settings, without catching its errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from seq2seq.system.errors import first_line
from seq2seq.system.resources import conf_dir


def compose_or_raise(overrides: Sequence[str], **options: Any) -> DictConfig:
    """Compose settings; errors of Hydra and OmegaConf are not caught."""
    # Hydra runs this command, and may have been given another configuration folder.
    if GlobalHydra.instance().is_initialized():
        return compose("train", list(overrides), **options)
    # An absolute path, which also works from console scripts and launchers.
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return compose("train", list(overrides), **options)


def plain_settings(config: DictConfig) -> dict[str, Any]:
    """Return composed settings as plain values, with interpolations resolved.

    Raises:
        ValueError: An interpolation has no value, or leads back to itself.
    """
    try:
        return OmegaConf.to_container(config, resolve=True)  # type: ignore[return-value]
    except OmegaConfBaseException as error:
        raise ValueError(one_line(error)) from None
    except RecursionError:
        raise ValueError("settings: an interpolation ${...} leads back to itself") from None


def one_line(error: Exception) -> str:
    """Return the first line of an error of Hydra; the other lines are advice about Hydra's own files."""
    return f"settings: {first_line(error)}"
