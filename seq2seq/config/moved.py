"""Settings that have another name now."""

from __future__ import annotations

import re

# The old key as a pattern, and the new one.
MOVED = ((re.compile(r"(mixer\.(?:.+\.)?)kernel"), r"\1backend"),)


def new_key(key: str) -> str | None:
    """Return the key that a moved setting has now, or None if there never was a setting `key`."""
    for pattern, replacement in MOVED:
        if match := pattern.fullmatch(key):
            return match.expand(replacement)
    return None
