"""Turn the ids of translations into text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from seq2seq.data.tokenizer import Tokenizer
from seq2seq.inference.parts import SourceLine
from seq2seq.inference.search_parts import Joined


class TranslatedText(NamedTuple):
    """Translation with its length-normalized log-probability (natural logarithm).

    Attributes:
        parts: Text and translation of each part, for a line that was translated in several parts.
    """

    text: str
    score: float
    parts: tuple[tuple[str, str], ...] = ()


def as_text(
    tokenizer: Tokenizer, translations: list[list[Joined]], lines: Sequence[SourceLine], *, spaces: bool
) -> list[list[TranslatedText]]:
    """Turn the translations of each line into text; the texts of parts are joined as the parts stand in the line.

    Args:
        spaces: The target language has spaces between sentences.
    """
    # One call for all of them: the tokenizer's overhead is per call
    texts = iter(tokenizer.decode([ids for row in translations for each in row for ids in each.ids]))
    found = []
    for line, row in zip(lines, translations, strict=True):
        found.append([])
        for each in row:
            own = [next(texts) for _ in each.ids]
            pairs = zip((part.text for part in line.parts), own, strict=True) if len(own) > 1 else ()
            found[-1].append(TranslatedText(line.join(own, spaces=spaces), float(each.score), tuple(pairs)))
    return found
