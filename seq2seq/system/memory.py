"""How the process uses its memory."""

from __future__ import annotations

import ctypes
import os
import sys

# Parameters of glibc's mallopt (malloc.h).
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4


def keep_freed_memory() -> None:
    """Keep the memory of freed CPU tensors for later tensors, instead of returning it to the system.

    glibc takes every block above 32 MiB from the system, and returns the free end of its heap. Each step of training or
    of a search then touches fresh pages, which takes up to a fifth of its time. This function does nothing with another
    C library, or if an environment variable (such as MALLOC_TRIM_THRESHOLD_) configures malloc.
    """
    chosen = any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ)
    if chosen or sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        # Place all blocks in the heap, and never return its free end
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, -1)
