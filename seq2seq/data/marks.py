"""Characters in text for control pieces of the tokenizer; Unicode reserves them for programs, so no text has them."""

from __future__ import annotations

import re
from collections.abc import Mapping

# Between the sentences of a context.
SEPARATOR = "\ufdd0"
# Around the translation of the words before it, as in: das Haus <term> house </term> ist alt.
TERM, TERM_END = "\ufdd1", "\ufdd2"
PIECES = {SEPARATOR: "<sep>", TERM: "<term>", TERM_END: "</term>"}
_MARKS = re.compile(f"[{''.join(PIECES)}]")


def unmarked(text: str) -> str:
    """Replace the characters by spaces, in text that is not ours."""
    return _MARKS.sub(" ", text)


def with_translations(text: str, translations: Mapping[int, str]) -> str:
    """Write translations into a source, each behind the words that end at its position."""
    for end, translation in sorted(translations.items(), reverse=True):
        text = f"{text[:end]}{TERM}{unmarked(translation)}{TERM_END}{text[end:]}"
    return text
