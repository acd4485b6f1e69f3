"""Nested dictionaries of settings: flatten, compare and change them."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

# Stands for an absent value, in messages too.
UNSET = "(unset)"


def without(config: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    """Copy `config` without `keys`, which are written as `section.name`; missing keys are ignored."""
    # A deep copy: keys are removed from nested sections.
    kept = copy.deepcopy(dict(config))
    for key in keys:
        *parents, leaf = key.split(".")
        node: Any = kept
        for parent in parents:
            node = node.get(parent, {})
        node.pop(leaf, None)
    return kept


def put(config: dict[str, Any], key: str, value: Any) -> None:
    """Set the value at `section.name`; missing sections are made."""
    *parents, leaf = key.split(".")
    for parent in parents:
        config = config.setdefault(parent, {})
    config[leaf] = value


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested sections to values by `section.name`; an empty section is a value."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        nested = isinstance(value, Mapping) and value
        found |= flat(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return found


def leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the place of each value in nested mappings and lists, and the value: ("section.name.0", value)."""
    if not isinstance(value, Mapping | list | tuple):
        yield key, value
        return
    for name, inner in value.items() if isinstance(value, Mapping) else enumerate(value):
        yield from leaves(inner, f"{key}.{name}" if key else str(name))


def merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Merge nested settings; where both have a value, `second` wins."""
    result = dict(first)
    for key, value in second.items():
        both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = merged(result[key], value) if both else value
    return result


def differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield each setting that differs between two nested configurations, with both values (UNSET if absent)."""
    one, two = flat(first), flat(second)
    # The union of the keys, in the order of the first, then of the second.
    for key in {**one, **two}:
        values = one.get(key, UNSET), two.get(key, UNSET)
        if values[0] != values[1]:
            yield key, *values
