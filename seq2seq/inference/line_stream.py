"""Translate a binary stream of lines into another, in order and in windows of bounded size."""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from seq2seq.data.characters import is_blank
from seq2seq.data.text_files import RawLine, Stream, decode_line, name_of, split_lines
from seq2seq.inference.forced_text import ForcedLine, force_candidates
from seq2seq.inference.line_formats import FORMATS
from seq2seq.inference.line_progress import ProgressLine
from seq2seq.inference.notes import Notes
from seq2seq.inference.partial_output import PartialOutput
from seq2seq.inference.translator import TranslatedText, Translator

# Bounds of a window, whose lines are sorted by length and translated together.
# More lines batch better; the bound in bytes keeps a window of long lines in memory.
WINDOW_LINES = 4096
WINDOW_BYTES = 2 << 20
# First bytes of a line that are kept; the rest is counted and dropped while reading.
LINE_BYTES = 1 << 20
# A window is translated as it is when the input is silent for so long, or when its first line is so old.
PAUSE_SECONDS = 0.1
PATIENCE_SECONDS = 1.0


class Window(NamedTuple):
    """Consecutive lines, and the number of the first, from 1."""

    first: int
    raw: list[RawLine]


def read_windows(
    stream: Stream, *, first: int = 1, max_lines: int = WINDOW_LINES, max_bytes: int = WINDOW_BYTES
) -> Iterator[Window]:
    """Yield the lines of a binary stream, which end at \\n only, in windows of bounded size.

    A window ends early when the stream pauses, so that a slow writer gets its answers.

    Args:
        first: Number of the first line that is still to be read.
        max_lines: Most lines of a window.
        max_bytes: Bytes, as kept, after which a window ends; the line that passes the bound is its last.
    """
    lines: list[RawLine] = []
    size = 0  # bytes of the open window
    since = 0.0
    for line in split_lines(_blocks(stream), LINE_BYTES):
        if line is not None:
            # The age of a window is that of its first line
            since = since if lines else time.monotonic()
            lines.append(line)
            size += len(line.data)
        full = len(lines) >= max_lines or size >= max_bytes
        # None: the stream is silent. Patience: one that trickles without a pause gets answers, too
        if lines and (line is None or full or time.monotonic() - since > PATIENCE_SECONDS):
            yield Window(first, lines)
            # New lists, not cleared ones: the consumer still has the window that was yielded
            first += len(lines)
            lines = []
            size = 0
    if lines:
        yield Window(first, lines)


def _blocks(stream: Stream) -> Iterator[bytes]:
    """Yield what can be read of the stream, and an empty block whenever it is silent for PAUSE_SECONDS."""
    read = getattr(stream, "read1", stream.read)  # read1 returns what is there instead of waiting for more
    while block := read(1 << 16):
        yield block
        # A stream in memory; Windows, where select takes sockets only
        with contextlib.suppress(OSError, ValueError, TypeError):
            if not select.select([stream], [], [], PAUSE_SECONDS)[0]:
                yield b""


class LineStream:
    """Translates one stream, and counts and reports the lines that were not valid or failed.

    Args:
        format: How translations are printed, one of FORMATS.
        warn: Called with one line of text for every line of input that is not translated as it is.
        options: Further arguments of `Translator.translate`.
        prefixes: A stream with what the translation of each line begins with, line by line.
        phrases: A stream with what the translation of each line must have, set apart by tabs.
        alignments: Where the word alignments of the best translations go, a line for each line.
        details: What the format also prints of the best translation: fields of `ForcedLine.as_dict`.
        progress: Line on a terminal that tells how far it is.
        partial: The output that an earlier run has left, whose lines are skipped.
    """

    def __init__(
        self,
        *,
        translator: Translator,
        format: str,
        warn: Callable[[str], None],
        options: Mapping[str, Any] | None = None,
        prefixes: Stream | None = None,
        phrases: Stream | None = None,
        alignments: Stream | None = None,
        details: Sequence[str] = (),
        progress: ProgressLine | None = None,
        partial: PartialOutput | None = None,
    ) -> None:
        self.translator = translator
        self.options = dict(options or {})
        self.prefixes = prefixes
        self.phrases = phrases
        self.alignments = alignments
        self.details = details
        self.progress = progress
        self.partial = partial
        self.format = FORMATS[format]
        self._print_warning = warn
        self.lines = partial.done if partial else 0
        self.invalid = 0
        self._returns = False
        self._notes = Notes(self.warn, failed=partial.failed if partial else ())

    def run(self, source: Stream, sink: Stream) -> None:
        """Translate until the source ends, and flush after every window.

        Raises:
            ValueError: The source has fewer lines than its partial output, or not as many as a file beside it.
        """
        skip = self.lines
        beside = [stream for stream in (self.prefixes, self.phrases) if stream is not None]
        for number in range(1, skip + 1):
            if not source.readline():
                raise ValueError(f"the input ends before line {number}, and {skip} of its lines are translated")
        for stream in beside:
            for _ in range(skip):
                stream.readline()
        has_reader = True
        try:
            for window in read_windows(source, first=skip + 1):
                translated = self._translate(window)
                if self.partial:
                    self.partial.remember(self._notes.failed)
                if self.progress:
                    # The output may go to the same terminal
                    self.progress.clear()
                sink.write(translated)
                # A reader at the other end of a pipe waits for the answers of this window
                sink.flush()
            for stream in beside:
                # One line, for a pipe may have no end
                if stream.readline():
                    more = f"has more than {self.lines:,} lines, and the input has {self.lines:,}"
                    raise ValueError(f"{name_of(stream)} {more}; it needs one for each")
        except BrokenPipeError:
            has_reader = False
            raise
        finally:
            if self.progress:
                self.progress.clear()
            # After an interrupt too: what is resumed later is not reported again
            if has_reader:
                self._notes.report(self.lines - skip, "; --format json has it line by line")

    def warn(self, message: str) -> None:
        """Print a warning, on a line of its own."""
        if self.progress:
            self.progress.clear()
        self._print_warning(message)

    def _translate(self, window: Window) -> bytes:
        lines = [self._decode(window.first + i, line) for i, line in enumerate(window.raw)]
        beside: dict[str, Any] = {}
        if self.prefixes is not None:
            beside["prefixes"] = self._beside(self.prefixes, window)
        if self.phrases is not None:
            rows = self._beside(self.phrases, window)
            beside["phrases"] = [[part for part in row.split("\t") if part.strip()] for row in rows]
        if self.progress:
            beside["progress"] = self.progress.advance
            # Blank lines are not searched
            self.progress.advance(sum(map(is_blank, lines)))
        self._notes.texts.clear()
        results = self.translator.translate(
            lines,
            note=lambda note: self._notes.add(note._replace(position=note.position + window.first - 1)),
            **self.options,
            **beside,
        )
        self.lines += len(lines)
        forced = self._forced(window.first, lines, results) if self.details or self.alignments is not None else []
        if self.alignments is not None:
            self.alignments.write("".join(f"{line.alignment}\n" for line in forced).encode())
        details: list[dict[str, Any]] = [{} for _ in lines]
        if self.details:
            details = [{key: line.as_dict()[key] for key in self.details} for line in forced]
        for number, texts in self._notes.texts.items():
            details[number - window.first]["warnings"] = list(texts)
        rows = map(self.format, range(window.first, self.lines + 1), results, details)
        return "".join(rows).encode("utf-8", "replace")

    @property
    def failed(self) -> int:
        """Lines that were not translated and are empty."""
        return len(self._notes.failed)

    def _forced(self, first: int, lines: Sequence[str], results: Sequence[list[TranslatedText]]) -> list[ForcedLine]:
        """Score and align the best translations."""

        def left_out(position: int, reason: str) -> None:
            self.warn(f"line {first + position} has no alignment and no pieces: its translation {reason}")

        align = self.alignments is not None or "alignment" in self.details
        rows = force_candidates(self.translator, lines, [row[:1] for row in results], align=align, left_out=left_out)
        return [row[0] for row in rows]

    def _beside(self, stream: Stream, window: Window) -> list[str]:
        """Read the lines of another file that belong to a window."""
        rows = [row.removesuffix(b"\n") for row in islice(stream, len(window.raw))]
        if len(rows) < len(window.raw):
            count = window.first + len(rows)
            raise ValueError(f"{name_of(stream)} ends before line {count:,} of the input; it needs as many lines")
        lines = []
        for number, row in enumerate(rows, window.first):
            text, valid = decode_line(RawLine(row, len(row)))
            if not valid:
                # What replaces the bytes would be in the translation
                raise ValueError(f"{name_of(stream)}: line {number:,} is not valid UTF-8; convert the file")
            lines.append(text)
        return lines

    def _decode(self, number: int, line: RawLine) -> str:
        text, valid = decode_line(line)
        if not valid:
            self.invalid += 1
            # Once: a file in another encoding would warn at every line
            if self.invalid == 1:
                self.warn(f"line {number} is not valid UTF-8; the invalid bytes are replaced (warned once)")
        if "\r" in text and not self._returns:
            self._returns = True
            self.warn(f"line {number} has a carriage return inside, which ends no line here (warned once)")
        if line.size > len(line.data):
            self.warn(f"line {number} has {line.size:,} bytes; only the first {len(line.data):,} are read")
        return text
