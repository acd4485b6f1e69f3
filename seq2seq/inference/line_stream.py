"""Lines in, lines out: reading a binary stream in windows, translating them in order, and writing the result."""

from __future__ import annotations

import codecs
import select
import time
from collections.abc import Iterator
from typing import IO, BinaryIO, NamedTuple

from seq2seq.cli import warn
from seq2seq.inference.translator import Candidate, Note, Translator

WINDOW_LINES = 4096  # lines sorted by length together
WINDOW_BYTES = 2 << 20
LINE_BYTES = 1 << 20  # of a longer line, only these are kept; the rest is counted and dropped
PAUSE_SECONDS = 0.1  # input that stays silent for so long is waited for no more: what is there is translated
PATIENCE_SECONDS = 1.0  # and so is a window whose first line is this old


class RawLine(NamedTuple):
    """A line as it was read, without its end: its first bytes, and how many there were in all."""

    data: bytes
    size: int


class Window(NamedTuple):
    """Consecutive lines: the number, from 1, of the first, and their text."""

    first: int
    raw: list[RawLine]


def read_windows(
    stream: BinaryIO | IO[bytes], *, max_lines: int = WINDOW_LINES, max_bytes: int = WINDOW_BYTES
) -> Iterator[Window]:
    """The lines of a binary stream, which end at \\n only, in windows of bounded size.

    A window ends early when the stream pauses, so that a slow writer gets its answers; a line's tail beyond
    LINE_BYTES is dropped while reading.
    """
    first, held, size, since = 1, [], 0, 0.0
    for line in _raw_lines(stream):
        if line is not None:
            since = since if held else time.monotonic()
            held.append(line)
            size += len(line.data)
        full = len(held) >= max_lines or size >= max_bytes
        if held and (line is None or full or time.monotonic() - since > PATIENCE_SECONDS):
            yield Window(first, held)
            first, held, size = first + len(held), [], 0
    if held:
        yield Window(first, held)


def _raw_lines(stream: BinaryIO | IO[bytes]) -> Iterator[RawLine | None]:
    """Every line of the stream, and None whenever there is no more to read for the moment."""
    read = getattr(stream, "read1", stream.read)  # read1 returns what is there instead of waiting for more
    held, size = bytearray(), 0
    while chunk := read(1 << 16):
        *ended, rest = chunk.split(b"\n")
        for piece in ended:
            held += piece[: LINE_BYTES - len(held)]
            yield RawLine(bytes(held), size + len(piece))
            held, size = bytearray(), 0
        held += rest[: LINE_BYTES - len(held)]
        size += len(rest)
        if not _readable(stream):
            yield None
    if size:
        yield RawLine(bytes(held), size)


def _readable(stream: BinaryIO | IO[bytes]) -> bool:
    """False if the stream has been silent for PAUSE_SECONDS; True also where that cannot be found out."""
    try:
        return bool(select.select([stream], [], [], PAUSE_SECONDS)[0])
    except (OSError, ValueError, TypeError):  # a stream in memory; Windows, where select takes sockets only
        return True


def decode_line(line: RawLine) -> tuple[str, bool]:
    """The text of a line without the \\r of a CRLF, and whether it was valid UTF-8; what is invalid becomes U+FFFD."""
    whole = line.size == len(line.data)
    data = line.data[:-1] if whole and line.data.endswith(b"\r") else line.data
    try:
        return codecs.utf_8_decode(data, "strict", whole)[0], True
    except UnicodeDecodeError:
        return codecs.utf_8_decode(data, "replace", whole)[0], False


class LineStream:
    """One run of the command: windows in, bytes out, and what was wrong with the lines in between."""

    def __init__(self, *, translator: Translator, n_best: int) -> None:
        self.translator, self.n_best = translator, n_best
        self.invalid = self.failed = self.lines = 0

    def run(self, source: BinaryIO | IO[bytes], sink: BinaryIO | IO[bytes]) -> None:
        """Translate until the source ends; every window is flushed."""
        for window in read_windows(source):
            sink.write(self._translate(window))
            sink.flush()

    def _translate(self, window: Window) -> bytes:
        lines = [self._decode(window.first + i, line) for i, line in enumerate(window.raw)]
        results = self.translator.translate(lines, note=lambda n: self._note(window, n))
        self.lines += len(lines)
        numbers = range(window.first, window.first + len(lines))
        return "".join(self._format(n, r) for n, r in zip(numbers, results, strict=True)).encode("utf-8", "replace")

    def _decode(self, number: int, line: RawLine) -> str:
        text, valid = decode_line(line)
        if not valid:
            self.invalid += 1
            if self.invalid == 1:
                warn(f"line {number} is not valid UTF-8; the invalid bytes are replaced (warned once)")
        if line.size > len(line.data):
            warn(f"line {number} has {line.size:,} bytes; only the first {len(line.data):,} are read")
        return text.removeprefix("\ufeff") if number == 1 else text

    def _note(self, window: Window, note: Note) -> None:
        self.failed += bool(note.error)
        line = window.raw[note.position]
        text = str(note)
        if not note.error and line.size > len(line.data):
            whole = round(note.pieces * line.size / len(line.data), -3)
            text = f"is cut: about {whole:,} pieces, the first {note.kept:,} are translated"
        warn(f"line {window.first + note.position} {text}")

    def _format(self, number: int, candidates: list[Candidate]) -> str:
        if self.n_best == 1:
            return candidates[0].text + "\n"
        return "".join(f"{number}\t{c.score:.4f}\t{c.text}\n" for c in candidates)
