"""Translate a binary stream of lines into another, in order and in windows of bounded size."""

from __future__ import annotations

import contextlib
import dataclasses
import select
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from seq2seq.data.text_files import RawLine, Stream, decode_line, is_blank, name_of, split_lines
from seq2seq.inference.forced_text import force_candidates
from seq2seq.inference.glossary import TermCounts
from seq2seq.inference.line_formats import FORMATS
from seq2seq.inference.line_progress import ProgressLine
from seq2seq.inference.notes import Notes
from seq2seq.inference.partial_output import PartialOutput
from seq2seq.inference.translator import Translator
from seq2seq.system.stdio import print_error

# A window of lines is sorted by length and translated together. More lines batch better; the bound in bytes keeps a
# window of long lines in memory.
WINDOW_LINES = 4096
WINDOW_BYTES = 2 << 20
# First bytes of a line that are kept; the rest is counted and dropped while reading.
LINE_BYTES = 1 << 20
# A window is translated early when the input is silent for PAUSE_SECONDS, or its first line is PATIENCE_SECONDS old.
PAUSE_SECONDS = 0.1
PATIENCE_SECONDS = 1.0


def read_windows(stream: Stream) -> Iterator[list[RawLine]]:
    """Yield the lines of a binary stream, which end at \\n only, in windows of WINDOW_LINES or about WINDOW_BYTES.

    A window ends early when the stream pauses, so that a slow writer gets its answers.
    """
    lines: list[RawLine] = []
    size = 0
    since = 0.0
    for line in split_lines(_blocks(stream), LINE_BYTES):
        if line is not None:
            # A window is as old as its first line
            since = since if lines else time.monotonic()
            lines.append(line)
            size += len(line.data)
        full = len(lines) >= WINDOW_LINES or size >= WINDOW_BYTES
        # None means that the stream is silent. A stream that trickles without a pause gets answers, too
        if lines and (line is None or full or time.monotonic() - since > PATIENCE_SECONDS):
            yield lines
            # A new list: the consumer still has the window that was yielded
            lines = []
            size = 0
    if lines:
        yield lines


def _blocks(stream: Stream) -> Iterator[bytes]:
    """Yield what can be read from the stream, and an empty block whenever it is silent for PAUSE_SECONDS."""
    read = getattr(stream, "read1", stream.read)  # read1 returns what is there instead of waiting for more
    while block := read(1 << 16):
        yield block
        # `select` fails for a stream in memory, and on Windows, where it takes only sockets
        with contextlib.suppress(OSError, ValueError, TypeError):
            if not select.select([stream], [], [], PAUSE_SECONDS)[0]:
                yield b""


@dataclasses.dataclass(kw_only=True)
class LineStream:
    """Translates one stream, and counts and reports the lines that are invalid or fail.

    Args:
        format: Format of the output, one of FORMATS.
        warn: Called with a message for every line that is not translated exactly as given.
        options: Further arguments of `Translator.translate`.
        line_files: Streams with a line for each line of the source: `prefixes` has the beginnings of translations,
            `phrases` their phrases, separated by tabs.
        alignments: Output of the word alignments of the best translations, line by line.
        details: Fields of `ForcedLine.as_dict` that the format prints for the best translation.
        progress: Line on a terminal that shows the progress.
        partial: Output of an interrupted run, whose lines are skipped.
    """

    translator: Translator
    format: str
    warn: Callable[[str], None]
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    line_files: Mapping[str, Stream] = dataclasses.field(default_factory=dict)
    alignments: Stream | None = None
    details: Sequence[str] = ()
    progress: ProgressLine = dataclasses.field(default_factory=ProgressLine)
    partial: PartialOutput | None = None

    def __post_init__(self) -> None:
        self.lines = self.partial.done if self.partial else 0
        # A document goes from one window to the next
        self._before: deque[str] = deque(maxlen=self.translator.context)
        self._warned_of: set[str] = set()
        self.terms = TermCounts()
        self._notes = Notes(self._warn, failed=self.partial.failed if self.partial else ())

    @property
    def failed(self) -> int:
        """Lines that were not translated and are empty."""
        return len(self._notes.failed)

    def run(self, source: Stream, sink: Stream) -> None:
        """Translate until the source ends, and flush after every window.

        Raises:
            ValueError: The source has fewer lines than its partial output, or more or fewer lines than the prefixes
                or phrases.
        """
        done = self.lines
        for number in range(1, done + 1):
            if not (row := source.readline()):
                raise ValueError(f"the input ends before line {number}, and {done} of its lines are translated")
            self._before.append(decode_line(RawLine(row, len(row)))[0])
            for stream in self.line_files.values():
                stream.readline()
        has_reader = True
        try:
            for window in read_windows(source):
                translated = self._translate(window)
                # The output may go to the same terminal
                self.progress.clear()
                sink.write(translated)
                # A reader at the other end of a pipe waits for the answers of this window
                sink.flush()
                if self.partial:
                    self.partial.keep(self.lines, self._notes.failed)
            for stream in self.line_files.values():
                # Read only one line, since a pipe may have no end
                if stream.readline():
                    more = f"has more than {self.lines:,} lines, and the input has {self.lines:,}"
                    raise ValueError(f"{name_of(stream)} {more}; it needs one for each")
        except BrokenPipeError:
            has_reader = False
            raise
        finally:
            self.progress.clear()
            # After an interrupt too: a resumed run reports its own lines alone
            if has_reader:
                self._notes.report(self.lines - done, "; --format json has it line by line")
                if self.translator.glossary:
                    print_error(f"glossary: {self.terms}")

    def _warn(self, message: str) -> None:
        """Print a warning on a line of its own."""
        self.progress.clear()
        self.warn(message)

    def _translate(self, window: list[RawLine]) -> bytes:
        """Translate the next lines, and return their output."""
        first = self.lines + 1
        lines = [self._decode(number, line) for number, line in enumerate(window, first)]
        options = {**self.options, "before": list(self._before), "progress": self.progress.advance}
        self._before.extend(lines)
        options |= {name: self._next_lines(stream, len(lines)) for name, stream in self.line_files.items()}
        if "phrases" in self.line_files:
            rows = options["phrases"]
            options["phrases"] = [[phrase for phrase in row.split("\t") if phrase.strip()] for row in rows]
        # Blank lines are not searched
        self.progress.advance(sum(map(is_blank, lines)))
        self._notes.texts.clear()
        results = self.translator.translate(
            lines, note=lambda note: self._notes.add(note._replace(position=note.position + first - 1)), **options
        )
        for number, row in enumerate(results, first):
            self.terms.add(number, row[0].terms)
        self.lines += len(lines)
        details: list[dict[str, Any]] = [{} for _ in lines]
        if self.details or self.alignments is not None:
            align = self.alignments is not None or "alignment" in self.details
            best = [row[:1] for row in results]
            forced = [row[0] for row in force_candidates(self.translator, lines, best, align=align)]
            for number, line in enumerate(forced, first):
                if line.reason:
                    self._warn(f"line {number} has no alignment and no pieces: its translation {line.reason}")
            if self.alignments is not None:
                self.alignments.write("".join(f"{line.alignment}\n" for line in forced).encode())
            details = [{key: line.as_dict()[key] for key in self.details} for line in forced]
        for number, texts in self._notes.texts.items():
            details[number - first]["warnings"] = list(texts)
        shown = map(FORMATS[self.format], range(first, self.lines + 1), results, details)
        return "".join(shown).encode("utf-8", "replace")

    def _next_lines(self, stream: Stream, count: int) -> list[str]:
        """Read the lines of another file that belong to the next `count` lines of input."""
        rows = [row.removesuffix(b"\n") for row in islice(stream, count)]
        if len(rows) < count:
            missing = self.lines + len(rows) + 1
            raise ValueError(f"{name_of(stream)} ends before line {missing:,} of the input; it needs as many lines")
        lines = []
        for number, row in enumerate(rows, self.lines + 1):
            text, valid = decode_line(RawLine(row, len(row)))
            if not valid:
                # Replaced bytes would get into the translation
                raise ValueError(f"{name_of(stream)}: line {number:,} is not valid UTF-8; convert the file")
            lines.append(text)
        return lines

    def _decode(self, number: int, line: RawLine) -> str:
        text, valid = decode_line(line)
        # Warn once of each problem: a file in another encoding would warn at every line
        if not valid and "bytes" not in self._warned_of:
            self._warned_of.add("bytes")
            self._warn(f"line {number} is not valid UTF-8; the invalid bytes are replaced (warned once)")
        if "\r" in text and "return" not in self._warned_of:
            self._warned_of.add("return")
            self._warn(f"line {number} has a carriage return inside, which ends no line here (warned once)")
        if line.size > len(line.data):
            self._warn(f"line {number} has {line.size:,} bytes; only the first {len(line.data):,} are read")
        return text
