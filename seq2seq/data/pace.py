"""Progress of work on pairs, in the log."""

from __future__ import annotations

import logging
import time

log = logging.getLogger(__name__)

# Between two messages.
PACE_SECONDS = 5.0


class Pace:
    """Logger of progress in pairs, every PACE_SECONDS: count, total, and pairs per second.

    Args:
        what: The name of the work in messages.
        total: Number of pairs, where it is known.
    """

    def __init__(self, what: str, total: int | None = None) -> None:
        self.what = what
        self.total = total
        self.count = 0
        self.start = time.monotonic()
        self.reported = self.start

    def add(self, count: int) -> None:
        """Count `count` more pairs, and log if the last message is PACE_SECONDS old."""
        self.count += count
        now = time.monotonic()
        # Called for every block of pairs: a clock reading is cheap, a log line is not
        if now - self.reported >= PACE_SECONDS:
            self.reported = now
            # No total where the size of the input is unknown before its end
            share = f" of {self.total:,} ({100 * self.count / self.total:.0f}%)" if self.total else ""
            # The mean since the start: single blocks vary too much to extrapolate from
            rate = self.count / (now - self.start)
            log.info("%s: %s%s pairs, %s pairs/s", self.what, f"{self.count:,}", share, f"{rate:,.0f}")
