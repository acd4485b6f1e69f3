"""The pieces that continue a word, so that a phrase is not found inside a longer word."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

from seq2seq.system.characters import UNSPACED

_UNSPACED = re.compile(f"[{UNSPACED}\uff66-\uff9f]")  # with narrow kana


class Words(NamedTuple):
    """Tokens that may continue a word, or whose last word may be continued.

    Attributes:
        going_on: Tokens that begin with a letter or digit, and so continue a word.
        unended: Tokens that end with a letter or digit, so that their word may be continued.
    """

    going_on: frozenset[int] = frozenset()
    unended: frozenset[int] = frozenset()

    @classmethod
    def of(cls, pieces: Sequence[str]) -> Words:
        """Classify the pieces of a vocabulary; ▁ marks the beginning of a word."""
        going_on = frozenset(token for token, piece in enumerate(pieces) if piece and in_word(piece[0]))
        unended = frozenset(token for token, piece in enumerate(pieces) if piece and in_word(piece[-1]))
        return cls(going_on, unended)

    def in_columns(self, ids: Sequence[int]) -> Words:
        """Replace tokens by the columns of the scores, given the token of each column."""
        going_on = frozenset(column for column, token in enumerate(ids) if token in self.going_on)
        unended = frozenset(column for column, token in enumerate(ids) if token in self.unended)
        return Words(going_on, unended)


def in_word(character: str) -> bool:
    """Return True for letters, marks and digits of scripts that separate words by spaces."""
    return unicodedata.category(character)[0] in "LMN" and not _UNSPACED.match(character)
