"""DynamicConv of sentences that fit one tile: no tile before it, no loop, nothing to finish for a neighbor.

A program takes one head of one sentence. The softmax works on compact rows of all K taps, (TILE, TAPS); then the band
is gathered, a square matrix (TILE, TILE) of the taps whose source lies in the tile: row t's tap k reads source
t + k - left, so that the cell of row t and source u has tap u - t + left. Causal or not differs in `left` alone.

Arguments are those of `triton.py` and so are the constants, but for
    TILE: Positions of a sentence, as a power of two from 16. TAPS: K, as a power of two from 16.
    COLUMNS: All channels of a head, as a power of two.

Compact rows are stored as (TAPS / 8, TILE, 8), see `triton_ops.taps_of`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from seq2seq.kernels.triton_ops import (
    LANES,
    LOG2E,
    bounds,
    deep,
    kept,
    load_rows,
    log2,
    narrow,
    product,
    reciprocal,
    row_max,
    row_sum,
    store_rows,
)

# sizes that vary by batch or layer: a kernel is not compiled anew because one of them is 1 or a multiple of 16
VARIES = ("length", "taps", "shift", "logit_batch", "logit_row", "logit_head")


@triton.jit
def _compact(TAPS: tl.constexpr):
    """Return the tap of each cell of compact rows: (TAPS / 8, 1, 8)."""
    return tl.arange(0, TAPS // LANES)[:, None, None] * LANES + tl.arange(0, LANES)[None, None, :]


@triton.jit
def _fold(matrix, TILE: tl.constexpr, SIZE: tl.constexpr):
    """Lay out (TILE, SIZE) as (SIZE / 8, TILE, 8)."""
    return tl.permute(tl.reshape(matrix, (TILE, SIZE // LANES, LANES)), (1, 0, 2))


@triton.jit
def _flat(matrix, TILE: tl.constexpr, SIZE: tl.constexpr):
    """Lay out (SIZE / 8, TILE, 8) as (TILE, SIZE)."""
    return tl.reshape(tl.permute(matrix, (1, 0, 2)), (TILE, SIZE))


@triton.jit
def _skew(matrix, offset, TILE: tl.constexpr, SIZE: tl.constexpr, COUNT: tl.constexpr):
    """Gather cell (i, j + offset_i) of (TILE, SIZE) for j < COUNT, 0 where there is none: (TILE, COUNT)."""
    j = tl.arange(0, COUNT)[None, :] + offset[:, None]
    # one comparison: a negative number without its sign is a great one
    there = j.to(tl.uint32, bitcast=True) < SIZE
    return tl.where(there, tl.gather(matrix, j & (SIZE - 1), 1), 0.0)


@triton.jit(do_not_specialize=VARIES)
def one_tile_forward(
    x, logits, keep, start, end, y, lse,
    length, taps, shift, heads, scale,
    x_batch, x_row, logit_batch, logit_row, logit_head,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, TILE: tl.constexpr, TAPS: tl.constexpr,
    WORDS: tl.constexpr, STARTS: tl.constexpr, ENDS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Compute the same as band_forward."""
    head = tl.program_id(0) % heads
    sentence = (tl.program_id(0) // heads).to(tl.int64)  # 64 bits: it multiplies batch strides
    at = sentence * length * heads + head  # of position 0 in (B, T, H)
    row, column, tap = tl.arange(0, TILE), tl.arange(0, COLUMNS), _compact(TAPS)
    inside = row < length
    # all logits of the sentence, in units of log2: (TAPS / 8, TILE, 8)
    logits += sentence * logit_batch + head * logit_head
    real = (tap < taps) & deep(inside)
    scores = tl.load(logits + deep(row) * logit_row + tap, mask=real, other=float("-inf")).to(tl.float32) * LOG2E
    first, last = bounds(start, end, sentence, length, STARTS, ENDS)
    values = load_rows(x + sentence * x_batch + head * WIDTH, x_row, row, column, first, last, WIDTH)
    highest = tl.where(inside, row_max(scores), 0.0)  # rows after the end have no logits: no -inf - -inf
    weights = tl.exp2(scores - deep(highest))
    sums = tl.where(inside, row_sum(weights), 1.0)  # before DropConnect, which does not normalize anew
    if WORDS:
        weights = tl.where(kept(keep + at * WORDS, row, heads * WORDS, tap, inside, WORDS), weights, 0.0)
    # row t, source u: tap u - t + left
    band = _skew(_flat(narrow(weights, values, WIDE), TILE, TAPS), taps - 1 - shift - row, TILE, TAPS, TILE)
    mixed = product(band, values, tl.zeros((TILE, COLUMNS), tl.float32), WIDE)
    mixed *= (scale * reciprocal(sums))[:, None]
    tl.store(lse + at + row * heads, highest + log2(sums), mask=inside)
    store_rows(y + at * WIDTH, heads * WIDTH, row, column, 0, length, mixed, WIDTH)


@triton.jit(do_not_specialize=VARIES)
def one_tile_backward(
    dy, x, logits, lse, keep, start, end, dx, dlogits,
    length, taps, shift, heads, scale,
    dy_batch, dy_row, x_batch, x_row, logit_batch, logit_row, logit_head,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, TILE: tl.constexpr, TAPS: tl.constexpr,
    WORDS: tl.constexpr, STARTS: tl.constexpr, ENDS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Compute the same as band_backward; taps whose source is outside the sentence have g = 0."""
    head = tl.program_id(0) % heads
    sentence = (tl.program_id(0) // heads).to(tl.int64)
    at = sentence * length * heads + head
    row, column, tap = tl.arange(0, TILE), tl.arange(0, COLUMNS), _compact(TAPS)
    inside = row < length
    logits += sentence * logit_batch + head * logit_head
    real = (tap < taps) & deep(inside)
    scores = tl.load(logits + deep(row) * logit_row + tap, mask=real, other=float("-inf")).to(tl.float32) * LOG2E
    norm = tl.load(lse + at + row * heads, mask=inside, other=0.0)
    first, last = bounds(start, end, sentence, length, STARTS, ENDS)
    slope = load_rows(dy + sentence * dy_batch + head * WIDTH, dy_row, row, column, 0, length, WIDTH)
    values = load_rows(x + sentence * x_batch + head * WIDTH, x_row, row, column, first, last, WIDTH)
    # row t, source u, dy_t . x_u; then row t, tap k, whose source is t + k - left
    left = taps - 1 - shift
    g = product(slope, tl.trans(values), tl.zeros((TILE, TILE), tl.float32), WIDE)
    g = _fold(_skew(g, row - left, TILE, TILE, TAPS), TILE, TAPS)
    weights = tl.exp2(scores - deep(norm))
    dropped = weights
    if WORDS:
        keeps = kept(keep + at * WORDS, row, heads * WORDS, tap, inside, WORDS)
        g = tl.where(keeps, g * scale, 0.0)
        dropped = tl.where(keeps, weights * scale, 0.0)
    slopes = weights * (g - deep(row_sum(weights * g)))
    to = dlogits + at * taps + deep(row) * (heads * taps) + tap
    tl.store(to, slopes.to(dlogits.dtype.element_ty), mask=real)
    band = _skew(_flat(narrow(dropped, slope, WIDE), TILE, TAPS), left - row, TILE, TAPS, TILE)
    whole = product(tl.trans(band), slope, tl.zeros((TILE, COLUMNS), tl.float32), WIDE)
    whole = tl.where(((row >= first) & (row < last))[:, None], whole, 0.0)
    store_rows(dx + at * WIDTH, heads * WIDTH, row, column, 0, length, whole, WIDTH)
