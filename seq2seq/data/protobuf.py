"""Read and write messages in protobuf's wire format, such as SentencePiece models, without its package."""

from __future__ import annotations

from collections.abc import Iterator


def only(message: bytes, number: int) -> bytes:
    """Return the content of a field; it is empty if the field is missing."""
    return next((content for found, content, _ in fields(message) if found == number), b"")


def fields(message: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Parse a message into field numbers, contents and all bytes of each field."""
    end = 0
    while end < len(message):
        start = end
        # The key is field number << 3 | wire type: 0 is an integer, 2 a size and bytes, 1 and 5 a number of fixed size
        key, content = _varint(message, start)
        match key & 7:
            case 0:
                _, end = _varint(message, content)
            case 2:
                size, content = _varint(message, content)
                end = content + size
            case kind:
                end = content + (4 if kind == 5 else 8)
        yield key >> 3, message[content:end], message[start:end]


def field(number: int, value: bytes) -> bytes:
    """Write a field of bytes."""
    size, rest = bytearray(), len(value)
    while rest > 127:
        size.append(rest & 127 | 128)
        rest >>= 7
    return bytes([number << 3 | 2, *size, rest]) + value


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
