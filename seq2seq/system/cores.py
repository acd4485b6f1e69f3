"""Cores that other programs leave free."""

from __future__ import annotations

import contextlib
import os
import time

_SHORTEST = 0.2  # seconds of a measurement; the system counts in hundredths


class Cores:
    """Measures from its construction on how many cores other programs leave to this one."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._idle = _idle_seconds()
        self._own = time.process_time()

    def threads(self, most: int) -> int:
        """Return the number of threads to compute with, 1 to `most`: threads on busy cores delay all others.

        A number that the user has set by OMP_NUM_THREADS stays.
        """
        if most == 1 or "OMP_NUM_THREADS" in os.environ:
            return most
        time.sleep(max(0.0, self._began + _SHORTEST - time.monotonic()))
        free = _idle_seconds() - self._idle + time.process_time() - self._own
        return max(1, min(most, round(free / (time.monotonic() - self._began))))


def _idle_seconds() -> float:
    """Return the seconds that all cores have had for this program: idle, or given to programs of low priority."""
    fields = ["0"] * 6
    with contextlib.suppress(OSError), open("/proc/stat", encoding="ascii") as file:
        fields = file.readline().split()
    ticks = sum(int(fields[i]) for i in (2, 4, 5))  # low priority, idle, waiting for disks
    # All cores count as free on a system that does not say
    return ticks / os.sysconf("SC_CLK_TCK") or time.monotonic() * (os.cpu_count() or 1)
