"""Properties of characters that decide how text is read: blank lines, and scripts without spaces."""

from __future__ import annotations

import unicodedata


def is_blank(text: str) -> bool:
    """Return True for text that shows nothing: white space, format characters (Cf) such as U+200B, and controls."""
    # Most lines have a letter at their beginning: one character decides
    return all(character.isspace() or unicodedata.category(character) in ("Cf", "Cc") for character in text)
