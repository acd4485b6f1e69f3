"""Normalization inside a SentencePiece model: its name, and the rules of NFC, which SentencePiece does not have."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterator
from itertools import permutations

# Fields of SentencePiece's ModelProto and, within the first, of its NormalizerSpec.
_NORMALIZER_SPEC, _NAME, _RULES_PATH = 3, 1, 6


def nfc_rules() -> str:
    """Return rules that compose characters, in the form of SentencePiece's `normalization_rule_tsv`.

    Whatever is canonically equivalent to a character becomes its NFC: decomposed, partly composed, with marks in any
    order. Marks that no character has together stay in the order in which they are.
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
            # Its first characters as one, where they are one
            for end in range(1, len(form)):
                yield unicodedata.normalize("NFC", form[:end]) + form[end:]


def _code_points(text: str) -> str:
    return " ".join(f"{ord(character):X}" for character in text)


def normalizer_name(model: bytes) -> str:
    """Read the name of the normalization that a serialized SentencePiece model carries."""
    spec = _only(model, _NORMALIZER_SPEC)
    name = _only(spec, _NAME)
    return name.decode() or "unnamed"


def with_normalizer_name(model: bytes, name: str) -> bytes:
    """Name the normalization of a serialized model, and leave out the path of the file that its rules came from."""
    spec = _only(model, _NORMALIZER_SPEC)
    kept = b"".join(raw for number, _, raw in _fields(spec) if number not in (_NAME, _RULES_PATH))
    renamed = _field(_NORMALIZER_SPEC, _field(_NAME, name.encode()) + kept)
    return b"".join(renamed if number == _NORMALIZER_SPEC else raw for number, _, raw in _fields(model))


def _only(message: bytes, number: int) -> bytes:
    """Return the value of a bytes field, empty if the field is missing."""
    return next((value for found, value, _ in _fields(message) if found == number and isinstance(value, bytes)), b"")


def _fields(message: bytes) -> Iterator[tuple[int, bytes | int, bytes]]:
    """Parse a message in protobuf's wire format into field numbers, values and the bytes of each field."""
    position = 0
    while position < len(message):
        start = position
        # key: field number << 3 | wire type; type 0 is a varint, 1 and 5 are fixed, 2 has its length first
        key, position = _varint(message, position)
        if key & 7 == 0:
            value, position = _varint(message, position)
        else:
            fixed = {1: 8, 5: 4}.get(key & 7)  # bytes of 64-bit and 32-bit values; others say their length
            size, position = (fixed, position) if fixed else _varint(message, position)
            value, position = message[position : position + size], position + size
        yield key >> 3, value, message[start:position]


def _varint(message: bytes, position: int) -> tuple[int, int]:
    """Parse a whole number in groups of seven bits, the lowest first; return it and the position after it."""
    value = shift = 0
    while True:
        byte = message[position]
        # The highest bit says that more bytes follow
        value |= (byte & 127) << shift
        position, shift = position + 1, shift + 7
        if byte < 128:
            return value, position


def _field(number: int, value: bytes) -> bytes:
    """Write a field of bytes."""
    size, rest = bytearray(), len(value)
    while rest > 127:
        size.append(rest & 127 | 128)
        rest >>= 7
    return bytes([number << 3 | 2, *size, rest]) + value
