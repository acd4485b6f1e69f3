"""Dataclasses of settings: declare a field with its help and range, read a section, list the defaults."""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from seq2seq.config.durations import seconds
from seq2seq.config.elsewhere import elsewhere
from seq2seq.config.lightning import explain_argument
from seq2seq.config.names import suggestion
from seq2seq.config.values import allowed, check_value, shown

Settings = TypeVar("Settings")


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
            each of its values. `option_least` is the `least` of a command's option and of a request's field. `needs`
            names other fields of the class, each with the values beside which this one has an effect; see
            `require_used`.
    """
    metadata = {"help": help, **limits}
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


def describe(cls: type, name: str) -> str:
    """Describe the values that a setting takes: "a whole number from 1 or null"."""
    return allowed(_hints(cls)[name], keys(cls)[name].metadata)


def read_section(
    cls: type[Settings], section: Mapping[str, Any], name: str, *, extra: Sequence[str] = (), complete: bool = False
) -> Settings:
    """Build the settings of `cls` from a plain, resolved section.

    Args:
        name: the section's name, which begins the keys in messages.
        extra: keys that are read elsewhere.
        complete: refuse a section without all of its keys, as Hydra composes it unless a word deletes one.

    Raises:
        ValueError: an unknown key, or a value of the wrong type or range; the message names key and value.
    """
    if not isinstance(section, Mapping):
        raise ValueError(f"{name}={shown(section)} is not a section; it has the settings {', '.join(keys(cls))}")
    known = keys(cls)
    values = {}
    for key, value in section.items():
        # `???` is Hydra's mark of a setting that must be set.
        if key in known and value != "???":
            values[key] = _read(cls, value, known[key], join(name, key), complete=complete)
        elif key not in known and key not in extra:
            raise unknown(shown(key), name, [*known, *extra])
    for key, field in known.items():
        if complete and key not in section:
            raise ValueError(
                f"{join(name, key)} is deleted; only entries of data.corpora, mixer, logger and callbacks can be"
            )
        # `???` was passed over above, so it counts as missing.
        if key not in values and field.default is field.default_factory is dataclasses.MISSING:
            raise ValueError(f"{join(name, key)} is missing; {name} takes {', '.join(known)}")
    return cls(**values)


def _read(cls: type, value: Any, field: dataclasses.Field[Any], key: str, *, complete: bool) -> Any:
    """Read one value; a section in a section has keys of its own."""
    nested = nested_class(cls, field.name)
    if nested is None or isinstance(value, nested):
        return check_value(value, _hints(cls)[field.name], field.metadata, key)
    if value is None:
        return field.default if _hints(cls)[field.name] is nested else None
    return read_section(nested, value, key, complete=complete and isinstance(field.default, nested))


def nested_class(cls: type, name: str) -> type | None:
    """Return the settings class that a field holds, null beside it or not; None if it holds a value."""
    hint = _hints(cls)[name]
    found = [
        each for each in (hint, *typing.get_args(hint)) if isinstance(each, type) and dataclasses.is_dataclass(each)
    ]
    return found[0] if found else None


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
        key = written(name)
        if key not in typed or getattr(settings, name) == field.default:
            continue
        for other, values in field.metadata.get("needs", {}).items():
            present = getattr(settings, other)
            # First of all None, for which Python would search a range number by number: minutes, in a long one
            if (present is None and isinstance(values, range)) or present not in values:
                these = f"{values[0]} or more" if isinstance(values, range) else " or ".join(map(shown, values))
                value = getattr(settings, name)
                # As it is written
                value = list(value) if isinstance(value, tuple) else value
                raise ValueError(
                    f"{key}={shown(value)} has no effect with {written(other)}={shown(present)}: leave it out, or set "
                    f"{written(other)} to {these}"
                )


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


def join(section: str, key: str) -> str:
    """Return the name of a setting: `section.key`, or `key` at the top level."""
    return f"{section}.{key}" if section else key


def unknown(key: str, name: str, known: Sequence[str]) -> ValueError:
    """Return the error of a key that a section does not have, with the keys that are spelled alike, or all."""
    full = join(name, key)
    if explained := explain_argument(full):
        return ValueError(explained)
    return ValueError(f"unknown setting {full}{elsewhere(key) or suggestion(key, known)} (known: {', '.join(known)})")


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    # Annotations are strings (`from __future__`); cached, since resolving them is slow.
    return typing.get_type_hints(cls)
