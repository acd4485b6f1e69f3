"""The switch of fused training kernels that no GPU has run yet: attention of short rows, and a sublayer's norm."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

# Of the process, not of a thread: a checkpointed layer runs again in the thread of its backward pass
_on = False


@contextmanager
def fused(on: bool = True) -> Iterator[None]:
    """Take the fused kernels in a block wherever they serve a call; on a CPU in Triton's interpreter."""
    global _on
    before, _on = _on, on
    try:
        yield
    finally:
        _on = before


def is_fused() -> bool:
    """Return True for an eager call inside `fused`; compilers fuse by themselves."""
    return _on and not torch.compiler.is_compiling()
