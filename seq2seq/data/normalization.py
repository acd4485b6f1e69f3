"""Name of the normalization in a SentencePiece model, and the rules of NFC, which SentencePiece lacks."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterator
from itertools import permutations

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
    return _only(_only(model, _NORMALIZER_SPEC), _NAME).decode() or "unnamed"


def with_normalizer_name(model: bytes, name: str) -> bytes:
    """Set the name of a serialized model's normalization, and remove the path of its rules."""
    spec = _only(model, _NORMALIZER_SPEC)
    kept = b"".join(raw for number, _, raw in _fields(spec) if number not in (_NAME, _RULES_PATH))
    renamed = field(_NORMALIZER_SPEC, field(_NAME, name.encode()) + kept)
    return b"".join(renamed if number == _NORMALIZER_SPEC else raw for number, _, raw in _fields(model))


def _only(message: bytes, number: int) -> bytes:
    """Return the content of a field of bytes; it is empty if the field is missing."""
    return next((content for found, content, _ in _fields(message) if found == number), b"")


def _fields(message: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Parse a message in protobuf's wire format into field numbers, contents and all bytes of each field."""
    end = 0
    while end < len(message):
        start = end
        # The key is field number << 3 | wire type. The two messages use only type 0 (an integer) and type 2 (a size,
        # then the bytes).
        key, content = _varint(message, start)
        number, content = _varint(message, content)
        end = content + number if key & 7 == 2 else content
        yield key >> 3, message[content:end], message[start:end]


def _varint(message: bytes, position: int) -> tuple[int, int]:
    """Parse an integer in groups of seven bits, the lowest first; return it and the position after it."""
    value = shift = 0
    while True:
        byte = message[position]
        # The highest bit is set if more bytes follow
        value |= (byte & 127) << shift
        position, shift = position + 1, shift + 7
        if byte < 128:
            return value, position


def field(number: int, value: bytes) -> bytes:
    """Write a field of bytes."""
    size, rest = bytearray(), len(value)
    while rest > 127:
        size.append(rest & 127 | 128)
        rest >>= 7
    return bytes([number << 3 | 2, *size, rest]) + value
