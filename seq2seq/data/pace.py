"""Progress of work on pairs, in the log."""

from __future__ import annotations

import dataclasses
import logging
import time

log = logging.getLogger(__name__)

# Seconds between two messages.
PACE_SECONDS = 5.0


@dataclasses.dataclass
class Pace:
    """Log the number of pairs done, their share of a known total, and pairs per second, every PACE_SECONDS."""

    what: str
    total: int | None = None

    def __post_init__(self) -> None:
        self.count = 0
        self.start = time.monotonic()
        self.reported = self.start

    def add(self, count: int) -> None:
        """Count `count` more pairs, and log if the last message is old enough."""
        self.count += count
        now = time.monotonic()
        if now - self.reported >= PACE_SECONDS:
            self.reported = now
            share = f" of {self.total:,} ({100 * self.count / self.total:.0f}%)" if self.total else ""
            # The mean since the start: single blocks vary too much
            rate = self.count / (now - self.start)
            log.info("%s: %s%s pairs, %s pairs/s", self.what, f"{self.count:,}", share, f"{rate:,.0f}")
