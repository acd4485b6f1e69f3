"""Switch for fused training kernels that have not run on a GPU yet: attention of short rows, and a sublayer's norm."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

# One switch for the whole process, because a checkpointed layer runs again in the thread of its backward pass
_on = False


@contextmanager
def fused(on: bool = True) -> Iterator[None]:
    """Use the fused kernels in a block for all calls that they serve; on a CPU this needs Triton's interpreter."""
    global _on
    before, _on = _on, on
    try:
        yield
    finally:
        _on = before


def is_fused() -> bool:
    """Return True for an eager call inside `fused`; compilers fuse by themselves."""
    return _on and not torch.compiler.is_compiling()
