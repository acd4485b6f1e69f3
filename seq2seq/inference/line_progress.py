"""Progress of a translation, on one line of a terminal. Imports no torch."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from typing import TextIO

from seq2seq.settings.values import clock

# Seconds between two updates.
_INTERVAL = 1.0


@dataclasses.dataclass
class ProgressLine:
    """Shows the share of lines that are done, lines per second, and the time left; each update replaces the last.

    Args:
        done: Lines that an earlier run has translated.
        stream: A terminal; None shows nothing.
    """

    total: int = 0
    done: int = 0
    stream: TextIO | None = None

    def __post_init__(self) -> None:
        self._before = self.done
        self._began = time.monotonic()
        self._shown = 0.0

    def advance(self, lines: int) -> None:
        """Count lines that are done, and update the line once a second."""
        self.done = min(self.done + lines, self.total)
        now = time.monotonic()
        if self.stream and now - self._shown >= _INTERVAL:
            self._shown = now
            self._write(self.text(now - self._began))

    def text(self, seconds: float) -> str:
        """Return the line to show after `seconds` of work."""
        rate = (self.done - self._before) / seconds if seconds > 0 else 0.0
        share = self.done / self.total if self.total else 1.0
        left = clock((self.total - self.done) / rate) if rate else "?"
        return f"{share:4.0%}  {self.done:,} of {self.total:,} lines  {rate:,.1f} lines/s  {left} left"

    def clear(self) -> None:
        """Remove the line, for other output or at the end."""
        if self._shown:
            self._write("")
            self._shown = 0.0

    def _write(self, text: str) -> None:
        assert self.stream
        # A closed terminal must not stop the work
        with contextlib.suppress(OSError, ValueError):
            # Write from the first column, and clear the rest of the line
            self.stream.write(f"\r{text}\x1b[K")
            self.stream.flush()
