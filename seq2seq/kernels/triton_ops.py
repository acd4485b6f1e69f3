"""Functions that the Triton kernels share: rows of a head, ends of sentences, gates, exact products.

In a kernel, `row` is a vector of positions.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# exp x = 2^(x LOG2E), because GPUs have an instruction for powers of two
LOG2E = tl.constexpr(1.4426950408889634)
# True under TRITON_INTERPRET=1, which cannot run assembly
INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


@triton.jit
def load_rows(base, stride, row, column, last, WIDTH: tl.constexpr):
    """Load rows [0, last) of a matrix of WIDTH columns, 0 elsewhere: (rows, columns)."""
    mask = ((row >= 0) & (row < last))[:, None]  # (rows, 1)
    # Columns are a power of two, or a part of the head; no mask is needed if they are the whole head
    if column.shape[0] != WIDTH:
        mask = mask & (column < WIDTH)[None, :]
    return tl.load(base + row[:, None] * stride + column[None, :], mask=mask, other=0.0)


@triton.jit
def store_rows(base, stride, row, column, last, value, WIDTH: tl.constexpr):
    """Write rows [0, last) of a matrix of WIDTH columns."""
    mask = ((row >= 0) & (row < last))[:, None]
    if column.shape[0] != WIDTH:
        mask = mask & (column < WIDTH)[None, :]
    tl.store(base + row[:, None] * stride + column[None, :], value.to(base.dtype.element_ty), mask=mask)


@triton.jit
def log2(x):
    """Compute log2 x within 2^-22, in one instruction instead of twelve."""
    if INTERPRETED:
        return tl.log2(x)
    return tl.inline_asm_elementwise("lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)


@triton.jit
def reciprocal(x):
    """Compute 1 / x within one unit in the last place, in one instruction instead of eight."""
    if INTERPRETED:
        return 1.0 / x
    return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)


@triton.jit
def place(heads, chunks, chunk, WIDTH: tl.constexpr, COLUMNS: tl.constexpr):
    """Return this program's part of a head, head, first tile and sentence; neighboring programs differ in the part."""
    parts: tl.constexpr = (WIDTH + COLUMNS - 1) // COLUMNS
    program = tl.program_id(0) // parts
    sentence = (program // heads // chunks).to(tl.int64)  # 64 bits: it multiplies batch strides
    return tl.program_id(0) % parts, program % heads, program // heads % chunks * chunk, sentence


@triton.jit
def bound(end, sentence, length, ENDS: tl.constexpr):
    """Load the position after the last real one of a sentence, at most length."""
    return tl.minimum(tl.load(end + sentence), length).to(tl.int32) if ENDS else length


@triton.jit
def tanh(x):
    """Compute tanh x within 2^-11, in one instruction."""
    if INTERPRETED:
        return 1.0 - 2.0 / (1.0 + tl.exp2(x * (2.0 * LOG2E)))
    # Not pure, so that it is computed once: the compiler repeats pure code in every warp that needs the result
    return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=False, pack=1)


@triton.jit
def gate(b):
    """Compute sigmoid(b) in float32; for b of 16 bits within 2^-12, half of the rounding error of float16 at 1."""
    if b.dtype == tl.float32:
        return reciprocal(1.0 + tl.exp2(b * -LOG2E))
    return 0.5 * tanh(0.5 * b.to(tl.float32)) + 0.5


@triton.jit
def product(a, b, acc, WIDE: tl.constexpr):
    """Compute a @ b + acc, accumulated in float32; a is cast to b's type, or with WIDE both are cast to float32."""
    if WIDE:
        # tf32x3: three TF32 products are nearly as precise as one in float32
        return tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision="tf32x3")
    return tl.dot(a.to(b.dtype), b, acc)


@triton.jit
def narrow(weights, values, WIDE: tl.constexpr):
    """Cast weights to the type of the values by which they are multiplied."""
    return weights if WIDE else weights.to(values.dtype)


def aligned(x: Tensor) -> Tensor:
    """Return x with adjacent channels, and rows that start at multiples of 16 bytes if their width allows it.

    16 bytes are the widest load of a thread, and offsets in a sentence have 32 bits. Other tensors are copied.
    """
    unit = (x.stride(-1) == 1 or x.shape[-1] == 1) and x.shape[1] * x.stride(1) < 2**31
    even = x.data_ptr() % 16 == 0 and all(stride * x.element_size() % 16 == 0 for stride in x.stride()[:-1])
    return x if unit and (even or x.shape[-1] * x.element_size() % 16 != 0) else x.contiguous()


def unit_stride(x: Tensor) -> Tensor:
    """Return x with a last dimension of stride 1: itself, or a contiguous copy."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def needs_wide(dtype: torch.dtype) -> bool:
    """Return True if products need float32: for float32, and for bf16 in Triton's interpreter, whose bf16 is wrong."""
    return dtype == torch.float32 or (dtype == torch.bfloat16 and INTERPRETED.value)
