"""Nested dictionaries of settings: flattened to `section.name`, compared, and stripped of keys."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def without(config: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    """A copy of `config` that lacks `keys`, given as `section.name`."""
    kept = copy.deepcopy(dict(config))
    for key in keys:
        *parents, leaf = key.split(".")
        node: Any = kept
        for parent in parents:
            node = node.get(parent, {})
        node.pop(leaf, None)
    return kept


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of nested sections by `section.name`; an empty section is a value."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        nested = isinstance(value, Mapping) and value
        found |= flat(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return found


def differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Every setting, in order, that differs between two nested configurations, with both values (UNSET if absent)."""
    one, two = flat(first), flat(second)
    for key in {**one, **two}:
        values = one.get(key, UNSET), two.get(key, UNSET)
        if values[0] != values[1]:
            yield key, *values


# In place of a value that is not there.
UNSET = "(unset)"
