"""Check, convert and format the value of a setting by the type and the range of its field."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import math
import re
import reprlib
import sys
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

# Largest whole number of a setting without a bound of its own: YAML reads 1e3 as a float, which is exact up to here.
MOST = 2**53


class MismatchError(ValueError):
    """Error of a value that its field does not take."""


def check_value(value: Any, hint: Any, metadata: Mapping[str, Any], key: str) -> Any:
    """Return the value of a field as its class holds it: 1e3 as 1000, a list as a tuple, a duration in seconds.

    Args:
        hint: The field's type. A value of a type without a rule here is returned unchanged.
        metadata: The limits of `seq2seq.settings.declare.setting`.
        key: The setting's name, which begins the message.

    Raises:
        ValueError: The value has another type, or is out of range; the message says what is allowed.
    """
    try:
        return _convert(value, hint, metadata)
    except MismatchError:
        near_choices = suggestion(shown(value), metadata.get("choices", ()))
        raise ValueError(f"{key}={shown(value)} is not {allowed(hint, metadata)}{near_choices}") from None


def written(value: Any) -> str:
    """Return a value in full, as on the command line: null, true, [3,7]; equal numbers are written alike."""
    if value is None or isinstance(value, bool):
        return shown(value)
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else repr(value)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{written(each)}" for key, each in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ",".join(map(written, value)) + "]"
    return str(value)


def shown(value: Any, *, most: int = 100) -> str:
    """Return a value as YAML has it, cut to one line of `most` characters."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    try:
        text = value if isinstance(value, str) else _SHORT.repr(value)
    except ValueError:
        # Python writes no whole number of more than 4,300 digits.
        text = f"<a {type(value).__name__} of thousands of digits>"
    text = " ".join(text.split()) if text.strip() else repr(text)
    return text if len(text) <= most else f"{text[: most - 3]}..."


# Shows the beginning of a value of any size and depth.
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 100


def allowed(hint: Any, metadata: Mapping[str, Any]) -> str:
    """Describe the values that a field takes, for messages and for the documentation."""
    hints = _alternatives(hint, metadata)
    kinds = [each for each in hints if each is not type(None) and (each is not bool or hints[0] is bool)]
    names = [_described(each, metadata) for each in kinds]
    names += metadata.get("words", ())
    names += ["null"] if type(None) in hints[1:] else []
    # After a number, `bool` marks a rule that false turns off as well.
    names += ["false"] if bool in hints[1:] else []
    return " or ".join(names)


def _described(hint: Any, metadata: Mapping[str, Any]) -> str:
    if metadata.get("duration"):
        return f"a duration ({DURATION})"
    if choices := metadata.get("choices"):
        return f"one of {', '.join(choices)}"
    if dataclasses.is_dataclass(hint):
        return f"a section of {', '.join(field.name for field in dataclasses.fields(hint))}"
    if hint is Any:
        return "anything"
    if hint is bool:
        return "true or false"
    if hint in (int, float):
        return " ".join(["a whole number" if hint is int else "a number", *_range(metadata)])
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (tuple, Sequence):
        items = _described(arguments[0], metadata).partition(" ")[2]
        number = "" if ... in arguments or origin is Sequence else f"{len(arguments)} "
        return f"a list of {number}{items.replace('number', 'numbers').replace('word', 'words')}"
    return "a mapping {key: value}" if origin is Mapping else "a word"


def _range(metadata: Mapping[str, Any]) -> list[str]:
    """Return the bounds in words: from 0 to 1, above 0 and below 1."""
    closed = "above" not in metadata and "below" not in metadata
    most = "to" if closed and "least" in metadata else "at most"
    words = {"least": "from", "above": "above", "most": most, "below": "below"}
    bounds = [f"{word} {metadata[key]:,}" for key, word in words.items() if key in metadata]
    return [(" " if closed else " and ").join(bounds)] if bounds else []


def _alternatives(hint: Any, metadata: Mapping[str, Any]) -> list[Any]:
    hints = list(typing.get_args(hint)) if isinstance(hint, types.UnionType) else [hint]
    # In max_tokens: int | str the str stands for the words that replace a number.
    return [each for each in hints if each is not str or "words" not in metadata]


def _convert(value: Any, hint: Any, limits: Mapping[str, Any]) -> Any:
    """Convert a value to the first of the types of `hint` that takes it."""
    hints = _alternatives(hint, limits)
    if value is None and type(None) in hints:
        return False if hints[0] is bool else None
    # After a number, `bool` marks a rule, which null, false and infinity turn off.
    rule = bool in hints[1:]
    if rule and (value is False or value == math.inf):
        return None
    if type(value) is str and value in limits.get("words", ()):
        return value
    kinds = [each for each in hints if each is not type(None) and not (rule and each is bool)]
    # A value that has one of the types already keeps it: in str | int, 2 is not a word.
    for each in sorted(kinds, key=lambda each: each is not type(value)):
        with contextlib.suppress(MismatchError):
            return _one(value, each, limits)
    raise MismatchError


def _one(value: Any, hint: Any, limits: Mapping[str, Any]) -> Any:
    if dataclasses.is_dataclass(hint):
        # `read_section` has converted a section already.
        _require(isinstance(value, hint))  # type: ignore[arg-type]
    if limits.get("duration"):
        _require(isinstance(value, str | int | float) and not isinstance(value, bool))
        return seconds(value)
    if hint is bool:
        _require(isinstance(value, bool | int) and value in (True, False))
        return bool(value)
    if hint in (int, float):
        return _number(value, hint, limits)
    if hint is str:
        # A name may look like a whole number, as in run=2024. A fraction would not stay as typed: 1.10 becomes 1.1.
        _require(isinstance(value, str) or type(value) is int)
        text = str(value)
        # Refuse invisible characters, such as NUL, at which paths end.
        _require(text.strip() and text.isprintable() and text in limits.get("choices", (text,)))
        # Any word may be a path, and file systems take no longer names.
        _require(len(text) <= 4096 and all(len(part.encode()) <= 255 for part in text.split("/")))
        return text
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        return _items(value, arguments, limits)
    if origin is Sequence:
        return list(_items(value, (*arguments, ...), limits))
    if origin is Mapping:
        _require(value is None or isinstance(value, Mapping))
        keys, values = arguments
        return {_convert(key, keys, {}): _convert(each, values, limits) for key, each in (value or {}).items()}
    # A section, or an argument that its class checks.
    return value


def _require(condition: object) -> None:
    if not condition:
        raise MismatchError


def is_number(value: Any) -> bool:
    """Return True if `value` is a finite number in the range of a float; true and false are not numbers."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _number(value: Any, hint: type, limits: Mapping[str, Any]) -> int | float:
    _require(is_number(value))
    # YAML reads 1e3 as a float.
    _require(hint is float or (value == int(value) and abs(value) <= limits.get("most", MOST)))
    _require(limits.get("least", -math.inf) <= value <= limits.get("most", math.inf))
    _require(limits.get("above", -math.inf) < value < limits.get("below", math.inf))
    return hint(value)


def _items(value: Any, hints: Sequence[Any], limits: Mapping[str, Any]) -> tuple[Any, ...]:
    # One value stands for a tuple of one, as in languages=de.
    values = tuple(value) if isinstance(value, list | tuple) else (value,)
    # tuple[str, ...] has any length, tuple[float, float] two.
    hints = [hints[0]] * len(values) if ... in hints else hints
    _require(len(values) == len(hints))
    return tuple(_convert(each, hint, limits) for each, hint in zip(values, hints, strict=True))


def require_list(value: Any, name: str, of: type = str) -> list[Any]:
    """Return the entries of a list, an array or a column.

    Raises:
        ValueError: The value is something else, such as a text, a set, a mapping, an iterator or a whole table, or an
            entry has another type than `of`.
    """
    table = hasattr(value, "columns")
    if isinstance(value, str | bytes | Mapping) or table or not hasattr(value, "__getitem__"):
        remedy = "give a list, an array or one column of a table"
        raise ValueError(f"{name} is the {type(value).__name__} '{shown(str(value))}'; {remedy}")
    entries = list(value)
    for number, each in enumerate(entries):
        if not isinstance(each, of):
            raise ValueError(f"{name}[{number}] is {shown(repr(each))}; give a {of.__name__}")
    return entries


def near(word: str, known: Sequence[str]) -> list[str]:
    """List at most three names of `known` that are spelled like `word`, the nearest first."""
    # Comparing a long word would take long.
    return difflib.get_close_matches(word, known, cutoff=0.5) if len(word) < 200 else []


def suggestion(word: str, known: Sequence[str]) -> str:
    """Return "; did you mean ...?" with the names like `word`; "" if there are none."""
    found = near(word, known)
    return f"; did you mean {' or '.join(found)}?" if found else ""


def require_known(name: str, known: Sequence[str], what: str) -> str:
    """Return `name` if it is known.

    Raises:
        ValueError: The name is not among `known`; the message has the names that are spelled alike.
    """
    if name in known:
        return name
    hint = suggestion(name, known) or f"; there are {', '.join(known)}"
    raise ValueError(f"unknown {what} '{name}'{hint}")


# The forms of a duration, for messages.
DURATION = "90s, 10m, 1h30m or DD:HH:MM:SS"
# Longest duration in seconds, a century.
_LONGEST = 100 * 365.25 * 86400
# Seconds in each unit.
_UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}


def seconds(duration: str | int | float) -> float:
    """Convert `90`, `90s`, `10m`, `1h30m`, `2d`, `MM:SS`, `HH:MM:SS` or `DD:HH:MM:SS` to seconds.

    Raises:
        ValueError: The duration has another form, is not above 0, or exceeds a century.
    """
    text = str(duration).strip().lower()
    # A number is not parsed as text, since Python writes 0.00001 as 1e-05.
    total = 0 if isinstance(duration, str) else duration
    if re.fullmatch(r"(\d+(\.\d+)?[smhd])+", text):
        total = sum(float(n) * _UNITS[unit] for n, _, unit in re.findall(r"(\d+(\.\d+)?)([smhd])", text))
    elif re.fullmatch(r"\d+(:\d+){1,3}", text):
        # From the right: seconds, minutes, hours, days.
        weights = reversed(_UNITS.values())
        total = sum(weight * int(part) for weight, part in zip(weights, reversed(text.split(":")), strict=False))
    elif re.fullmatch(r"\d+(\.\d+)?", text):
        total = float(text)
    # This refuses NaN as well, since every comparison with it is false.
    if not 0 < total <= _LONGEST:
        raise MismatchError(f"{text} is not a duration ({DURATION})")
    return float(total)


def compact(seconds: float) -> str | float:
    """Write seconds as `1h30m`, which `seconds` reads back; a tiny fraction stays a number."""
    if seconds != int(seconds):
        return seconds if "e" in repr(seconds) else f"{seconds!r}s"
    text, rest = "", int(seconds)
    for unit, length in _UNITS.items():
        count, rest = divmod(rest, length)
        text += f"{count}{unit}" if count else ""
    return text


def clock(seconds: float) -> str:
    """Format seconds as h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
