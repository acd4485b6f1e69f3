"""Upgrade checkpoints of earlier formats when they are read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FORMAT = 2  # of the checkpoints that are written


def upgrade(payload: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return a checkpoint's dictionary in the current format; what is current already is returned as it is.

    Format 1 called the `backend` of a mixer `kernel`.

    Args:
        payload: The whole dictionary of the file, its format checked.
        key: The entry that describes the model and holds the format.
    """
    if payload[key]["format"] == FORMAT:
        return dict(payload)
    entry = {**payload[key], "format": FORMAT, "model": _with_backend(payload[key]["model"])}
    upgraded = {**payload, key: entry}
    # a training checkpoint carries the run's settings too, with mixers of its own
    run = payload.get("run")
    if isinstance(run, Mapping) and isinstance(run.get("settings"), Mapping):
        upgraded["run"] = {**run, "settings": _with_backend(run["settings"])}
    return upgraded


def _with_backend(config: Mapping[str, Any]) -> dict[str, Any]:
    """Rename `kernel` to `backend` in every slot of the section `mixer`."""
    slots = config.get("mixer")
    if not isinstance(slots, Mapping):
        return dict(config)
    return {**config, "mixer": {name: _slot(slot) for name, slot in slots.items()}}


def _slot(slot: Any) -> Any:
    if not isinstance(slot, Mapping):
        return slot
    if isinstance(slot.get("kinds"), Mapping):
        # a pattern of several mixers
        return {**slot, "kinds": {name: _slot(kind) for name, kind in slot["kinds"].items()}}
    if not str(slot.get("_target_")).startswith("seq2seq."):
        return slot  # another package's mixer, whose `kernel` is its own
    renamed = _rename(slot)
    if isinstance(slot.get("per_layer"), Mapping):
        renamed["per_layer"] = _rename(slot["per_layer"])
    return renamed


def _rename(values: Mapping[str, Any]) -> dict[str, Any]:
    return {"backend" if key == "kernel" else key: value for key, value in values.items()}
