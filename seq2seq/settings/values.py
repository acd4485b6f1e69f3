"""Check, convert and show one value of the settings by the type and the range of its field."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import math
import re
import reprlib
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

# Largest whole number of a setting without a bound of its own: floats, as which YAML reads 1e3, are exact up to it.
MOST = 2**53


# Longest word: that of a path on Linux.
_LONGEST = 4096


class MismatchError(ValueError):
    """Error of a value that its field does not take."""


def check_value(value: Any, hint: Any, metadata: Mapping[str, Any], key: str) -> Any:
    """Return the value of a field as its class holds it: 1e3 as 1000, a list as a tuple, a duration in seconds.

    Args:
        hint: The field's type.
        metadata: What `settings.setting` says about it.
        key: The setting's name, which begins the message.

    Raises:
        ValueError: The value has another type, or is out of range; the message says what is allowed.
    """
    try:
        return _convert(value, hint, metadata)
    except MismatchError:
        remedy = f": write {key}={metadata['example']}" if "example" in metadata else ""
        if "choices" in metadata and type(value) is str:
            remedy = suggestion(value, metadata["choices"])
        # Said only of a number that is too large: no other would be near it.
        limit = {"most": MOST} if isinstance(value, int | float) and value > MOST else {}
        raise ValueError(f"{key}={shown(value)} is not {allowed(hint, limit | dict(metadata))}{remedy}") from None


def written(value: Any) -> str:
    """Return a value in full, as the command line has it: null, true, [3,7]; numbers that are equal alike, 2.0 as 2."""
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
    """Return a value as YAML has it, on one short line, whatever it holds."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    try:
        # reprlib goes neither deep nor far, so that a value from anywhere costs nothing.
        text = value if isinstance(value, str) else _SHORT.repr(value)
    except ValueError:
        # Python writes no whole number of more than 4,300 digits.
        text = f"<a {type(value).__name__} of thousands of digits>"
    text = " ".join(text.split()) if text.strip() else repr(text)
    return text if len(text) <= most else f"{text[: most - 3]}..."


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 100


def allowed(hint: Any, metadata: Mapping[str, Any]) -> str:
    """Describe the values that a field takes, for messages and for the documentation."""
    hints = _alternatives(hint, metadata)
    names = [_described(each, metadata) for each in hints if each not in (type(None), bool) or hints == [bool]]
    names += metadata.get("words", ())
    names += ["null"] if type(None) in hints else []
    # A rule that false turns off, too.
    names += ["false"] if bool in hints and hints != [bool] else []
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
        text = " ".join(["a whole number" if hint is int else "a number", *_range(metadata)])
        return f"{text} or .inf" if metadata.get("infinite") else text
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (tuple, Sequence):
        items = _described(arguments[0], metadata).partition(" ")[2]
        number = "" if ... in arguments or origin is Sequence else f"{len(arguments)} "
        return f"a list of {number}{items.replace('number', 'numbers').replace('word', 'words')}"
    if origin in (dict, Mapping):
        return "a mapping {key: value}"
    return "a word"


def _range(metadata: Mapping[str, Any]) -> list[str]:
    """Return the bounds in words: from 0 to 1, above 0 and below 1."""
    low = [f"{word} {metadata[key]:g}" for key, word in (("least", "from"), ("above", "above")) if key in metadata]
    high = [f"{word} {_figure(metadata[key])}" for key, word in (("most", "to"), ("below", "below")) if key in metadata]
    if low and high and not (low[0].startswith("from") and high[0].startswith("to")):
        return [f"{low[0]} and {high[0].replace('to ', 'at most ')}"]
    return [*low, *high]


def _figure(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:g}"


def takes(hint: Any) -> bool:
    """Return True for a type that `check_value` has a rule for."""
    hints = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    plain = (int, float, bool, str, type(None))
    return all(each in plain or typing.get_origin(each) in (tuple, dict, Mapping, Sequence) for each in hints)


def _alternatives(hint: Any, metadata: Mapping[str, Any]) -> list[Any]:
    hints = list(typing.get_args(hint)) if isinstance(hint, types.UnionType) else [hint]
    # In max_tokens: int | str the str stands for the words that replace a number.
    return [each for each in hints if each is not str or "words" not in metadata]


def _convert(value: Any, hint: Any, limits: Mapping[str, Any]) -> Any:
    """Convert a value to the first of the types of `hint` that takes it."""
    hints = _alternatives(hint, limits)
    # `null=` in a field's declaration: what null stands for.
    if value is None and (type(None) in hints or "null" in limits):
        return limits.get("null")
    # Beside a number, a bool is a rule that null, false and infinity turn off.
    rule = bool in hints and len(hints) > 1
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
    if hint is Any or (isinstance(hint, type) and dataclasses.is_dataclass(hint)):
        # A section is read by the caller.
        return value
    if limits.get("duration"):
        _require(isinstance(value, str | int | float) and not isinstance(value, bool))
        return seconds(value)
    if hint is bool:
        _require(isinstance(value, bool | int) and value in (True, False))
        return bool(value)
    if hint in (int, float):
        return _number(value, hint, limits)
    if hint is str:
        return _word(value, limits)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        return _items(value, arguments, limits)
    if origin is Sequence:
        return list(_items(value, (*arguments, ...), limits))
    assert origin in (dict, Mapping), f"no rule for a setting of the type {hint}"
    _require(value is None or isinstance(value, Mapping))
    keys, values = arguments
    return {_convert(key, keys, {}): _convert(each, values, limits) for key, each in (value or {}).items()}


def _require(condition: object) -> None:
    if not condition:
        raise MismatchError


def is_number(value: Any) -> bool:
    """Return True if `value` is a finite number that a float holds, which true and false do not count as."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _number(value: Any, hint: type, limits: Mapping[str, Any]) -> int | float:
    # Hydra hands over what YAML calls .inf as a word.
    if limits.get("infinite") and value in (math.inf, ".inf"):
        return math.inf
    _require(is_number(value))
    # YAML reads 1e3 as a float.
    _require(hint is float or (value == int(value) and abs(value) <= limits.get("most", MOST)))
    _require(limits.get("least", -math.inf) <= value <= limits.get("most", math.inf))
    _require(limits.get("above", -math.inf) < value < limits.get("below", math.inf))
    return hint(value)


def _word(value: Any, limits: Mapping[str, Any]) -> str:
    # A name may look like a number, as in run=2024; a fraction would not be written as it was typed (1.10 as 1.1).
    _require(isinstance(value, str) or (type(value) is int and abs(value) <= MOST))
    text = str(value)
    # Nothing that cannot be seen, and no NUL, at which paths end.
    _require(text.strip() and text.isprintable() and len(text) <= _LONGEST)
    # Any word may be a path, and no file system takes longer names.
    _require(all(len(part.encode()) <= 255 for part in text.split("/")))
    _require(text in limits.get("choices", (text,)))
    return text


def _items(value: Any, hints: Sequence[Any], limits: Mapping[str, Any]) -> tuple[Any, ...]:
    # One value stands for a tuple of one, as in languages=de.
    values = tuple(value) if isinstance(value, list | tuple) else (value,)
    # tuple[str, ...] has any length, tuple[float, float] two.
    hints = [hints[0]] * len(values) if ... in hints else hints
    _require(len(values) == len(hints))
    return tuple(_convert(each, hint, limits) for each, hint in zip(values, hints, strict=True))


def near(word: str, known: Sequence[str]) -> list[str]:
    """List at most three names of `known` that are spelled like `word`, the nearest first."""
    # A longer word is not a slip, and the comparison would take long.
    return difflib.get_close_matches(word, known, cutoff=0.5) if len(word) < 200 else []


def suggestion(word: str, known: Sequence[str]) -> str:
    """Return "; did you mean ...?" with the names like `word`; "" if there are none."""
    found = near(word, known)
    return f"; did you mean {' or '.join(found)}?" if found else ""


def require_known(name: str, known: Sequence[str], what: str) -> str:
    """Return `name`.

    Raises:
        ValueError: it is not among `known`; names those that are spelled alike.
    """
    if name in known:
        return name
    hint = suggestion(name, known) or f"; there are {', '.join(known)}"
    raise ValueError(f"unknown {what} '{name}'{hint}")


# The forms of a duration, for messages.
DURATION = "90s, 10m, 1h30m or DD:HH:MM:SS"
# Longest duration in seconds, a century: what is meant to have no end is null.
_LONGEST = 100 * 365.25 * 86400
# Seconds in each unit.
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds(duration: str | int | float) -> float:
    """Convert `90`, `90s`, `10m`, `1h30m`, `2d`, `MM:SS`, `HH:MM:SS` or `DD:HH:MM:SS` to seconds.

    Raises:
        ValueError: anything else.
    """
    # Not as text: Python writes 0.00001 as 1e-05.
    total = float(duration) if isinstance(duration, float) else 0.0
    # A longer text is not a duration, and Python converts no more than 4,300 digits.
    text = "" if isinstance(duration, int) and duration > _LONGEST else str(duration).strip().lower()[:100]
    # A bare number is in seconds.
    if re.fullmatch(r"\d+(\.\d+)?", text):
        total = float(text)
    elif re.fullmatch(r"(\d+(\.\d+)?[smhd])+", text):
        total = sum(float(n) * _UNITS[unit] for n, _, unit in re.findall(r"(\d+(\.\d+)?)([smhd])", text))
    elif re.fullmatch(r"\d+(:\d+){1,3}", text):
        # From the right: seconds, minutes, hours, days.
        for weight, part in zip((1, 60, 3600, 86400), reversed(text.split(":")), strict=False):
            total += weight * int(part)
    # Zero is refused as well, as in 0s or 00:00; and NaN, which compares as false.
    if not 0 < total <= _LONGEST:
        raise MismatchError(f"{text} is not a duration ({DURATION})")
    return total


def compact(seconds: float) -> str | float:
    """Write seconds as `1h30m`, which `seconds` reads back; a tiny fraction stays a number."""
    if seconds != int(seconds):
        return seconds if "e" in repr(seconds) else f"{seconds!r}s"
    text, rest = "", int(seconds)
    for unit in ("d", "h", "m", "s"):
        count, rest = divmod(rest, int(_UNITS[unit]))
        text += f"{count}{unit}" if count else ""
    return text


def clock(seconds: float) -> str:
    """Format seconds as h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
