"""Check and convert one value of the settings by the type and the range of its field."""

from __future__ import annotations

import dataclasses
import math
import reprlib
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from seq2seq.config.durations import DURATION, seconds
from seq2seq.config.names import suggestion

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
        hint_of_names = suggestion(value, metadata["choices"]) if "choices" in metadata and type(value) is str else ""
        if "example" in metadata:
            hint_of_names = f": write {key}={metadata['example']}"
        # Said only of a number that is too large: no other would be near it.
        limit = {"most": MOST} if isinstance(value, int | float) and value > MOST else {}
        raise ValueError(
            f"{key}={shown(value)} is not {allowed(hint, limit | dict(metadata))}{hint_of_names}"
        ) from None


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


def _convert(value: Any, hint: Any, metadata: Mapping[str, Any]) -> Any:
    """Convert a value to the first of the types of `hint` that takes it."""
    hints = _alternatives(hint, metadata)
    if value is None and type(None) in hints:
        return None
    # `null=` in a field's declaration: what null stands for.
    if value is None and "null" in metadata:
        return metadata["null"]
    # Beside a number, a bool is a rule that null, false and infinity turn off.
    if bool in hints and len(hints) > 1 and (value is False or value == math.inf):
        return None
    if type(value) is str and value in metadata.get("words", ()):
        return value
    # A value that has one of the types already keeps it: in str | int, 2 is not a word.
    for each in sorted(hints, key=lambda each: each is not type(value)):
        if each is type(None) or (each is bool and len(hints) > 1):
            continue
        try:
            return _one(value, each, metadata)
        except MismatchError:
            continue
    raise MismatchError


def _one(value: Any, hint: Any, metadata: Mapping[str, Any]) -> Any:
    if metadata.get("duration"):
        return _duration(value)
    if hint is Any or (isinstance(hint, type) and dataclasses.is_dataclass(hint)):
        # A section is read by the caller.
        return value
    if hint is bool:
        return flag(value)
    if hint in (int, float):
        return _number(value, hint, metadata)
    if hint is str:
        return _word(value, metadata)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        return _items(value, arguments, metadata)
    if origin is Sequence:
        return list(_items(value, (*arguments, ...), metadata))
    if origin in (dict, Mapping):
        return _mapping(value, arguments, metadata)
    raise AssertionError(f"no rule for a setting of the type {hint}")


def _duration(value: Any) -> float:
    # A bool is a number to Python.
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise MismatchError
    try:
        return seconds(value)
    except ValueError:
        raise MismatchError from None


def flag(value: Any) -> bool:
    """Return true, false, 1 or 0 as a bool; MismatchError for any other value."""
    if not isinstance(value, bool | int) or value not in (True, False):
        raise MismatchError
    return bool(value)


def is_number(value: Any) -> bool:
    """Return True if `value` is a finite number that a float holds, which true and false do not count as."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _number(value: Any, hint: type, metadata: Mapping[str, Any]) -> int | float:
    # Hydra hands over what YAML calls .inf as a word.
    if metadata.get("infinite") and value in (math.inf, ".inf"):
        return math.inf
    if not is_number(value):
        raise MismatchError
    # YAML reads 1e3 as a float.
    if hint is int:
        if value != int(value) or abs(value) > metadata.get("most", MOST):
            raise MismatchError
        value = int(value)
    within = (
        value >= metadata.get("least", -math.inf)
        and value > metadata.get("above", -math.inf)
        and value <= metadata.get("most", math.inf)
        and value < metadata.get("below", math.inf)
    )
    if not within:
        raise MismatchError
    return float(value) if hint is float else value


def _word(value: Any, metadata: Mapping[str, Any]) -> str:
    # A name may look like a number, as in run=2024; a fraction would not be written as it was typed (1.10 as 1.1).
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise MismatchError
    if isinstance(value, int) and abs(value) > MOST:
        raise MismatchError
    text = str(value)
    # Nothing that cannot be seen, and no NUL, at which paths end.
    if not text.strip() or not text.isprintable() or len(text) > _LONGEST:
        raise MismatchError
    # Any word may be a path, and no file system takes longer names.
    if any(len(part.encode()) > 255 for part in text.split("/")):
        raise MismatchError
    if text not in metadata.get("choices", (text,)):
        raise MismatchError
    return text


def _items(value: Any, hints: Sequence[Any], metadata: Mapping[str, Any]) -> tuple[Any, ...]:
    # One value stands for a tuple of one, as in languages=de.
    values = tuple(value) if isinstance(value, list | tuple) else (value,)
    # tuple[str, ...] has any length, tuple[float, float] two.
    if ... in hints:
        hints = [hints[0]] * len(values)
    if len(values) != len(hints):
        raise MismatchError
    return tuple(_convert(each, hint, metadata) for each, hint in zip(values, hints, strict=True))


def _mapping(value: Any, hints: Sequence[Any], metadata: Mapping[str, Any]) -> dict[Any, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise MismatchError
    keys, values = hints
    return {_convert(key, keys, {}): _convert(each, values, metadata) for key, each in value.items()}
