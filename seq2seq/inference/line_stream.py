"""Translate a binary stream of lines into another, in order and in windows of bounded size."""

from __future__ import annotations

import codecs
import select
import time
from collections.abc import Callable, Iterator
from typing import IO, BinaryIO, NamedTuple

from seq2seq.inference.translator import Candidate, Note, Translator

Stream = BinaryIO | IO[bytes]

# Bounds of a window, whose lines are sorted by length and translated together.
WINDOW_LINES = 4096
WINDOW_BYTES = 2 << 20
# First bytes of a line that are kept; the rest is counted and dropped while reading.
LINE_BYTES = 1 << 20
# A window is translated as it is when the input is silent for so long, or when its first line is so old.
PAUSE_SECONDS = 0.1
PATIENCE_SECONDS = 1.0


class RawLine(NamedTuple):
    """A line as it was read, without its end: its first bytes, and its size in bytes."""

    data: bytes
    size: int


class Window(NamedTuple):
    """Consecutive lines, and the number of the first, from 1."""

    first: int
    raw: list[RawLine]


def read_windows(stream: Stream, *, max_lines: int = WINDOW_LINES, max_bytes: int = WINDOW_BYTES) -> Iterator[Window]:
    """Yield the lines of a binary stream, which end at \\n only, in windows of bounded size.

    A window ends early when the stream pauses, so that a slow writer gets its answers.
    """
    first = 1
    lines: list[RawLine] = []
    size = 0
    since = 0.0
    for line in _raw_lines(stream):
        if line is not None:
            since = since if lines else time.monotonic()
            lines.append(line)
            size += len(line.data)
        full = len(lines) >= max_lines or size >= max_bytes
        if lines and (line is None or full or time.monotonic() - since > PATIENCE_SECONDS):
            yield Window(first, lines)
            first += len(lines)
            lines = []
            size = 0
    if lines:
        yield Window(first, lines)


def _raw_lines(stream: Stream) -> Iterator[RawLine | None]:
    """Yield every line of the stream, and None whenever there is no more to read for the moment."""
    read = getattr(stream, "read1", stream.read)  # read1 returns what is there instead of waiting for more
    data = bytearray()
    size = 0
    while chunk := read(1 << 16):
        *ended, rest = chunk.split(b"\n")
        for piece in ended:
            data += piece[: LINE_BYTES - len(data)]
            yield RawLine(bytes(data), size + len(piece))
            data = bytearray()
            size = 0
        data += rest[: LINE_BYTES - len(data)]
        size += len(rest)
        if not _readable(stream):
            yield None
    if size:
        yield RawLine(bytes(data), size)


def _readable(stream: Stream) -> bool:
    """Return False if the stream has been silent for PAUSE_SECONDS, True also where that cannot be known."""
    try:
        return bool(select.select([stream], [], [], PAUSE_SECONDS)[0])
    except (OSError, ValueError, TypeError):  # a stream in memory; Windows, where select takes sockets only
        return True


def decode_line(line: RawLine) -> tuple[str, bool]:
    """Decode a line without the \\r of a CRLF, and return whether it was valid UTF-8; U+FFFD replaces what is not."""
    whole = line.size == len(line.data)
    data = line.data[:-1] if whole and line.data.endswith(b"\r") else line.data
    try:
        return codecs.utf_8_decode(data, "strict", whole)[0], True
    except UnicodeDecodeError:
        return codecs.utf_8_decode(data, "replace", whole)[0], False


class LineStream:
    """Translates one stream, and counts and reports the lines that were not valid or failed.

    Args:
        warn: Called with one line of text for every line of input that is not translated as it is.
    """

    def __init__(self, *, translator: Translator, n_best: int, warn: Callable[[str], None]) -> None:
        self.translator = translator
        self.n_best = n_best
        self.warn = warn
        self.lines = 0
        self.invalid = 0
        self.failed = 0

    def run(self, source: Stream, sink: Stream) -> None:
        """Translate until the source ends, and flush after every window."""
        for window in read_windows(source):
            sink.write(self._translate(window))
            sink.flush()

    def _translate(self, window: Window) -> bytes:
        lines = [self._decode(window.first + i, line) for i, line in enumerate(window.raw)]
        results = self.translator.translate(lines, note=lambda note: self._report(window, note))
        self.lines += len(lines)
        rows = [self._format(number, row) for number, row in enumerate(results, window.first)]
        return "".join(rows).encode("utf-8", "replace")

    def _decode(self, number: int, line: RawLine) -> str:
        text, valid = decode_line(line)
        if not valid:
            self.invalid += 1
            if self.invalid == 1:
                self.warn(f"line {number} is not valid UTF-8; the invalid bytes are replaced (warned once)")
        if line.size > len(line.data):
            self.warn(f"line {number} has {line.size:,} bytes; only the first {len(line.data):,} are read")
        return text.removeprefix("\ufeff") if number == 1 else text

    def _report(self, window: Window, note: Note) -> None:
        self.failed += bool(note.error)
        line = window.raw[note.position]
        text = str(note)
        if not note.error and line.size > len(line.data):
            whole = round(note.pieces * line.size / len(line.data), -3)
            text = f"is cut: about {whole:,} pieces, the first {note.kept:,} are translated"
        self.warn(f"line {window.first + note.position} {text}")

    def _format(self, number: int, candidates: list[Candidate]) -> str:
        if self.n_best == 1:
            return candidates[0].text + "\n"
        return "".join(f"{number}\t{c.score:.4f}\t{c.text}\n" for c in candidates)
