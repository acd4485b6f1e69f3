"""Dropout, residual sum and layer norm of a sublayer on a GPU: one kernel each way, no mask stored, no atomics.

The forward kernel computes s = x + dropout(y) and out = norm(s), the backward kernel dx and dy from the gradients of
both; each of its programs writes partial sums of the gradients of weight and bias. The backward kernel draws dropout's
mask again from the seed. Arguments that are None are left out of the kernel: without y, s is x; without weight there is
no norm; without a seed nothing is dropped; without ds, s has no other reader; without dy, dy is dx.

Arguments in memory: x, y, s, out and their gradients (rows, WIDTH); weight and bias (WIDTH,); stats (2, rows), mean and
1 / standard deviation; seed (1,); partial (programs, 2, WIDTH). All are contiguous; stats and partial are float32.

Compile-time constants:
    WIDTH: Channels. BLOCK: WIDTH rounded up to a power of two. ROWS: Rows that a program takes at a time.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from seq2seq.kernels.triton_ops import load_rows, store_rows

# Minimum of numbers that a program takes at a time: four rows of 512
TILE = 2048
# Backward programs: three for each multiprocessor of a big GPU, as many as its registers allow. Their sums for weight
# and bias are 5% of the bytes of a call of 16,384 rows in bf16.
PROGRAMS = 396


@triton.jit
def kept(seed, row, column, threshold, WIDTH: tl.constexpr):
    """Draw the mask of rows and columns, True with probability threshold / 2^16: (rows, columns)."""
    # A thread has eight neighboring elements of a row, which share a counter, so Philox runs once for them
    counter = row[:, None] * ((WIDTH + 7) // 8) + column[None, :] // 8
    w0, w1, w2, w3 = tl.randint4x(tl.load(seed), counter)
    place = column[None, :] % 8
    word = tl.where(place < 4, tl.where(place < 2, w0, w1), tl.where(place < 6, w2, w3))
    return ((word >> (place % 2 * 16)) & 0xFFFF) < threshold


@triton.jit(do_not_specialize=("rows",))
def residual_norm_forward(
    x, y, seed, weight, bias, s, out, stats, rows, eps, threshold, scale,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Compute s = x + dropout(y), and out = (s - mean) * inverse * weight + bias, inverse = 1 / deviation."""
    start = tl.program_id(0) * ROWS
    row, column, last = tl.arange(0, ROWS), tl.arange(0, BLOCK), rows - start
    at = start.to(tl.int64) * WIDTH
    value = load_rows(x + at, WIDTH, row, column, last, WIDTH)
    if y is not None:
        more = load_rows(y + at, WIDTH, row, column, last, WIDTH).to(tl.float32)
        if seed is not None:
            more = tl.where(kept(seed, start + row, column, threshold, WIDTH), more * scale, 0.0)
        # The norm takes the rounded sum, which the backward kernel and the next sublayer read
        value = (value.to(tl.float32) + more).to(s.dtype.element_ty)
        store_rows(s + at, WIDTH, row, column, last, value, WIDTH)
    if weight is not None:
        value = value.to(tl.float32)
        mean = tl.sum(value, 1) / WIDTH
        value -= mean[:, None]
        if BLOCK != WIDTH:
            value = tl.where((column < WIDTH)[None, :], value, 0.0)
        inverse = tl.rsqrt(tl.sum(value * value, 1) / WIDTH + eps)
        tl.store(stats + start + row, mean, mask=row < last)
        tl.store(stats + rows + start + row, inverse, mask=row < last)
        inside = column < WIDTH
        w = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)[None, :]
        b = tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)[None, :]
        store_rows(out + at, WIDTH, row, column, last, value * inverse[:, None] * w + b, WIDTH)


@triton.jit(do_not_specialize=("rows",))
def residual_norm_backward(
    ds, dout, s, stats, weight, seed, dx, dy, partial, rows, threshold, scale,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Compute dx = ds + (g - mean g - z mean(g z)) * inverse, g = dout weight, z = norm(s), and dy = dropout(dx).

    Without a norm dx is ds, and is not written.
    """
    row, column = tl.arange(0, ROWS), tl.arange(0, BLOCK)
    inside = column < WIDTH
    # Summed over the program's tiles, and then over the rows of a tile
    dweight, dbias = tl.zeros((ROWS, BLOCK), tl.float32), tl.zeros((ROWS, BLOCK), tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0)):
        start = tile * ROWS
        last = rows - start
        at = start.to(tl.int64) * WIDTH
        grad = tl.zeros((ROWS, BLOCK), tl.float32)
        if weight is not None:
            g = load_rows(dout + at, WIDTH, row, column, last, WIDTH).to(tl.float32)
            z = load_rows(s + at, WIDTH, row, column, last, WIDTH).to(tl.float32)
            real = tl.minimum(row, last - 1)
            mean = tl.load(stats + start + real)
            inverse = tl.load(stats + rows + start + real)
            # Outside the rows, g is 0, and so are all products with z
            z = (z - mean[:, None]) * inverse[:, None]
            dweight += g * z
            dbias += g
            g *= tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)[None, :]
            along = tl.sum(g * z, 1) / WIDTH
            level = tl.sum(g, 1) / WIDTH
            grad = (g - level[:, None] - z * along[:, None]) * inverse[:, None]
        if ds is not None:
            grad += load_rows(ds + at, WIDTH, row, column, last, WIDTH).to(tl.float32)
        if weight is not None:
            store_rows(dx + at, WIDTH, row, column, last, grad, WIDTH)
        if dy is not None:
            if seed is not None:
                grad = tl.where(kept(seed, start + row, column, threshold, WIDTH), grad * scale, 0.0)
            store_rows(dy + at, WIDTH, row, column, last, grad, WIDTH)
    if weight is not None:
        own = partial + tl.program_id(0) * (2 * WIDTH) + column
        tl.store(own, tl.sum(dweight, 0), mask=inside)
        tl.store(own + WIDTH, tl.sum(dbias, 0), mask=inside)


def forward(
    x: Tensor, y: Tensor | None, seed: Tensor | None, weight: Tensor | None, bias: Tensor | None,
    *, eps: float, keep: int,
) -> tuple[Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    """Return s = x + dropout(y) and norm(s) in x's type, and the mean and 1 / deviation of each row, (2, rows).

    Args:
        y: None for s = x.
        seed: (1,) int64; None drops nothing.
        weight: None for no norm.
        keep: The keep probability is keep / 256.
    """
    width = x.shape[-1]
    rows = x.numel() // width
    s = x if y is None else torch.empty_like(x)
    out = stats = None
    if weight is not None:
        out, stats = torch.empty_like(x), torch.empty(2, rows, dtype=torch.float32, device=x.device)
    values = constants("forward", width)
    with torch.cuda.device_of(x):
        residual_norm_forward[(triton.cdiv(rows, values["ROWS"]),)](
            x, y, seed, weight, bias, s, out, stats, rows, eps, keep * 256, 256 / keep, **values
        )
    return s, out, stats


def backward(
    ds: Tensor | None, dout: Tensor | None, s: Tensor | None, stats: Tensor | None, weight: Tensor | None,
    seed: Tensor | None, *, keep: int, dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    """Return dx in s's type, dy, and the gradients of weight and bias (2, D) in float32.

    Args:
        ds: None if s has no other reader.
        s: None without a norm, as are dout, stats and weight.
        dtype: Type of y; None without y.
    """
    like = ds if s is None else s
    assert like is not None
    width = like.shape[-1]
    rows = like.numel() // width
    values = constants("backward", width)
    programs = triton.cdiv(rows, values["ROWS"])
    dx, partial = like, None
    if weight is not None:
        programs = min(programs, PROGRAMS)
        dx = torch.empty_like(like)
        partial = torch.empty(programs, 2, width, dtype=torch.float32, device=like.device)
    # With nothing dropped, dx and dy are the same numbers
    same = dtype == like.dtype and seed is None
    dy = None if same or dtype is None else torch.empty_like(like, dtype=dtype)
    with torch.cuda.device_of(like):
        residual_norm_backward[(programs,)](
            ds, dout, s, stats, weight, seed, dx, dy, partial, rows, keep * 256, 256 / keep, **values
        )
    return dx, dx if same else dy, None if partial is None else partial.sum(0)


def constants(direction: str, width: int) -> dict[str, int]:
    """Return a kernel's compile-time constants and launch settings."""
    block = triton.next_power_of_2(width)
    tile = max(block, TILE)
    # The backward kernel has more numbers of each column in registers
    warps = 4 if direction == "forward" and tile == TILE else 8
    return {"WIDTH": width, "BLOCK": block, "ROWS": tile // block, "num_warps": warps}
