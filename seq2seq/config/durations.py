"""Durations as they are written in the configuration."""

from __future__ import annotations

import re

# Seconds in each unit.
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds(duration: str | int | float, key: str = "duration") -> float:
    """Convert `90`, `90s`, `10m`, `1h30m`, `2d`, `MM:SS`, `HH:MM:SS` or `DD:HH:MM:SS` to seconds.

    Raises:
        ValueError: anything else; the message names `key`.
    """
    text = str(duration).strip().lower()
    total = 0.0
    # A bare number is in seconds.
    if re.fullmatch(r"\d+(\.\d+)?", text):
        total = float(text)
    elif re.fullmatch(r"(\d+(\.\d+)?[smhd])+", text):
        total = sum(float(n) * _UNITS[unit] for n, _, unit in re.findall(r"(\d+(\.\d+)?)([smhd])", text))
    elif re.fullmatch(r"\d+(:\d+){1,3}", text):
        # From the right: seconds, minutes, hours, days.
        for weight, part in zip((1, 60, 3600, 86400), reversed(text.split(":")), strict=False):
            total += weight * int(part)
    # Zero is refused as well, as in 0s or 00:00.
    if total <= 0:
        raise ValueError(f"{key}={duration} is no duration; write 90s, 10m, 1h30m or DD:HH:MM:SS")
    return total
