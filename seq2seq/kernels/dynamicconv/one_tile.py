"""DynamicConv of sentences that fit one tile: no tile before it, no loop, nothing to finish for a neighbor.

A program takes one head of one sentence. Row t's tap k reads source t + k - left, so that in the square matrix of rows
and sources the cell of t and u has tap u - t + left; taps whose source is outside the tile count in the softmax alone.
Causal or not differs in `left`.

Arguments are those of `triton.py`, and so are the constants, but for
    TILE: Positions of a sentence, as a power of two from 16. TAPS: K, as a power of two from 16.
    COLUMNS: All channels of a head, as a power of two.
"""

from __future__ import annotations

import triton
import triton.language as tl

from seq2seq.kernels.dynamicconv.compact_rows import (
    divided,
    drop,
    exponentials,
    joined,
    largest,
    less,
    load_taps,
    load_words,
    skew,
    store_taps,
    times,
    total,
)
from seq2seq.kernels.triton_ops import LOG2E, bounds, load_rows, log2, narrow, product, reciprocal, store_rows

# Sizes that vary by batch or layer: a kernel is not compiled anew because one of them is 1 or a multiple of 16
VARIES = ("length", "taps", "shift", "logit_batch", "logit_row", "logit_head")


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
    row, column = tl.arange(0, TILE), tl.arange(0, COLUMNS)
    real = tl.minimum(row, length - 1)
    # What is read first is waited for last
    scores = load_taps(logits + sentence * logit_batch + head * logit_head, logit_row, real, taps, TAPS)
    words = load_words(keep + at * WORDS, real, heads * WORDS, WORDS)
    first, last = bounds(start, end, sentence, length, STARTS, ENDS)
    values = load_rows(x + sentence * x_batch + head * WIDTH, x_row, row, column, first, last, WIDTH)
    # The softmax is over all K taps, and is not normalized anew after DropConnect
    highest = largest(scores) * LOG2E
    weights = exponentials(scores, highest)
    sums = total(weights)
    left = taps - 1 - shift
    band = skew(narrow(joined(drop(weights, words, 1.0)), values, WIDE), left - row, TILE)
    mixed = product(band, values, tl.zeros((TILE, COLUMNS), tl.float32), WIDE)
    mixed *= (scale * reciprocal(sums))[:, None]  # one division a row, after the sum
    tl.store(lse + at + row * heads, highest + log2(sums), mask=row < length)
    store_rows(y + at * WIDTH, heads * WIDTH, row, column, length, mixed, WIDTH)


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
    row, column = tl.arange(0, TILE), tl.arange(0, COLUMNS)
    real = tl.minimum(row, length - 1)
    scores = load_taps(logits + sentence * logit_batch + head * logit_head, logit_row, real, taps, TAPS)
    norm = tl.load(lse + at + real * heads)
    words = load_words(keep + at * WORDS, real, heads * WORDS, WORDS)
    first, last = bounds(start, end, sentence, length, STARTS, ENDS)
    grad = load_rows(dy + sentence * dy_batch + head * WIDTH, dy_row, row, column, 0, length, WIDTH)
    values = load_rows(x + sentence * x_batch + head * WIDTH, x_row, row, column, first, last, WIDTH)
    left = taps - 1 - shift
    weights = exponentials(scores, norm)
    # dy_t . x_u for row t and source u, then for row t and tap k, whose source is t + k - left
    g = product(grad, tl.trans(values), tl.zeros((TILE, TILE), tl.float32), WIDE)
    shares = times(weights, drop(divided(skew(g, row - left, TAPS)), words, scale))
    # dlogits = w (g - sum_k w g)
    grads = less(shares, weights, total(shares))
    store_taps(dlogits + at * taps, heads * taps, row, length, taps, grads)
    band = skew(narrow(joined(drop(weights, words, scale)), grad, WIDE), left - row, TILE)
    whole = product(tl.trans(band), grad, tl.zeros((TILE, COLUMNS), tl.float32), WIDE)
    whole = tl.where(((row >= first) & (row < last))[:, None], whole, 0.0)
    store_rows(dx + at * WIDTH, heads * WIDTH, row, column, length, whole, WIDTH)
