"""Line on a terminal that tells how far a translation is. Imports no torch."""

from __future__ import annotations

import time
from typing import TextIO

from seq2seq.settings.values import clock

# Seconds between two lines.
_INTERVAL = 1.0


class ProgressLine:
    """Shows the share that is done, lines a second, and the time left, in a line that each next one replaces.

    Args:
        total: Lines of the input.
        done: Lines that were translated before.
        stream: A terminal.
    """

    def __init__(self, total: int, *, done: int, stream: TextIO) -> None:
        self.total = total
        self.done = done
        self.stream = stream
        self._before = done
        self._began = time.monotonic()
        self._shown = 0.0

    def advance(self, lines: int) -> None:
        """Count lines that are done, and show the line if it is a second old."""
        self.done = min(self.done + lines, self.total)
        now = time.monotonic()
        if now - self._shown >= _INTERVAL:
            self._shown = now
            self._write(self.text(now - self._began))

    def text(self, seconds: float) -> str:
        """Return the line after so many seconds."""
        rate = (self.done - self._before) / seconds if seconds > 0 else 0.0
        share = self.done / self.total if self.total else 1.0
        left = clock((self.total - self.done) / rate) if rate else "?"
        return f"{share:4.0%}  {self.done:,} of {self.total:,} lines  {rate:,.1f} lines/s  {left} left"

    def clear(self) -> None:
        """Take the line away, for other output or at the end."""
        if self._shown:
            self._write("")
            self._shown = 0.0

    def _write(self, text: str) -> None:
        try:
            # To the first column, and clear what the last line had beyond this one
            self.stream.write(f"\r{text}\x1b[K")
            self.stream.flush()
        # A terminal that is gone must not stop the work
        except (OSError, ValueError):
            pass
