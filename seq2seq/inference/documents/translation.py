"""Translate the texts of documents with a translator, and align the words of those with marks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from seq2seq.inference.documents.segments import Translate
from seq2seq.inference.forced_text import Alignment, force_candidates
from seq2seq.inference.glossary import Term
from seq2seq.inference.notes import Note
from seq2seq.inference.translator import Translator


def text_translator(
    translator: Translator,
    *,
    note: Callable[[Note], None],
    terms: Callable[[int, Sequence[Term]], None],
    **options: Any,
) -> Translate:
    """Return what translates texts; one that fails keeps its source.

    Args:
        note: Called for texts as by `Translator.translate`.
        terms: Called with the number of each text, from 1, and its terms of the glossary.
        options: Further arguments of `Translator.translate`.
    """

    def translate(texts: Sequence[str], marked: Sequence[bool]) -> list[tuple[str, Alignment | None]]:
        rows = [row[:1] for row in translator.translate(texts, note=note, **options)]
        # ONNX graphs align no words
        asked = [i for i, each in enumerate(marked) if each and translator.can_force]
        forced = force_candidates(
            translator, [texts[i] for i in asked], [rows[i] for i in asked], align=True, left_out=lambda *_: None
        )
        words = {i: row[0].words for i, row in zip(asked, forced, strict=True)}
        for number, (best,) in enumerate(rows, 1):
            terms(number, best.terms)
        return [(best.text if math.isfinite(best.score) else texts[i], words.get(i)) for i, (best,) in enumerate(rows)]

    return translate
