"""Upgrade checkpoints of earlier formats when they are read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seq2seq.settings.moved import modernize

FORMAT = 2  # of the checkpoints that are written


def upgrade(payload: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return a checkpoint's dictionary in the current format, with its mixers' settings under their present names.

    Format 1 called the `backend` of a mixer `kernel`; other settings were renamed since without another format.

    Args:
        payload: The whole dictionary of the file, its format checked.
        key: The entry that describes the model and holds the format.
    """
    entry = {**payload[key], "format": FORMAT, "model": _with_present_names(payload[key]["model"])}
    upgraded = {**payload, key: entry}
    # A training checkpoint carries the run's settings too, with mixers of its own
    run = payload.get("run")
    if isinstance(run, Mapping) and isinstance(run.get("settings"), Mapping):
        upgraded["run"] = {**run, "settings": _with_present_names(run["settings"])}
    return upgraded


def _with_present_names(config: Mapping[str, Any]) -> dict[str, Any]:
    """Rename the settings of the section `mixer`; its neighbors are the model's alone, and have no other section."""
    if not isinstance(config.get("mixer"), Mapping):
        return dict(config)
    return {**config, **modernize({"mixer": config["mixer"]})}
