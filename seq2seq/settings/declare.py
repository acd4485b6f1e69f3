"""Declare settings: a field with its help and its range, a section that checks itself, its plain form and back."""

from __future__ import annotations

import copy
import dataclasses
import functools
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from seq2seq.settings.aliases import elsewhere
from seq2seq.settings.values import allowed, check_value, compact, seconds, shown, suggestion

SectionType = TypeVar("SectionType", bound="Section")
# Of `needs`: any value but null, false and an empty mapping.
SET = object()


class Section:
    """Base of the settings classes: checks every value by the type and the range that its field declares.

    Attributes:
        section: The name that begins the keys in messages.
    """

    section: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for name, field in keys(type(self)).items():
            value = check_value(getattr(self, name), _hints(type(self))[name], field.metadata, join(self.section, name))
            # As dataclasses set the fields of a frozen instance themselves.
            object.__setattr__(self, name, value)


def setting(default: Any = dataclasses.MISSING, help: str = "", **limits: Any) -> Any:
    """Declare a field of a settings class. Its annotation and `limits` are its check, its error and its documentation.

    Args:
        default: A mapping or sequence is copied for every instance.
        help: One line for comments and for docs/settings.md.
        limits: `least`, `above`, `most`, `below` bound a number, `choices` are the words there are, `words` replace a
            number, `infinite=True` accepts infinity, `null=value` reads null as that value. A sequence's are those of
            each of its values. `option_least` is the `least` of a command's option and of a request's field.
            `example` is a value for messages. `needs` names other fields of the class, each with the values (or SET)
            beside which this one has an effect; `idle` returns why it has none, or ""; see `require_used`.
    """
    metadata = {"help": help, **limits}
    # dataclasses refuse a mutable default; each instance has a copy.
    if isinstance(default, dict | list):
        return dataclasses.field(default_factory=lambda: type(default)(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def duration(default: str | None, help: str) -> Any:
    """Declare a field in seconds, written as `90`, `10m` or `00:01:30:00` in the configuration."""
    in_seconds = None if default is None else seconds(default)
    return dataclasses.field(default=in_seconds, metadata={"help": help, "duration": True})


def internal(default: Any) -> Any:
    """Declare a field that the program sets and that is not a key of the configuration."""
    return dataclasses.field(default=default, metadata={"internal": True})


def keys(cls: type) -> dict[str, dataclasses.Field[Any]]:
    """List the fields of `cls` that are keys of the configuration, by name."""
    return {field.name: field for field in dataclasses.fields(cls) if not field.metadata.get("internal")}


def defaults(cls: type) -> dict[str, Any]:
    """List the defaults of `cls` as a plain section: as they are written, `???` for a required value."""
    return {name: _default(cls, field) for name, field in keys(cls).items()}


def _default(cls: type, field: dataclasses.Field[Any]) -> Any:
    nested = _hints(cls)[field.name]
    if dataclasses.is_dataclass(nested):
        return defaults(nested)  # type: ignore[arg-type]
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return "???" if field.default is dataclasses.MISSING else _plain(field.default, field)


def plain(settings: Any) -> dict[str, Any]:
    """Return a section as YAML has it; `read_section` reads it back."""
    return {name: _plain(getattr(settings, name), field) for name, field in keys(type(settings)).items()}


def _plain(value: Any, field: dataclasses.Field[Any]) -> Any:
    if dataclasses.is_dataclass(value):
        return plain(value)
    if field.metadata.get("duration") and value is not None:
        return compact(value)
    # YAML and OmegaConf have lists alone.
    return list(value) if isinstance(value, tuple) else copy.deepcopy(value)


def describe(cls: type, name: str) -> str:
    """Describe the values that a setting takes: "a whole number from 1 or null"."""
    return allowed(_hints(cls)[name], keys(cls)[name].metadata)


def read_section(
    cls: type[SectionType], section: Mapping[str, Any], name: str, *, complete: bool = False
) -> SectionType:
    """Build the settings of `cls` from a plain, resolved section.

    Args:
        name: the section's name, which begins the keys in messages.
        complete: refuse a section without all of its keys, as Hydra composes it unless a word deletes one.

    Raises:
        ValueError: an unknown key, or a value of the wrong type or range; the message names key and value.
    """
    known = keys(cls)
    if not isinstance(section, Mapping):
        raise ValueError(f"{name}={shown(section)} is not a section; it has the settings {', '.join(known)}")
    values = {}
    for key, value in section.items():
        if key not in known:
            inside = [join(each, key) for each in keys(cls) if (part := nested_class(cls, each)) and key in keys(part)]
            raise unknown(shown(key), name, list(known), inside)
        # `???` is Hydra's mark of a setting that must be set.
        if value != "???":
            values[key] = _nested(cls, value, known[key], join(name, key), complete=complete)
    for key, field in known.items():
        if complete and key not in section:
            raise ValueError(
                f"{join(name, key)} is deleted; only entries of data.corpora, mixer, logger and callbacks can be"
            )
        if key not in values and field.default is field.default_factory is dataclasses.MISSING:
            example = f", as in {join(name, key)}={field.metadata['example']}" if "example" in field.metadata else ""
            raise ValueError(f"{join(name, key)} is missing: set it ({field.metadata['help']}){example}")
    return cls(**values)


def _nested(cls: type, value: Any, field: dataclasses.Field[Any], key: str, *, complete: bool) -> Any:
    """Read a section in a section, which has keys of its own; return any other value as it is."""
    nested = nested_class(cls, field.name)
    if nested is None or isinstance(value, nested):
        return value
    if value is None:
        return field.default if _hints(cls)[field.name] is nested else None
    return read_section(nested, value, key, complete=complete and isinstance(field.default, nested))


def nested_class(cls: type, name: str) -> type[Section] | None:
    """Return the settings class that a field holds, null beside it or not; None if it holds a value."""
    hint = _hints(cls)[name]
    hints = (hint, *typing.get_args(hint))
    return next((each for each in hints if isinstance(each, type) and issubclass(each, Section)), None)


def settings_rows(cls: type, section: str) -> Iterator[tuple[str, Any, str, str]]:
    """Yield name, default, help and allowed values of every setting of a section; "" is the top level."""
    written: Mapping[str, Any] = defaults(cls)
    for name, field in keys(cls).items():
        full = join(section, name)
        nested = nested_class(cls, name)
        # A section that is off has no settings to show.
        if nested and isinstance(written[name], Mapping):
            yield from settings_rows(nested, full)
        else:
            yield full, written[name], field.metadata["help"], describe(cls, name)


def require_used(settings: Section, typed: Collection[str], *, written: Callable[[str], str] | None = None) -> None:
    """Check that each setting of a section that the user typed has an effect beside the section's other settings.

    Args:
        typed: What the user typed, in the form that `written` gives.
        written: Returns how the user writes a setting, by its name (default: section.name).

    Raises:
        ValueError: One that is not the default has none: another optimizer's momentum, for example.
    """
    written = written or functools.partial(join, settings.section)
    for name, field in keys(type(settings)).items():
        key, value = written(name), getattr(settings, name)
        if key not in typed or value == field.default:
            continue
        reason = field.metadata["idle"](settings) if "idle" in field.metadata else ""
        for other, values in field.metadata.get("needs", {}).items():
            present = getattr(settings, other)
            if not _among(present, values):
                remedy = "" if values is SET else f" to {_alternatives(values)}"
                reason = f"with {written(other)}={shown(present)}: leave it out, or set {written(other)}{remedy}"
        if reason:
            # As it is written
            value = list(value) if isinstance(value, tuple) else value
            raise ValueError(f"{key}={shown(value)} has no effect {reason}")


def _among(value: Any, values: Any) -> bool:
    if values is SET:
        return bool(value)
    # First of all None, for which Python would search a range number by number: minutes, in a long one
    return not (value is None and isinstance(values, range)) and value in values


def _alternatives(values: Sequence[Any]) -> str:
    return f"{values[0]} or more" if isinstance(values, range) else " or ".join(map(shown, values))


def join(section: str, key: str) -> str:
    """Return the name of a setting: `section.key`, or `key` at the top level."""
    return f"{section}.{key}" if section else key


def unknown(key: str, name: str, known: Sequence[str], inside: Sequence[str] = ()) -> ValueError:
    """Return the error of a key that a section does not have, with the keys that are spelled alike, or all.

    Args:
        inside: Settings of that name in sections of this one.
    """
    hint = elsewhere(key) or suggestion(key, known)
    if inside:
        hint = f"; did you mean {' or '.join(join(name, each) for each in inside)}?"
    return ValueError(f"unknown setting {join(name, key)}{hint} (known: {', '.join(known)})")


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    # Annotations are strings (`from __future__`); cached, since resolving them is slow.
    return typing.get_type_hints(cls)
