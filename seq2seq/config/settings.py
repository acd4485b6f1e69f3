"""Dataclasses of settings: declare a field with its help, read a section, list the defaults."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from seq2seq.config.durations import seconds
from seq2seq.config.lightning import explain_argument
from seq2seq.config.moved import new_key

Settings = TypeVar("Settings")


def setting(default: Any = dataclasses.MISSING, help: str = "", **more: Any) -> Any:
    """Declare a field of a settings class.

    Args:
        default: A mapping or sequence is copied for every instance.
        help: One line for comments and for docs/settings.md.
        more: Further metadata. `infinite=True` accepts infinity for a number, `null=value` reads null as that value.
    """
    metadata = {"help": help, **more}
    # dataclasses refuse a mutable default; each instance has a copy.
    if isinstance(default, dict | list):
        return dataclasses.field(default_factory=lambda: type(default)(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def duration(default: str | None, help: str) -> Any:
    """Declare a field in seconds, written as `90`, `10m` or `00:01:30:00` in the configuration."""
    # The field is in seconds; `written` is what files and docs show.
    in_seconds = None if default is None else seconds(default)
    return dataclasses.field(default=in_seconds, metadata={"help": help, "written": default, "duration": True})


def internal(default: Any) -> Any:
    """Declare a field that the program sets and that is not a key of the configuration."""
    return dataclasses.field(default=default, metadata={"internal": True})


def keys(cls: type) -> dict[str, dataclasses.Field[Any]]:
    """List the fields of `cls` that are keys of the configuration, by name."""
    return {field.name: field for field in dataclasses.fields(cls) if not field.metadata.get("internal")}


def is_section(cls: type, key: str) -> bool:
    """Return True if a key of `cls` is a section with keys of its own."""
    return dataclasses.is_dataclass(_hints(cls)[key])


def defaults(cls: type) -> dict[str, Any]:
    """List the defaults of `cls` as a plain section: as they are written, `???` for a required value."""
    return {name: _written(cls, field) for name, field in keys(cls).items()}


def _written(cls: type, field: dataclasses.Field[Any]) -> Any:
    # In order: a duration, a nested section, a factory, no default, a plain value.
    if "written" in field.metadata:
        return field.metadata["written"]
    nested = _hints(cls)[field.name]
    if dataclasses.is_dataclass(nested):
        return defaults(nested)  # type: ignore[arg-type]
    value = field.default
    if field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    if value is dataclasses.MISSING:
        return "???"
    # YAML and OmegaConf have lists alone.
    return list(value) if isinstance(value, tuple) else value


def read_section(cls: type[Settings], section: Mapping[str, Any], name: str, *, extra: bool = False) -> Settings:
    """Build the settings of `cls` from a plain, resolved section.

    Args:
        name: the section's name, which begins the keys in messages.
        extra: ignore keys that `cls` does not know.

    Raises:
        ValueError: an unknown key, or a value of the wrong type or range; the message names key and value.
    """
    known = keys(cls)
    values = {}
    for key, value in section.items():
        # `???` is Hydra's mark of a setting that must be set.
        if key in known and value != "???":
            values[key] = _value(value, _hints(cls)[key], known[key].metadata, _join(name, key))
        elif key not in known and not extra:
            raise _unknown(key, name, list(known))
    # `???` was passed over above, so it counts as missing.
    missing = [
        key
        for key, field in known.items()
        if key not in values and field.default is field.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ValueError(f"{_join(name, missing[0])} is missing; {name} takes {', '.join(known)}")
    return cls(**values)


def with_whole_numbers(settings: Any, section: Mapping[str, Any]) -> dict[str, Any]:
    """Return a plain section in which a float that its class takes as an int is written as one: 1e3 as 1000.

    A run's name follows from the plain sections, and both spellings are the same run.
    """
    result = dict(section)
    for key, value in section.items():
        checked = getattr(settings, key, None)
        # `settings` are the checked values, so the fraction is known to be 0.
        if isinstance(value, float) and type(checked) is int:
            result[key] = checked
        elif isinstance(value, Mapping) and dataclasses.is_dataclass(checked):
            result[key] = with_whole_numbers(checked, value)
    return result


def _join(section: str, key: str) -> str:
    return f"{section}.{key}" if section else key


def _unknown(key: str, name: str, known: Sequence[str]) -> ValueError:
    full = _join(name, key)
    if moved := new_key(full):
        return ValueError(f"{full} is now {moved}")
    if explained := explain_argument(full):
        return ValueError(explained)
    return ValueError(f"unknown setting {full}; known: {', '.join(known)}")


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    # Annotations are strings (`from __future__`); cached, since resolving them is slow.
    return typing.get_type_hints(cls)


def _value(value: Any, hint: Any, metadata: Mapping[str, Any], key: str) -> Any:
    """Check one value against the annotation `hint` of its field, and convert it."""
    # Metadata come before the annotation, which they refine.
    if metadata.get("duration"):
        return None if value is None else seconds(value, key)
    if "null" in metadata and value is None:
        return metadata["null"]
    if dataclasses.is_dataclass(hint):
        if value is not None and not isinstance(value, Mapping):
            raise ValueError(f"{key}={value} is no section; it takes {', '.join(keys(hint))}")  # type: ignore[arg-type]
        return read_section(hint, value or {}, key)  # type: ignore[arg-type]
    # By annotation; types that none of these matches are left to the class.
    if isinstance(hint, types.UnionType):
        return _union(value, typing.get_args(hint), metadata, key)
    if hint is bool:
        return flag(value, key)
    if hint in (int, float):
        return _number(value, hint, key, infinite=bool(metadata.get("infinite")))
    if hint is str:
        return _word(value, key)
    if typing.get_origin(hint) is tuple:
        # One value stands for a tuple of one, as in languages=de.
        return tuple(value) if isinstance(value, list | tuple) else (value,)
    if typing.get_origin(hint) in (dict, Mapping):
        return _mapping(value, key)
    return value


def _union(value: Any, hints: Sequence[Any], metadata: Mapping[str, Any], key: str) -> Any:
    if value is None and type(None) in hints:
        return None
    if bool in hints and (value is False or value == math.inf):
        return None  # null, false and infinity turn a rule off
    # Words that a number may be replaced by, as in data.max_tokens=auto.
    words = metadata.get("words", ())
    if value in words:
        return value
    # One type is left: None, rules that are off, and words are dealt with above.
    rest = [hint for hint in hints if hint not in (type(None), bool) and not (hint is str and words)]
    return _value(value, rest[0], metadata, key)


def flag(value: Any, key: str) -> bool:
    """Convert true, false, 1 or 0 to a bool.

    Raises:
        ValueError: It is another value; the message names `key`.
    """
    if not isinstance(value, bool | int) or value not in (True, False):
        raise ValueError(f"{key}={_shown(value)} is neither true nor false")
    return bool(value)


def is_number(value: Any) -> bool:
    """Return True if `value` is a finite number, which true and false are not."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _number(value: Any, hint: type, key: str, *, infinite: bool) -> int | float:
    if not is_number(value) and not (infinite and value == math.inf):
        raise ValueError(f"{key}={_shown(value)} is no finite number")
    # YAML reads 1e3 as a float.
    if hint is int and isinstance(value, float):
        if not value.is_integer():
            raise ValueError(f"{key}={value} must be a whole number")
        return int(value)
    return float(value) if hint is float else value


def _word(value: Any, key: str) -> str:
    # A name may look like a number, as in run=2024.
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"{key}={_shown(value)} is no word")
    return str(value)


def _mapping(value: Any, key: str) -> dict[Any, Any]:
    if value is not None and not isinstance(value, Mapping):
        raise ValueError(f"{key}={_shown(value)} is no mapping {{key: value}}")
    return dict(value or {})


def _shown(value: Any) -> str:
    return "null" if value is None else str(value)
