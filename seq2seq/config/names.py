"""Names that are spelled alike, for messages about a name that is not known."""

from __future__ import annotations

import difflib
from collections.abc import Sequence


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
