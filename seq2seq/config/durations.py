"""Durations as text: read as the configuration has them, and written as h:mm:ss."""

from __future__ import annotations

import re

# The forms of a duration, for messages.
DURATION = "90s, 10m, 1h30m or DD:HH:MM:SS"
# Longest duration in seconds, a century: what is meant to have no end is null.
_LONGEST = 100 * 365.25 * 86400
# Seconds in each unit.
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds(duration: str | int | float, key: str = "duration") -> float:
    """Convert `90`, `90s`, `10m`, `1h30m`, `2d`, `MM:SS`, `HH:MM:SS` or `DD:HH:MM:SS` to seconds.

    Raises:
        ValueError: anything else; the message names `key`.
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
        raise ValueError(f"{key}={text} is not a duration ({DURATION})")
    return total


def compact(seconds: float) -> str | float:
    """Write whole seconds as `1h30m`, which `seconds` reads back; a fraction stays a number."""
    if seconds != int(seconds):
        return seconds
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
