"""DynamicConv on a GPU: softmax, DropConnect and convolution in one kernel each way; nothing is added atomically.

Sources are numbered u = s - shift, where shift = K - 1 - left is 0 for a causal convolution. Tap k of row t then reads
u = t + k - (K - 1), which lies in the same tile of rows or in one of the BACKS tiles before it. A tile's output is the
sum of a product for each of these tiles: a square matrix of weights times the tile's values. The weights are computed
on compact rows (`compact_rows.py`) and never stored: the backward pass computes them again from the logits and the
saved log-sum-exp, in units of log2.

Sentences that fit one tile have separate kernels, as have convolutions of up to three taps. Otherwise a program works
through `chunk` tiles of one head of one sentence, or of one part of a head's channels if a head has more than COLUMNS.
It keeps the values of the last tiles, and in the backward pass their unfinished dx.

In the kernels for one tile, a program takes one head of one sentence. Row t's tap k reads source t + k - left, so the
cell of t and u in the square matrix of rows and sources has tap u - t + left. Taps whose source lies outside the tile
count only in the softmax. Causal and centered convolutions differ in `left`.

Arguments of the kernels, in memory:
    x, dy: (B, T, C) with strides of batch and row; a head is WIDTH adjacent channels. y, dx: contiguous.
    logits: (B, T, H, K) with strides of batch, row and head; taps are adjacent.
    dlogits: (parts, B, T, H, K), contiguous.
    lse: (B, T, H), float32. keep: (B, T, H, WORDS), int32. end: (B,). All contiguous.

Compile-time constants:
    WIDTH: Channels of a head. COLUMNS: Channels that a program takes, a power of two, so that some may be masked.
    TILE: Positions of a tile; in the kernels for one tile, the sentence's length as a power of two, at least 16.
    BACKS: Tiles before its own that a tile reads.
    TAPS: K rounded up to a power of two, at least 16; in the direct kernels, K itself.
    WORDS: DropConnect words of a row; 0 without DropConnect.
    ENDS: Sentences have ends. WIDE: Products are in float32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from seq2seq.kernels.dynamicconv.compact_rows import (
    compacted,
    divided,
    drop,
    exponentials,
    joined,
    largest,
    less,
    load_taps,
    load_words,
    skew,
    squares,
    store_taps,
    times,
    total,
)
from seq2seq.kernels.launch_config import (
    backs,
    chunk_size,
    columns,
    config,
    is_direct,
    one_tile,
    one_tile_config,
    remembered,
    target,
)
from seq2seq.kernels.triton_ops import (
    LOG2E,
    aligned,
    bound,
    load_rows,
    log2,
    narrow,
    needs_wide,
    place,
    product,
    reciprocal,
    store_rows,
    unit_stride,
)

# Loops over tiles write K as min(K, n + TAPS). This equals K, but the compiler cannot know that, and so computes the
# indices of gathers for each tile. If computed before the loop, they would occupy a quarter of the registers until its
# end.

# Sizes that vary by batch or layer: a kernel is not compiled again because one of them is 1 or a multiple of 16
VARIES = ("length", "taps", "shift", "chunks", "chunk", "tiles", "logit_batch", "logit_row", "logit_head",
          "part_size")  # fmt: skip


@triton.jit(do_not_specialize=VARIES)
def band_forward(
    x, logits, keep, end, y, lse,
    length, taps, shift, heads, chunks, chunk, scale,
    x_batch, x_row, logit_batch, logit_row, logit_head,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, TILE: tl.constexpr, BACKS: tl.constexpr, TAPS: tl.constexpr,
    WORDS: tl.constexpr, ENDS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Compute y_t = sum_k softmax(logits_t)_k x_{t+k-left}, and the log-sum-exp of the logits."""
    part, head, tile, sentence = place(heads, chunks, chunk, WIDTH, COLUMNS)
    last = bound(end, sentence, length, ENDS)  # real positions
    at = sentence * length * heads + head  # index of position 0 in (B, T, H)
    x += sentence * x_batch + head * WIDTH
    logits += sentence * logit_batch + head * logit_head
    keep += at * WORDS
    i, column = tl.arange(0, TILE), part * COLUMNS + tl.arange(0, COLUMNS)
    # Values of the BACKS tiles before the chunk, the nearest first
    values = ()
    for s in tl.static_range(BACKS):
        values += (load_rows(x, x_row, (tile - 1 - s) * TILE + i + shift, column, last, WIDTH),)
    # Logits and words of a tile are read while the tile before it is computed
    near = tl.minimum(tile * TILE + i, length - 1)
    scores = load_taps(logits, logit_row, near, taps, TAPS)
    words = load_words(keep, near, heads * WORDS, WORDS)
    # Tile by tile: values[s] is the tile s before this one
    for n in range(tile, tl.minimum(tile + chunk, tl.cdiv(length, TILE))):
        row, taps = n * TILE + i, tl.minimum(taps, n + TAPS)  # the same K, see above VARIES
        values = (load_rows(x, x_row, row + shift, column, last, WIDTH),) + values
        # Over all K taps, inside and outside the sentence
        highest = largest(scores) * LOG2E
        weights = exponentials(scores, highest)
        sums = total(weights)  # before DropConnect, after which weights are not normalized again
        dropped = squares(narrow(joined(drop(weights, words, 1.0)), values[0], WIDE), taps, TILE, BACKS)
        near = tl.minimum(row + TILE, length - 1)
        scores = load_taps(logits, logit_row, near, taps, TAPS)
        words = load_words(keep, near, heads * WORDS, WORDS)
        mixed = tl.zeros((TILE, COLUMNS), tl.float32)  # (rows, channels)
        for s in tl.static_range(BACKS + 1):
            mixed = product(dropped[s], values[s], mixed, WIDE)
        # All parts have the same log-sum-exp, so the first part writes it
        tl.store(lse + at + row * heads, highest + log2(sums), mask=(row < length) & (part == 0))
        mixed *= (scale * reciprocal(sums))[:, None]  # one division per row, after the sum
        store_rows(y + at * WIDTH, heads * WIDTH, row, column, length, mixed, WIDTH)
        values = values[:-1]


@triton.jit
def _finish(dx, heads, row, column, last, length, whole, WIDTH: tl.constexpr):
    """Write a tile of dx, 0 from row `last` on."""
    whole = tl.where((row < last)[:, None], whole, 0.0)
    store_rows(dx, heads * WIDTH, row, column, length, whole, WIDTH)


@triton.jit(do_not_specialize=VARIES)
def band_backward(
    dy, x, logits, lse, keep, end, dx, dlogits,
    length, taps, shift, heads, chunks, chunk, scale,
    dy_batch, dy_row, x_batch, x_row, logit_batch, logit_row, logit_head, part_size,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, TILE: tl.constexpr, BACKS: tl.constexpr, TAPS: tl.constexpr,
    WORDS: tl.constexpr, ENDS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Compute dlogits = w (g - sum_k w g), g_k = dy_t . x_{t+k-left}, and dx_s = sum_t w_{t,s-t+left} dy_t.

    A tile of dx is complete when the BACKS tiles of rows after it have been read; the BACKS tiles after a
    chunk are read twice. dlogits are linear in g, so each part of a head writes separate dlogits, part_size numbers.
    """
    part, head, tile, sentence = place(heads, chunks, chunk, WIDTH, COLUMNS)
    last = bound(end, sentence, length, ENDS)  # real positions
    at = sentence * length * heads + head  # index of position 0 in (B, T, H)
    dy, x = dy + sentence * dy_batch + head * WIDTH, x + sentence * x_batch + head * WIDTH
    logits, lse, keep = logits + sentence * logit_batch + head * logit_head, lse + at, keep + at * WORDS
    dx, dlogits = dx + at * WIDTH, dlogits + part.to(tl.int64) * part_size + at * taps
    i, column = tl.arange(0, TILE), part * COLUMNS + tl.arange(0, COLUMNS)
    stop = tl.minimum(tile + chunk, tl.cdiv(length, TILE))  # the tile after the chunk
    values, unfinished, nothing = (), (), tl.zeros((TILE, TILE), tl.float32)
    for s in tl.static_range(BACKS):
        values += (load_rows(x, x_row, (tile - 1 - s) * TILE + i + shift, column, last, WIDTH),)
        unfinished += (tl.zeros((TILE, COLUMNS), tl.float32),)  # dx of earlier tiles
    # Everything but x and dy is read while the tile before it is computed
    near = tl.minimum(tile * TILE + i, length - 1)
    scores, norm = load_taps(logits, logit_row, near, taps, TAPS), tl.load(lse + near * heads)
    words = load_words(keep, near, heads * WORDS, WORDS)
    for n in range(tile, stop):
        row, taps = n * TILE + i, tl.minimum(taps, n + TAPS)  # the same K, see above VARIES
        values = (load_rows(x, x_row, row + shift, column, last, WIDTH),) + values
        grad = load_rows(dy, dy_row, row, column, length, WIDTH)  # dy, (TILE, COLUMNS)
        weights = exponentials(scores, norm)
        grads = ()
        for s in tl.static_range(BACKS + 1):
            grads += (product(grad, tl.trans(values[s]), nothing, WIDE),)  # dy_t . x_u
        shares = times(weights, drop(divided(compacted(grads, taps, TAPS)), words, scale))  # w g
        store_taps(dlogits, heads * taps, row, length, taps, less(shares, weights, total(shares)))
        dropped = squares(narrow(joined(drop(weights, words, scale)), grad, WIDE), taps, TILE, BACKS)
        near = tl.minimum(row + TILE, length - 1)
        scores, norm = load_taps(logits, logit_row, near, taps, TAPS), tl.load(lse + near * heads)
        words = load_words(keep, near, heads * WORDS, WORDS)
        unfinished, sent = (tl.zeros((TILE, COLUMNS), tl.float32),) + unfinished, ()
        for s in tl.static_range(BACKS + 1):
            sent += (product(tl.trans(dropped[s]), grad, unfinished[s], WIDE),)
        # The program of the previous chunk finishes the tiles before this chunk
        mine = tl.where((n - BACKS >= tile) | (tile == 0), length, 0)
        _finish(dx, heads, row - BACKS * TILE + shift, column, last, mine, sent[BACKS], WIDTH)
        values, unfinished = values[:-1], sent[:-1]  # the last tile is finished
    for e in tl.static_range(BACKS):  # rows after the chunk complete the dx of the chunk's last tiles
        row = (stop + e) * TILE + i
        near, grad = tl.minimum(row, length - 1), load_rows(dy, dy_row, row, column, length, WIDTH)  # dy
        words = load_words(keep, near, heads * WORDS, WORDS)
        weights = exponentials(load_taps(logits, logit_row, near, taps, TAPS), tl.load(lse + near * heads))
        dropped = squares(narrow(joined(drop(weights, words, scale)), grad, WIDE), taps, TILE, BACKS)
        sent = ()
        for s in tl.static_range(BACKS - e):  # s + e + 1 tiles back
            sent += (product(tl.trans(dropped[s + e + 1]), grad, unfinished[s], WIDE),)
        mine = tl.where((stop + e - BACKS >= tile) | (tile == 0), length, 0)
        _finish(dx, heads, row - BACKS * TILE + shift, column, last, mine, sent[BACKS - e - 1], WIDTH)
        unfinished = sent


@triton.jit(do_not_specialize=VARIES)
def one_tile_forward(
    x, logits, keep, end, y, lse,
    length, taps, shift, heads, scale,
    x_batch, x_row, logit_batch, logit_row, logit_head,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, TILE: tl.constexpr, TAPS: tl.constexpr,
    WORDS: tl.constexpr, ENDS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Compute the same as band_forward."""
    head = tl.program_id(0) % heads
    sentence = (tl.program_id(0) // heads).to(tl.int64)  # 64 bits: it multiplies batch strides
    at = sentence * length * heads + head  # index of position 0 in (B, T, H)
    row, column = tl.arange(0, TILE), tl.arange(0, COLUMNS)
    real = tl.minimum(row, length - 1)
    # All reads come before the computation
    scores = load_taps(logits + sentence * logit_batch + head * logit_head, logit_row, real, taps, TAPS)
    words = load_words(keep + at * WORDS, real, heads * WORDS, WORDS)
    last = bound(end, sentence, length, ENDS)
    values = load_rows(x + sentence * x_batch + head * WIDTH, x_row, row, column, last, WIDTH)
    # The softmax is over all K taps, and is not normalized again after DropConnect
    highest = largest(scores) * LOG2E
    weights = exponentials(scores, highest)
    sums = total(weights)
    left = taps - 1 - shift
    band = skew(narrow(joined(drop(weights, words, 1.0)), values, WIDE), left - row, TILE)
    mixed = product(band, values, tl.zeros((TILE, COLUMNS), tl.float32), WIDE)
    mixed *= (scale * reciprocal(sums))[:, None]  # one division per row, after the sum
    tl.store(lse + at + row * heads, highest + log2(sums), mask=row < length)
    store_rows(y + at * WIDTH, heads * WIDTH, row, column, length, mixed, WIDTH)


@triton.jit(do_not_specialize=VARIES)
def one_tile_backward(
    dy, x, logits, lse, keep, end, dx, dlogits,
    length, taps, shift, heads, scale,
    dy_batch, dy_row, x_batch, x_row, logit_batch, logit_row, logit_head,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, TILE: tl.constexpr, TAPS: tl.constexpr,
    WORDS: tl.constexpr, ENDS: tl.constexpr, WIDE: tl.constexpr,
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
    last = bound(end, sentence, length, ENDS)
    grad = load_rows(dy + sentence * dy_batch + head * WIDTH, dy_row, row, column, length, WIDTH)
    values = load_rows(x + sentence * x_batch + head * WIDTH, x_row, row, column, last, WIDTH)
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
    _finish(dx + at * WIDTH, heads, row, column, last, length, whole, WIDTH)


@triton.jit(do_not_specialize=VARIES)
def direct_forward(
    x, logits, keep, end, y, lse,
    length, shift, heads, tiles, scale,
    x_batch, x_row, logit_batch, logit_row, logit_head,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, TILE: tl.constexpr, TAPS: tl.constexpr,
    WORDS: tl.constexpr, ENDS: tl.constexpr,
):  # fmt: skip
    """Compute the same as band_forward for few taps: one multiply-add per tap, one tile per program."""
    head = tl.program_id(0) % heads
    row = tl.program_id(0) // heads % tiles * TILE + tl.arange(0, TILE)  # (TILE,)
    sentence = (tl.program_id(0) // heads // tiles).to(tl.int64)
    column = tl.arange(0, COLUMNS)  # (COLUMNS,)
    last = bound(end, sentence, length, ENDS)
    x += sentence * x_batch + head * WIDTH
    logits += sentence * logit_batch + head * logit_head + row * logit_row
    y += (sentence * length * heads + head) * WIDTH
    at = sentence * length * heads + row * heads + head
    inside = row < length
    # The largest logit of each row, then weights and values tap by tap
    highest = tl.full((TILE,), float("-inf"), tl.float32)
    for k in tl.static_range(TAPS):
        highest = tl.maximum(highest, tl.load(logits + k, mask=inside, other=0.0).to(tl.float32) * LOG2E)
    total = tl.zeros((TILE,), tl.float32)
    mixed = tl.zeros((TILE, COLUMNS), tl.float32)
    word = tl.load(keep + at, mask=inside, other=0) if WORDS else row  # TAPS bits fit one word
    for k in tl.static_range(TAPS):
        weight = tl.exp2(tl.load(logits + k, mask=inside, other=0.0).to(tl.float32) * LOG2E - highest)
        total += weight
        if WORDS:
            weight = tl.where(((word >> k) & 1) != 0, weight, 0.0)
        # (TILE, COLUMNS)
        values = load_rows(x, x_row, row + (k + shift - TAPS + 1), column, last, WIDTH)
        mixed += weight[:, None] * values.to(tl.float32)
    tl.store(lse + at, highest + log2(total), mask=inside)
    store_rows(y, heads * WIDTH, row, column, length, mixed * (scale * reciprocal(total))[:, None], WIDTH)


@triton.jit(do_not_specialize=VARIES)
def direct_backward(
    dy, x, logits, lse, keep, end, dx, dlogits,
    length, shift, heads, tiles, scale,
    dy_batch, dy_row, x_batch, x_row, logit_batch, logit_row, logit_head,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, TILE: tl.constexpr, TAPS: tl.constexpr,
    WORDS: tl.constexpr, ENDS: tl.constexpr,
):  # fmt: skip
    """Compute the same as band_backward for few taps: rows of dlogits, then of dx, one tile per program."""
    head = tl.program_id(0) % heads
    row = tl.program_id(0) // heads % tiles * TILE + tl.arange(0, TILE)
    sentence = (tl.program_id(0) // heads // tiles).to(tl.int64)
    column, tap = tl.arange(0, COLUMNS), tl.arange(0, 4)[None, :]  # 4: TAPS as a power of two
    last = bound(end, sentence, length, ENDS)
    dy += sentence * dy_batch + head * WIDTH
    x += sentence * x_batch + head * WIDTH
    logits += sentence * logit_batch + head * logit_head
    at = sentence * length * heads + head  # index of position 0 in (B, T, H)
    inside = row < length
    here = inside[:, None] & (tap < TAPS)  # (TILE, 4)
    # Compute the weights again, (TILE, 4), from the log-sum-exp
    norm = tl.load(lse + at + row * heads, mask=inside, other=0.0)[:, None]
    scores = tl.load(logits + row[:, None] * logit_row + tap, mask=here, other=float("-inf")).to(tl.float32)
    weight = tl.exp2(scores * LOG2E - norm)
    grad = load_rows(dy, dy_row, row, column, length, WIDTH).to(tl.float32)
    # The gradient of the weights, (TILE, 4), is dy_t . x_{t+k-left}; the gradient of the softmax follows
    g = tl.zeros((TILE, 4), tl.float32)
    for k in tl.static_range(TAPS):
        values = load_rows(x, x_row, row + (k + shift - TAPS + 1), column, last, WIDTH)
        g = tl.where(tap == k, tl.sum(grad * values.to(tl.float32), 1)[:, None], g)
    if WORDS:
        word = tl.load(keep + at + row * heads, mask=inside, other=0)[:, None]
        g = tl.where(((word >> tap) & 1) != 0, g * scale, 0.0)
    grads = weight * (g - tl.sum(weight * g, 1)[:, None])
    to = dlogits + at * TAPS + row[:, None] * (heads * TAPS) + tap
    tl.store(to, grads.to(dlogits.dtype.element_ty), mask=here)
    # Each row of dx is gathered from the rows that read it, so nothing is added atomically
    whole = tl.zeros((TILE, COLUMNS), tl.float32)
    for k in tl.static_range(TAPS):
        reader = row - (k + shift - TAPS + 1)  # the row whose tap k reads this row
        there = (reader >= 0) & (reader < length)
        a = tl.load(logits + reader * logit_row + k, mask=there, other=float("-inf")).to(tl.float32) * LOG2E
        weight = tl.exp2(a - tl.load(lse + at + reader * heads, mask=there, other=0.0))
        if WORDS:
            word = tl.load(keep + at + reader * heads, mask=there, other=0)
            weight = tl.where(((word >> k) & 1) != 0, weight * scale, 0.0)
        whole += weight[:, None] * load_rows(dy, dy_row, reader, column, length, WIDTH).to(tl.float32)
    _finish(dx + at * WIDTH, heads, row, column, last, length, whole, WIDTH)


@remembered
def constants(
    op: str, taps: int, head_dim: int, dtype: torch.dtype, *, words: int, ends: bool, arch: int
) -> tuple[bool, dict[str, int | bool]]:
    """Return True for the direct kernel, False for the band kernel, and its constants with its launch settings."""
    settings = config(op, taps, head_dim, dtype, arch)
    values: dict[str, int | bool] = {"WIDTH": head_dim, "WORDS": words, "ENDS": ends}
    values |= settings.launch
    least = 32 if dtype == torch.float32 else 16  # with 16 columns in float32, the compiler spills registers
    values |= {"TILE": settings.tile, "COLUMNS": columns(head_dim, settings.columns, least)}
    if is_direct(op, taps):
        return True, values | {"TAPS": taps}
    # K rounded up to a power of two, at least 16
    more = {"BACKS": backs(taps, settings.tile), "TAPS": columns(taps), "WIDE": needs_wide(dtype)}
    return False, values | more


@remembered
def one_tile_constants(
    op: str, tile: int, taps: int, head_dim: int, dtype: torch.dtype, *, words: int, ends: bool, arch: int
) -> dict[str, int | bool]:
    """Return the constants of the kernel for sentences of up to `tile` positions."""
    values: dict[str, int | bool] = {"WIDTH": head_dim, "WORDS": words, "ENDS": ends}
    values |= one_tile_config(op, tile, head_dim, dtype, arch).launch
    # K and channels are rounded up to powers of two, at least 16
    return values | {"TILE": tile, "COLUMNS": columns(head_dim), "TAPS": columns(taps), "WIDE": needs_wide(dtype)}


def forward(
    x: Tensor, logits: Tensor, keep: Tensor | None, end: Tensor | None, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """Compute y (B, T, C) and the log-sum-exp (B, T, H), in log2 units; scale is 1 / keep probability."""
    x, logits = aligned(x), unit_stride(logits)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    lse = torch.empty(logits.shape[:3], dtype=torch.float32, device=x.device)
    # A kernel takes a pointer for every argument: lse stands for absent ones, and is not read
    given = [lse if part is None else part.contiguous() for part in (keep, end)]
    tensors = [x, logits, *given, y, lse]
    strides = (*x.stride()[:2], *logits.stride()[:3])
    _launch("dynamicconv", tensors, strides, logits.shape, (keep, end), x, causal, scale)
    return y, lse


def backward(
    dy: Tensor,
    x: Tensor,
    logits: Tensor,
    lse: Tensor,
    keep: Tensor | None,
    end: Tensor | None,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Compute dx (B, T, C) and dlogits (B, T, H, K) from dy (B, T, C), the inputs and the saved log-sum-exp."""
    dy, x, logits = aligned(dy), aligned(x), unit_stride(logits)
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    op = "dynamicconv_backward"
    length, heads, taps = logits.shape[1:]
    head_dim = x.shape[-1] // heads
    # Each part of a head's channels has a program
    most = config(op, taps, head_dim, x.dtype, target(x)).columns
    parts = 1 if one_tile(op, taps, length, head_dim, x.dtype) else triton.cdiv(head_dim, most)
    # Parts are summed below, in float32
    kind = logits.dtype if parts == 1 else torch.float32
    dlogits = torch.empty((parts, *logits.shape), dtype=kind, device=x.device)
    given = [lse if part is None else part.contiguous() for part in (keep, end)]
    tensors = [dy, x, logits, lse, *given, dx, dlogits]
    strides = (*dy.stride()[:2], *x.stride()[:2], *logits.stride()[:3])
    _launch(op, tensors, strides, logits.shape, (keep, end), x, causal, scale)
    return dx, dlogits[0] if parts == 1 else dlogits.sum(0).to(logits.dtype)


def _launch(
    op: str,
    tensors: list[Tensor],
    strides: tuple[int, ...],
    shape: torch.Size,
    given: tuple[Tensor | None, ...],
    x: Tensor,
    causal: bool,
    scale: float,
) -> None:
    batch_size, length, heads, taps = shape
    shift = 0 if causal else taps - 1 - taps // 2  # K - 1 - left
    keep, end = given
    words = 0 if keep is None else keep.shape[-1]  # words per kernel; 0 without DropConnect
    head_dim = x.shape[-1] // heads
    flags = {"words": words, "ends": end is not None}
    forwards = op == "dynamicconv"
    with torch.cuda.device_of(x):
        if tile := one_tile(op, taps, length, head_dim, x.dtype):
            values = one_tile_constants(op, tile, taps, head_dim, x.dtype, arch=target(x), **flags)
            kernel = one_tile_forward if forwards else one_tile_backward
            kernel[(batch_size * heads,)](*tensors, length, taps, shift, heads, scale, *strides, **values)
            return
        direct, values = constants(op, taps, head_dim, x.dtype, arch=target(x), **flags)
        tiles = triton.cdiv(length, values["TILE"])  # of a sentence
        if direct:
            kernel = direct_forward if forwards else direct_backward
            kernel[(batch_size * tiles * heads,)](*tensors, length, shift, heads, tiles, scale, *strides, **values)
            return
        kernel = band_forward if forwards else band_backward
        programs = heads * triton.cdiv(head_dim, values["COLUMNS"])  # for each chunk
        chunk = chunk_size(op, config(op, taps, head_dim, x.dtype, target(x)), batch_size * tiles * programs)
        chunks = triton.cdiv(tiles, chunk)  # of a sentence
        sizes = (length, taps, shift, heads, chunks, chunk, scale)
        strides += () if forwards else (shape.numel(),)  # part_size
        kernel[(batch_size * chunks * programs,)](*tensors, *sizes, *strides, **values)
