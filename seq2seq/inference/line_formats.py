"""Formats of printed translations: text, columns, or JSON. Imports no torch."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seq2seq.inference.translator import TranslatedText

# Key of a translation that a limit of its length has ended; others do not have it
LIMITED = "limited"
# Formats a line as text, given its number (from 1), its translations (best first), and details of the best one.
Format = Callable[[int, "Sequence[TranslatedText]", Mapping[str, Any]], str]


def as_text(number: int, candidates: Sequence[TranslatedText], details: Mapping[str, Any]) -> str:
    """Return the text of each translation on a line of its own."""
    return "".join(f"{candidate.text}\n" for candidate in candidates)


def as_columns(number: int, candidates: Sequence[TranslatedText], details: Mapping[str, Any]) -> str:
    """Return number, score and text of each translation, separated by tabs; a tab in the text becomes a space."""
    rows = ((candidate.score, candidate.text.replace("\t", " ")) for candidate in candidates)
    return "".join(f"{number}\t{score:.4f}\t{text}\n" for score, text in rows)


def as_json(number: int, candidates: Sequence[TranslatedText], details: Mapping[str, Any]) -> str:
    """Return one JSON object on a line; the score of a line that failed is null."""
    best, *others = [
        # JSON has no infinity
        {"translation": candidate.text, "score": candidate.score if math.isfinite(candidate.score) else None}
        | ({LIMITED: True} if candidate.limited else {})
        for candidate in candidates
    ]
    entry: dict[str, Any] = {"line": number, **best}
    if others:
        # Without the fillers of a beam that found fewer translations
        entry["alternatives"] = [other for other in others if other["score"] is not None]
    if terms := candidates[0].terms:
        entry["glossary"] = [term._asdict() for term in terms]
    return json.dumps(entry | dict(details), ensure_ascii=False) + "\n"


FORMATS: dict[str, Format] = {"text": as_text, "json": as_json, "tsv": as_columns}
