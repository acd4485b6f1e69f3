"""Compact rows in Triton: all K taps of a row in pieces of eight, and their conversion to square matrices and back.

In a square matrix of rows i and sources j, a cell has tap j + offset_i, and at least half of the cells have no tap.
Exponentials, DropConnect and gradients are therefore computed on compact rows (rows, TAPS), where TAPS is K rounded up
to a power of two, at least 16, and the square is gathered from them.

Compact rows are tuples of TAPS / 8 pieces (rows, 8). In a piece, eight neighboring lanes share a row, so the sum of a
row takes three exchanges between lanes. In one tensor (rows, TAPS), compilers would lay a row across a whole warp, and
its sum would take five exchanges.

Rows after the end of a sentence read its last row again, which saves masks: their results are not stored, and their dy
is zero.
"""

from __future__ import annotations

import triton
import triton.language as tl

from seq2seq.kernels.triton_ops import LOG2E

# Taps of a piece
PIECE = tl.constexpr(8)


@triton.jit
def load_taps(logits, stride, row, taps, TAPS: tl.constexpr):
    """Load the logits of rows, -inf from K on: TAPS / 8 pieces (rows, 8)."""
    pieces = ()
    for s in tl.static_range(TAPS // PIECE):
        tap = s * PIECE + tl.arange(0, PIECE)[None, :]
        pieces += (tl.load(logits + row[:, None] * stride + tap, mask=tap < taps, other=float("-inf")),)
    return pieces


@triton.jit
def store_taps(to, stride, row, length, taps, pieces):
    """Write the compact rows before `length`."""
    for s in tl.static_range(len(pieces)):
        tap = s * PIECE + tl.arange(0, PIECE)[None, :]
        mask = (tap < taps) & (row < length)[:, None]
        tl.store(to + row[:, None] * stride + tap, pieces[s].to(to.dtype.element_ty), mask=mask)


@triton.jit
def exponentials(scores, norm):
    """Return pieces of 2^(scores LOG2E - norm), with one norm per row."""
    pieces = ()
    for s in tl.static_range(len(scores)):
        pieces += (tl.exp2(scores[s].to(tl.float32) * LOG2E - norm[:, None]),)
    return pieces


@triton.jit
def times(a, b):
    """Multiply two tuples of pieces."""
    pieces = ()
    for s in tl.static_range(len(a)):
        pieces += (a[s] * b[s],)
    return pieces


@triton.jit
def less(a, b, factor):
    """Compute a - factor b, with one factor per row, for two tuples of pieces."""
    pieces = ()
    for s in tl.static_range(len(a)):
        pieces += (a[s] - factor[:, None] * b[s],)
    return pieces


@triton.jit
def largest(pieces):
    """Return the maximum of each row: (rows,)."""
    most = pieces[0]
    for s in tl.static_range(1, len(pieces)):
        most = tl.maximum(most, pieces[s])
    return tl.max(most.to(tl.float32), 1)


@triton.jit
def total(pieces):
    """Sum each row: (rows,)."""
    part = pieces[0]
    for s in tl.static_range(1, len(pieces)):
        part += pieces[s]
    return tl.sum(part, 1)


@triton.jit
def load_words(keep, row, stride, WORDS: tl.constexpr):
    """Load the DropConnect words of rows: a tuple of WORDS."""
    words = ()
    for n in tl.static_range(WORDS):
        words += (tl.load(keep + row * stride + n),)
    return words


@triton.jit
def drop(pieces, words, scale):
    """Multiply kept taps by scale and dropped taps by 0; without words, return the pieces."""
    dropped = ()
    if len(words) > 0:
        for s in tl.static_range(len(pieces)):
            # Each of the eight lanes has a different bit
            bit = 1 << (tl.arange(0, PIECE)[None, :] + s % 4 * PIECE)
            dropped += (tl.where((words[s // 4][:, None] & bit) != 0, pieces[s] * scale, 0.0),)
    else:
        dropped = pieces
    return dropped


@triton.jit
def joined(p):
    """Join pieces: (rows, TAPS)."""
    rows: tl.constexpr = p[0].shape[0]
    # tl.join adds a last dimension of two: join pieces whose numbers differ by 4, then by 2, then by 1
    if len(p) == 2:
        matrix = tl.reshape(tl.permute(tl.join(p[0], p[1]), (0, 2, 1)), (rows, 16))
    elif len(p) == 4:
        four = tl.join(tl.join(p[0], p[2]), tl.join(p[1], p[3]))  # (rows, 8, 2, 2)
        matrix = tl.reshape(tl.permute(four, (0, 2, 3, 1)), (rows, 32))
    else:
        even = tl.join(tl.join(p[0], p[4]), tl.join(p[2], p[6]))
        odd = tl.join(tl.join(p[1], p[5]), tl.join(p[3], p[7]))
        matrix = tl.reshape(tl.permute(tl.join(even, odd), (0, 2, 3, 4, 1)), (rows, 64))
    return matrix


@triton.jit
def divided(matrix):
    """Divide (rows, TAPS) into pieces: the inverse of `joined`."""
    rows: tl.constexpr = matrix.shape[0]
    if matrix.shape[1] == 16:
        pieces = tl.split(tl.permute(tl.reshape(matrix, (rows, 2, 8)), (0, 2, 1)))
    elif matrix.shape[1] == 32:
        a, b = tl.split(tl.permute(tl.reshape(matrix, (rows, 2, 2, 8)), (0, 3, 1, 2)))  # even, odd
        a0, a1 = tl.split(a)
        b0, b1 = tl.split(b)
        pieces = (a0, b0, a1, b1)
    else:
        even, odd = tl.split(tl.permute(tl.reshape(matrix, (rows, 2, 2, 2, 8)), (0, 4, 1, 2, 3)))
        a, c = tl.split(even)  # pieces whose numbers are 0 and 2 modulo 4
        b, d = tl.split(odd)  # 1 and 3
        a0, a1 = tl.split(a)
        b0, b1 = tl.split(b)
        c0, c1 = tl.split(c)
        d0, d1 = tl.split(d)
        pieces = (a0, b0, c0, d0, a1, b1, c1, d1)
    return pieces


@triton.jit
def skew(matrix, offset, COUNT: tl.constexpr):
    """Gather cell (i, j + offset_i) for each j below COUNT, 0 outside the matrix: (rows, COUNT)."""
    SIZE: tl.constexpr = matrix.shape[1]
    at = tl.arange(0, COUNT)[None, :] + offset[:, None]
    # One comparison: a negative number read as unsigned is large
    inside = at.to(tl.uint32, bitcast=True) < SIZE
    return tl.where(inside, tl.gather(matrix, at & (SIZE - 1), 1), 0.0)


@triton.jit
def squares(matrix, taps, TILE: tl.constexpr, BACKS: tl.constexpr):
    """Gather a tile's compact rows into squares (TILE, TILE) for itself and for the BACKS tiles before it."""
    TAPS: tl.constexpr = matrix.shape[1]
    # Tiles that lie TAPS positions apart have the same gathered matrix, and each keeps a part of it
    TURNS: tl.constexpr = (TAPS + TILE - 1) // TILE
    i = tl.arange(0, TILE)
    tap = i[None, :] - i[:, None] + (taps - 1)  # in the tile's own square
    gathered, found = (), ()
    for s in tl.static_range(BACKS + 1):
        if s < TURNS:
            gathered += (tl.gather(matrix, (tap - s * TILE) & (TAPS - 1), 1),)
        else:
            gathered += (gathered[s - TURNS],)
        inside = (tap - s * TILE).to(tl.uint32, bitcast=True) < TAPS
        found += (tl.where(inside, gathered[s], 0.0),)
    return found


@triton.jit
def compacted(square, taps, TAPS: tl.constexpr):
    """Gather a tile's squares into compact rows, (TILE, TAPS): the inverse of `squares`."""
    TILE: tl.constexpr = square[0].shape[0]
    TURNS: tl.constexpr = (TAPS + TILE - 1) // TILE
    i = tl.arange(0, TILE)
    tap = i[None, :] - i[:, None] + (taps - 1)
    source = tl.arange(0, TAPS)[None, :] + i[:, None] - (taps - 1)  # in the tile's own square
    found = tl.zeros((TILE, TAPS), tl.float32)
    for r in tl.static_range(TURNS):
        if r < len(square):  # tiles further back hold no tap below K
            # Tiles that lie TAPS positions apart each hold a part of one matrix
            matrix = square[r]
            for s in tl.static_range(r + TURNS, len(square), TURNS):
                matrix = tl.where((tap - s * TILE).to(tl.uint32, bitcast=True) < TAPS, square[s], matrix)
            part = tl.gather(matrix, source & (TILE - 1), 1)
            if TURNS == 1:
                found = part
            else:
                found = tl.where(((source + r * TILE) & (TAPS - 1)) < TILE, part, found)
    return found
