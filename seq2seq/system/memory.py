"""Memory of the process: freed blocks stay, and the heap has large pages."""

from __future__ import annotations

import ctypes
import os
import sys

# Parameters of glibc's mallopt (malloc.h), and advice of the kernel's madvise (mman.h).
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _MADV_HUGEPAGE = -1, -4, 14
# Part of the heap with large pages, and the size of such a page.
_ROOM, _PAGE = 1 << 30, 1 << 21


def keep_freed_memory() -> None:
    """Keep the memory of freed CPU tensors for later tensors, instead of returning it to the system.

    glibc takes every block above 32 MiB from the system, and returns the free end of its heap. Each step of training or
    of a search then touches fresh pages, which takes up to a fifth of its time. The first GiB of the heap also gets
    pages of 2 MiB where the system has them: a decoding step reads all weights, and with pages of 4 KiB the search for
    their addresses takes up to a tenth of its time. This function does nothing with another C library, or if an
    environment variable (such as MALLOC_TRIM_THRESHOLD_) configures malloc.
    """
    chosen = any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ)
    if chosen or sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt"):
        return
    # Place all blocks in the heap, and never return its free end
    libc.mallopt(_M_MMAP_MAX, 0)
    libc.mallopt(_M_TRIM_THRESHOLD, -1)
    libc.malloc.argtypes, libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    libc.free.argtypes = [ctypes.c_void_p]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    # The freed block stays in the heap; until it is used, it takes no memory
    if block := libc.malloc(_ROOM):
        start = -(-block // _PAGE) * _PAGE
        libc.madvise(start, block + _ROOM - start & -_PAGE, _MADV_HUGEPAGE)
        libc.free(block)
