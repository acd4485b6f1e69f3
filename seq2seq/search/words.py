"""Words in pieces: where a piece goes on with the word before it, so that a phrase is not found inside a word."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

# Thai to Myanmar, Khmer, kana and Han: scripts that set no words apart
_UNSPACED = re.compile(
    "[\u0e00-\u109f\u1780-\u17ff\u3000-\u30ff\u31f0-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]"
)


class Words(NamedTuple):
    """Tokens that may continue a word, or whose last word may be continued.

    Attributes:
        going_on: Those that begin with a letter or digit, and so go on with a word.
        unended: Those that end with one, so that their word may go on.
    """

    going_on: frozenset[int] = frozenset()
    unended: frozenset[int] = frozenset()

    @classmethod
    def of(cls, pieces: Sequence[str]) -> Words:
        """Return those of a vocabulary, whose pieces begin with ▁ where a word begins."""
        first, last = ([any(map(_in_word, piece[edge])) for piece in pieces] for edge in (slice(1), slice(-1, None)))
        return cls(*(frozenset(token for token, found in enumerate(side) if found) for side in (first, last)))

    def in_columns(self, ids: Sequence[int]) -> Words:
        """Replace tokens by the columns of the scores, given the token of each column."""
        return Words(*(frozenset(column for column, token in enumerate(ids) if token in own) for own in self))


def _in_word(character: str) -> bool:
    """Return True for letters, marks and digits of scripts that set words apart by spaces."""
    return unicodedata.category(character)[0] in "LMN" and not _UNSPACED.match(character)
