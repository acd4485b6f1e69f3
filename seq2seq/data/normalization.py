"""Name of the normalization in a SentencePiece model, and the rules of NFC, which SentencePiece lacks."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterator
from itertools import permutations

from seq2seq.data.protobuf import content_of, field, fields

# Fields of SentencePiece's ModelProto and, within the first, of its NormalizerSpec.
_NORMALIZER_SPEC, _NAME, _RULES_PATH = 3, 1, 6


def nfc_rules() -> str:
    """Return rules that compose characters, in the format of SentencePiece's `normalization_rule_tsv`.

    All canonical equivalents of a character (decomposed, partly composed, with marks in any order) become its NFC.
    Marks that do not combine into a character keep their order.
    """
    rules: dict[str, str] = {}
    for character in map(chr, range(sys.maxunicode + 1)):
        if not unicodedata.is_normalized("NFD", character):
            goal = unicodedata.normalize("NFC", character)
            rules |= {form: goal for form in _equivalents(character) if form != goal}
    return "".join(f"{_code_points(form)}\t{_code_points(rules[form])}\n" for form in sorted(rules))


def _equivalents(character: str) -> Iterator[str]:
    yield character
    decomposed = unicodedata.normalize("NFD", character)
    for marks in permutations(decomposed[1:]):
        form = decomposed[0] + "".join(marks)
        if unicodedata.normalize("NFD", form) == decomposed:
            # Compose the first characters, where possible
            for end in range(1, len(form)):
                yield unicodedata.normalize("NFC", form[:end]) + form[end:]


def _code_points(text: str) -> str:
    return " ".join(f"{ord(character):X}" for character in text)


def normalizer_name(model: bytes) -> str:
    """Read the name of the normalization in a serialized SentencePiece model."""
    return content_of(content_of(model, _NORMALIZER_SPEC), _NAME).decode() or "unnamed"


def with_normalizer_name(model: bytes, name: str) -> bytes:
    """Set the name of a serialized model's normalization, and remove the path of its rules."""
    spec = content_of(model, _NORMALIZER_SPEC)
    kept = b"".join(raw for number, _, raw in fields(spec) if number not in (_NAME, _RULES_PATH))
    renamed = field(_NORMALIZER_SPEC, field(_NAME, name.encode()) + kept)
    return b"".join(renamed if number == _NORMALIZER_SPEC else raw for number, _, raw in fields(model))
