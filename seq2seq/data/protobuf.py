"""Read and write protobuf's wire format, in which SentencePiece stores its models."""

from __future__ import annotations

from collections.abc import Iterator


def fields(message: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Parse a message into field numbers, contents and all bytes of each field."""
    end = 0
    while end < len(message):
        start = end
        # The key is field number << 3 | wire type. SentencePiece's models use only type 0 (an integer) and type 2 (a
        # size, then the bytes) at the levels that are read here.
        key, content = varint(message, start)
        number, content = varint(message, content)
        end = content + number if key & 7 == 2 else content
        yield key >> 3, message[content:end], message[start:end]


def content_of(message: bytes, number: int) -> bytes:
    """Return the content of a field of bytes; it is empty if the field is missing."""
    return next((content for found, content, _ in fields(message) if found == number), b"")


def varint(message: bytes, position: int) -> tuple[int, int]:
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
    return _varint_bytes(number << 3 | 2) + _varint_bytes(len(value)) + value


def _varint_bytes(value: int) -> bytes:
    written = bytearray()
    while value > 127:
        written.append(value & 127 | 128)
        value >>= 7
    return bytes([*written, value])
