"""Declare settings: fields with their help and range, sections that check themselves, and their plain form."""

from __future__ import annotations

import copy
import dataclasses
import functools
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, ClassVar, TypeVar

from seq2seq.settings.aliases import elsewhere
from seq2seq.settings.values import allowed, check_value, compact, seconds, shown, suggestion

SectionType = TypeVar("SectionType", bound="Section")
# Stands in `needs` for any value except null, false, 0 and an empty mapping.
SET = object()


class Section:
    """Base of the settings classes, which checks every value by the type and the range that its field declares.

    Attributes:
        section: The name that begins the keys in messages.

    Raises:
        ValueError: A value has the wrong type, is out of range or contradicts another one.
    """

    section: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for name, field in keys(type(self)).items():
            value = check_value(getattr(self, name), _hints(type(self))[name], field.metadata, join(self.section, name))
            # Dataclasses set the fields of a frozen instance in this way.
            object.__setattr__(self, name, value)


def setting(default: Any = dataclasses.MISSING, help: str = "", **limits: Any) -> Any:
    """Declare a field of a settings class; its type and `limits` decide its check, message and documentation.

    Args:
        default: A mapping is copied for every instance.
        help: One line for comments and for docs/settings.md.
        limits: `least`, `above`, `most` and `below` bound a number, or each value of a sequence. `choices` lists the
            words that are allowed, and `words` lists words that may replace a number. `duration` marks seconds, which
            are written as `90`, `10m` or `00:01:30:00`. `option_least` replaces `least` for the option of a command.
            `example` is a value for messages. `needs` maps the name of another field of the class to the values (or
            SET) that this field must have for the setting to have an effect. `idle` is a function of the settings; it
            returns the reason why the setting has no effect, or "". `require_used` checks `needs` and `idle`.
    """
    metadata = {"help": help, **limits}
    if limits.get("duration") and default is not None:
        default = seconds(default)
    # dataclasses refuse a mutable default.
    if isinstance(default, dict):
        return dataclasses.field(default_factory=lambda: dict(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def internal(default: Any) -> Any:
    """Declare a field that the program sets; it is not a key of the configuration."""
    return dataclasses.field(default=default, metadata={"internal": True})


def keys(cls: type) -> dict[str, dataclasses.Field[Any]]:
    """List the fields of `cls` that are keys of the configuration, by name."""
    return {field.name: field for field in dataclasses.fields(cls) if not field.metadata.get("internal")}


def defaults(cls: type) -> dict[str, Any]:
    """List the defaults of `cls` as a plain section; `???`, Hydra's mark, stands for a required value."""
    found: dict[str, Any] = {}
    for name, field in keys(cls).items():
        made = field.default_factory is not dataclasses.MISSING
        default = field.default_factory() if made else field.default  # type: ignore[misc]
        found[name] = "???" if default is dataclasses.MISSING else _plain(default, field)
    return found


def plain(settings: Any) -> dict[str, Any]:
    """Return a section as YAML has it; `read_section` reads it back."""
    return {name: _plain(getattr(settings, name), field) for name, field in keys(type(settings)).items()}


def _plain(value: Any, field: dataclasses.Field[Any]) -> Any:
    if dataclasses.is_dataclass(value):
        return plain(value)
    if field.metadata.get("duration") and value is not None:
        return compact(value)
    # YAML and OmegaConf have lists, but no tuples.
    return list(value) if isinstance(value, tuple) else copy.deepcopy(value)


def describe(cls: type, name: str) -> str:
    """Describe the values that a setting takes: "a whole number from 1 or null"."""
    return allowed(_hints(cls)[name], keys(cls)[name].metadata)


def read_section(cls: type[SectionType], section: Mapping[str, Any], name: str) -> SectionType:
    """Build the settings of `cls` from a plain, resolved section; missing keys have their defaults.

    Args:
        name: The section's name, which begins the keys in messages.

    Raises:
        ValueError: A key is unknown, or a value has the wrong type or range; the message names key and value.
    """
    known = keys(cls)
    if not isinstance(section, Mapping):
        raise ValueError(f"{name}={shown(section)} is not a section; it has the settings {', '.join(known)}")
    values = {}
    for key, value in section.items():
        if key not in known:
            raise _unknown(shown(key), name, cls)
        nested = nested_class(cls, key)
        if nested and isinstance(value, Mapping):
            values[key] = read_section(nested, value, join(name, key))
        # `???` is Hydra's mark of a setting that must be set.
        elif value != "???":
            values[key] = value
    for key, field in known.items():
        if key not in values and field.default is field.default_factory is dataclasses.MISSING:
            example = f", as in {join(name, key)}={field.metadata['example']}" if "example" in field.metadata else ""
            raise ValueError(f"{join(name, key)} is missing: set it ({field.metadata['help']}){example}")
    return cls(**values)


def nested_class(cls: type, name: str) -> type[Section] | None:
    """Return the settings class of a field that is a section, or may be one; None for any other field."""
    hint = _hints(cls)[name]
    hints = (hint, *typing.get_args(hint))
    return next((each for each in hints if isinstance(each, type) and issubclass(each, Section)), None)


def settings_rows(cls: type, section: str) -> Iterator[tuple[str, Any, str, str]]:
    """Yield name, default, help and allowed values of every setting of a section; "" is the top level."""
    written: Mapping[str, Any] = defaults(cls)
    for name, field in keys(cls).items():
        full = join(section, name)
        nested = nested_class(cls, name)
        # A section that is null has no settings to list.
        if nested and isinstance(written[name], Mapping):
            yield from settings_rows(nested, full)
        else:
            yield full, written[name], field.metadata["help"], describe(cls, name)


def require_used(settings: Section, typed: Collection[str], *, written: Callable[[str], str] | None = None) -> None:
    """Check that each setting that the user typed has an effect with the section's other settings.

    Args:
        typed: The settings that the user typed, in the form that `written` gives.
        written: Converts the name of a setting to the form in which the user writes it (default: section.name).

    Raises:
        ValueError: A typed setting is not at its default and has no effect, such as another optimizer's momentum.
    """
    written = written or functools.partial(join, settings.section)
    for name, field in keys(type(settings)).items():
        key, value = written(name), getattr(settings, name)
        if key not in typed or value == field.default:
            continue
        reason = field.metadata["idle"](settings) if "idle" in field.metadata else ""
        for other, values in field.metadata.get("needs", {}).items():
            present = getattr(settings, other)
            if not (present if values is SET else present in values):
                remedy = "" if values is SET else f" to {' or '.join(map(shown, values))}"
                if isinstance(values, range):
                    remedy = f" to {values[0]} or more"
                reason = f"with {written(other)}={shown(present)}: leave it out, or set {written(other)}{remedy}"
        if reason:
            # YAML has lists, but no tuples.
            value = list(value) if isinstance(value, tuple) else value
            raise ValueError(f"{key}={shown(value)} has no effect {reason}")


def join(section: str, key: str) -> str:
    """Return the name of a setting: `section.key`, or `key` at the top level."""
    return f"{section}.{key}" if section else key


def _unknown(key: str, name: str, cls: type) -> ValueError:
    """Return the error of a key that the section `name` does not have, with settings that the user may mean."""
    known = list(keys(cls))
    inside = [join(name, join(each, key)) for each in known if (part := nested_class(cls, each)) and key in keys(part)]
    hint = f"; did you mean {' or '.join(inside)}?" if inside else elsewhere(key) or suggestion(key, known)
    return ValueError(f"unknown setting {join(name, key)}{hint} (known: {', '.join(known)})")


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    # Annotations are strings (`from __future__`); cached, since resolving them is slow.
    return typing.get_type_hints(cls)
