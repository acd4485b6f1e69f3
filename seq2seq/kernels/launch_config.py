"""Launch settings of the Triton kernels: tile sizes, warps, stages, registers.

A tile is a number of positions of one head. A position reads K - 1 positions back (after a shift, for same padding), so
a tile reads itself and the ceil((K - 1) / tile) tiles before it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast

import torch
from torch import Tensor

# The kernels read at most two DropConnect words of a row, 32 taps each
MAX_TAPS = 64
# A backward kernel stores up to 32,768 numbers for each static kernel, and computes their offsets in 32 bits
MAX_KERNELS = 1 << 15
# In a direct kernel, one program takes all channels of a head
MAX_HEAD_DIM = 256
# Channels of a head of one-tile attention, up to which its kernels were compiled without spills (benchmarks/aot.py)
MAX_ATTENTION_HEAD_DIM = 128
# Chunks amortize a program's setup. They grow beyond this many programs: four for each multiprocessor of a big GPU
PROGRAMS = 528
# Up to this many taps, one multiply-add per tap is faster than a band matrix, whose rows have 2 * 16 columns
DIRECT_TAPS = 3
# Positions of the longest sentence that fits one tile
ONE_TILE = 64
# Compute capability 9.0, which is assumed without a GPU
HOPPER = 90


class Config(NamedTuple):
    """Launch settings of one kernel.

    Attributes:
        tile: Positions of a tile.
        chunk: Maximum number of consecutive tiles that a program works through.
        num_warps: Warps of a program, 32 threads each.
        num_stages: Stages of pipelined loads.
        columns: Maximum number of a head's channels that a program takes.
        registers: Register limit of a thread; without one the compiler may spill a few to fit one more block.
    """

    tile: int
    chunk: int
    num_warps: int
    num_stages: int
    columns: int = 128
    registers: int | None = None

    @property
    def launch(self) -> dict[str, int]:
        """Return the settings under Triton's names."""
        limit = {} if self.registers is None else {"maxnreg": self.registers}
        return {"num_warps": self.num_warps, "num_stages": self.num_stages, **limit}


# Settings by operation, see `override`
_overrides: dict[str, Config] = {}
# Caches of results that depend on the settings
_caches: list[Any] = []

_P = ParamSpec("_P")
_T = TypeVar("_T")


def remembered(choose: Callable[_P, _T]) -> Callable[_P, _T]:
    """Cache a function that reads launch settings until `override` changes them; callers must not modify results."""
    cached = functools.cache(choose)
    _caches.append(cached)
    return cast("Callable[_P, _T]", cached)


def backs(taps: int, tile: int) -> int:
    """Return the number of earlier tiles that a tile reads, at least 1."""
    return max(1, -(-(taps - 1) // tile))


def columns(head_dim: int, most: int = MAX_HEAD_DIM, least: int = 16) -> int:
    """Return the channels of a head that a program takes, at most `most`, as a power of two from `least`."""
    return min(most, max(least, 1 << (head_dim - 1).bit_length()))


def is_direct(op: str, taps: int) -> bool:
    """Return True if an operation takes one multiply-add per tap instead of a band matrix."""
    return taps <= DIRECT_TAPS and op not in _overrides


@remembered
def config(op: str, taps: int, head_dim: int, dtype: torch.dtype, arch: int = HOPPER) -> Config:
    """Return the launch settings of an operation, from `override` if it has set them.

    Args:
        op: "dynamicconv", "lightconv" or "<either>_backward".
        taps: K.
        head_dim: Channels of a head.
        dtype: Type of the values; float32 takes twice the registers.
        arch: A GPU's compute capability, 90 for 9.0.
    """
    if op in _overrides:
        return _overrides[op]
    # Of the settings that spill no registers on sm_80 to sm_100 (benchmarks/aot.py), the best by estimate
    # (benchmarks/roofline); not yet chosen by timing
    if is_direct(op, taps):
        across = columns(head_dim)
        tile = 32 if across <= 64 else 16
        warps = 8 if across > 128 else 4
        return Config(tile, chunk=1, num_warps=warps, num_stages=2, columns=256)
    wide = dtype == torch.float32
    most = _most_columns(op, taps, wide)
    across = columns(head_dim, most)  # channels a program takes
    backward, short = op.endswith("_backward"), 17 if op.startswith("lightconv") else 32
    # With one earlier tile, a tile of 16 reads 17 taps, a tile of 32 reads 33, and a tile of 64 reads any K
    tile = 16 if taps <= 17 or wide else 32 if taps <= short or (backward and arch != HOPPER) else 64
    unaligned = head_dim % 16 != 0  # every number is loaded separately, with its own address
    heavy = (backward and taps > short) or (wide and taps > 17)
    stages = 1  # only sm_90 has the registers for more
    if arch == HOPPER and op.startswith("lightconv"):
        # Tiles are short: loading one tile ahead hides half of a load
        stages = 2 if wide else 3
    elif arch == HOPPER and backward and tile < 64:
        stages = 2
    limit = None
    if op.startswith("lightconv") and arch != HOPPER and not heavy:
        # Without a limit the compiler spills; with 168 registers, three blocks of 128 threads fit a multiprocessor
        limit = 255 if backward or across > 64 else 168
    return Config(tile, 16, 8 if heavy or unaligned else 4, stages, most, limit)


def one_tile(op: str, taps: int, length: int, head_dim: int, dtype: torch.dtype) -> int:
    """Return the size of a tile that holds a whole sentence; 0 if the one-tile kernels do not serve it."""
    if is_direct(op, taps) or op in _overrides or not 0 < length <= ONE_TILE:
        return 0
    # A program takes a whole head, for which there are too few registers
    if op == "dynamicconv_backward" and dtype == torch.float32 and head_dim > 64:
        return 0
    return columns(length)


@remembered
def one_tile_config(op: str, tile: int, head_dim: int, dtype: torch.dtype, arch: int = HOPPER) -> Config:
    """Return the launch settings for sentences of one tile, from `override` if it has set "<op>_one_tile"."""
    if f"{op}_one_tile" in _overrides:
        return _overrides[f"{op}_one_tile"]
    if op.startswith("lightconv"):
        # A program loads the next two sentences while it computes one
        heavy = tile > 32 and op.endswith("_backward")
        most = 64 if dtype != torch.float32 else 16 if heavy else 32
        warps, stages = (8, 1) if heavy and arch != HOPPER else (4 if tile > 32 else 2, 3)
        return Config(tile, chunk=1, num_warps=warps, num_stages=stages, columns=most)
    # Two warps for a tile of 32 positions and 64 channels take fewer instructions than four, without spills
    size = tile * max(64, columns(head_dim)) * (2 if dtype == torch.float32 else 1)
    return Config(tile, chunk=1, num_warps=min(8, max(1, size // 1024)), num_stages=1, columns=MAX_HEAD_DIM)


def attention_warps(queries: int, keys: int, head_dim: int, dtype: torch.dtype, *, backward: bool) -> int:
    """Return the warps of a program of one-tile attention, or 0 if rows are too long or registers too few.

    Args:
        queries: T.
        keys: S.
        head_dim: Channels of a head.
        dtype: Type of the values; products in float32 take many registers.
        backward: True for the backward kernel, which has more tiles.
    """
    longest = max(queries, keys)
    # Numbers of the largest tile
    size = columns(longest) * max(64, columns(head_dim))
    wide = dtype == torch.float32
    if longest > ONE_TILE or head_dim > MAX_ATTENTION_HEAD_DIM or size > (2048 if wide else 8192):
        return 0
    # No registers are spilled on sm_80 to sm_100 (benchmarks/aot.py); not yet chosen by timing
    return min(8, max(1, size // 1024) * (2 if wide else 1) * (2 if backward else 1))


def _most_columns(op: str, taps: int, wide: bool) -> int:
    """Return the number of channels for which a program has enough registers."""
    if not op.endswith("_backward"):
        return 64 if wide else 128
    if wide:
        return 64 if taps <= 17 else 16 if op == "lightconv_backward" and taps > 49 else 32
    return 64 if taps > 32 or op == "lightconv_backward" else 128


def target(x: Tensor) -> int:
    """Return the compute capability of x's GPU, 90 for 9.0; without a GPU (Triton's interpreter) 90."""
    return _capability(x.device) if x.is_cuda else HOPPER


@functools.cache
def _capability(device: torch.device) -> int:
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def chunk_size(op: str, settings: Config, tiles: int) -> int:
    """Return the consecutive tiles per program: `settings.chunk`, or fewer so that `tiles` fill PROGRAMS programs."""
    return settings.chunk if op in _overrides else max(1, min(settings.chunk, tiles // PROGRAMS))


@contextmanager
def override(op: str, settings: Config) -> Iterator[None]:
    """Launch `op` with exactly these settings inside the block; for tuning and tests."""
    _overrides[op] = settings
    try:
        for each in _caches:
            each.cache_clear()
        yield
    finally:
        del _overrides[op]
        for each in _caches:
            each.cache_clear()
