"""LightConv on a GPU, optionally with the gate of its input (GLU) in the same kernels; nothing is added atomically.

Sources are numbered as for DynamicConv, u = s - shift with shift = K - 1 - left, so that a tile of rows reads its own
tile and the BACKS tiles before it. The matrices by which it does are the same for every tile of a head: a program makes
them once and then works through its share of the batch.

Arguments of the kernels, in memory:
    x, dy: (B, T, C), x (B, T, 2 C) with GLU, by the strides of batch and row; a head is WIDTH adjacent channels.
    y, dx: as x and dy, contiguous. weights: (H, K), contiguous. start, end: (B,), contiguous.
    partial: (programs, H, parts, TILE, (BACKS + 1) TILE), float32, or (programs, H, 1, 4) of a direct kernel.

Constants that they are compiled for: as DynamicConv's, and GLU, the gate of the input.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from seq2seq.kernels.band_matrix import unskew
from seq2seq.kernels.launch_config import backs, chunk_size, columns, config, is_direct, target
from seq2seq.kernels.triton_ops import aligned, bounds, gate, load_rows, needs_wide, product, store_rows

# programs of a forward and a backward launch: enough to fill a GPU, few enough that partial sums stay small
PROGRAMS = {"lightconv": 4224, "lightconv_backward": 528}

# sizes that vary by batch or layer: a kernel is not compiled anew because one of them is 1 or a multiple of 16
VARIES = ("length", "taps", "shift", "chunks", "chunk", "tiles", "units")


@triton.jit
def share(heads, WIDTH: tl.constexpr, COLUMNS: tl.constexpr):
    """Return this program's part of a head, head, first unit, and the step to its next unit."""
    parts: tl.constexpr = (WIDTH + COLUMNS - 1) // COLUMNS  # of a head's channels
    program = tl.program_id(0) // parts
    return tl.program_id(0) % parts, program % heads, program // heads, tl.num_programs(0) // parts // heads


@triton.jit
def _load_values(x, stride, row, column, first, last, channels, WIDTH: tl.constexpr, GLU: tl.constexpr):
    """Load rows of the values to be convolved: x, or with GLU x[:C] sigmoid(x[C:])."""
    values = load_rows(x, stride, row, column, first, last, WIDTH)
    if GLU:
        gates = gate(load_rows(x + channels, stride, row, column, first, last, WIDTH))
        values = (values.to(tl.float32) * gates).to(values.dtype)  # rounded as in torch
    return values


@triton.jit
def _store_slopes(
    dx, x, stride, row, column, first, last, length, channels, whole, WIDTH: tl.constexpr, GLU: tl.constexpr
):  # fmt: skip
    """Write rows of dx from the gradients of the values; rows outside [first, last) get 0."""
    whole = tl.where(((row >= first) & (row < last))[:, None], whole, 0.0)
    if GLU:
        # d(a s(b)) = s(b) da + a s(b) (1 - s(b)) db, with a and b read again instead of saved
        half = load_rows(x, stride, row, column, first, last, WIDTH).to(tl.float32)
        gates = gate(load_rows(x + channels, stride, row, column, first, last, WIDTH))
        slope = whole * half * gates * (1.0 - gates)
        store_rows(dx + channels, 2 * channels, row, column, 0, length, slope, WIDTH)
        store_rows(dx, 2 * channels, row, column, 0, length, whole * gates, WIDTH)
    else:
        store_rows(dx, channels, row, column, 0, length, whole, WIDTH)


@triton.jit
def _band(weights, taps, s: tl.constexpr, TILE: tl.constexpr):
    """Load the matrix by which a tile reads the tile s places before it: row i reads column j."""
    i, j = tl.arange(0, TILE)[:, None], tl.arange(0, TILE)[None, :]  # (TILE, 1), (1, TILE)
    tap = j - i + (taps - 1) - s * TILE
    return tl.load(weights + tap, mask=(tap >= 0) & (tap < taps), other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=VARIES)
def band_forward(
    x, weights, start, end, y,
    length, taps, shift, heads, chunks, chunk, units, x_batch, x_row,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, TILE: tl.constexpr, BACKS: tl.constexpr,
    GLU: tl.constexpr, STARTS: tl.constexpr, ENDS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Compute y_t = sum_k w_k x_{t+k-left} for a share of the units (`chunk` tiles of a sentence) of one head."""
    part, head, own, step = share(heads, WIDTH, COLUMNS)
    channels = heads * WIDTH
    x, y = x + head * WIDTH, y + head * WIDTH
    i, column = tl.arange(0, TILE), part * COLUMNS + tl.arange(0, COLUMNS)
    # the same weights at every position: BACKS + 1 matrices, made once for all units
    bands = ()
    for s in tl.static_range(BACKS + 1):
        bands += (_band(weights + head * taps, taps, s, TILE),)
    for unit in range(own, units, step):
        # a unit: its sentence and its first tile
        sentence, tile = (unit // chunks).to(tl.int64), unit % chunks * chunk
        first, last = bounds(start, end, sentence, length, STARTS, ENDS)
        own_x, own_y = x + sentence * x_batch, y + sentence * length * channels
        # values of the BACKS tiles before the unit, the nearest first
        values = ()
        for s in tl.static_range(BACKS):
            row = (tile - 1 - s) * TILE + i + shift
            values += (_load_values(own_x, x_row, row, column, first, last, channels, WIDTH, GLU),)
        # tile by tile: values[s] is the tile s before this one
        for n in range(tile, tl.minimum(tile + chunk, tl.cdiv(length, TILE))):
            row = n * TILE + i
            values = (_load_values(own_x, x_row, row + shift, column, first, last, channels, WIDTH, GLU),) + values
            mixed = tl.zeros((TILE, COLUMNS), tl.float32)  # (rows, channels)
            for s in tl.static_range(BACKS + 1):
                mixed = product(bands[s], values[s], mixed, WIDE)
            store_rows(own_y, channels, row, column, 0, length, mixed, WIDTH)
            values = values[:-1]


@triton.jit(do_not_specialize=VARIES)
def band_backward(
    dy, x, weights, start, end, dx, partial,
    length, taps, shift, heads, chunks, chunk, units, dy_batch, dy_row, x_batch, x_row,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, TILE: tl.constexpr, BACKS: tl.constexpr,
    GLU: tl.constexpr, STARTS: tl.constexpr, ENDS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Compute dx_s = sum_t w_{s-t+left} dy_t, and a share of sum_t dy_t . x_{t+k-left}: a product for each band.

    The products stand side by side, the furthest tile's first; their diagonals are summed later.
    """
    part, head, own, step = share(heads, WIDTH, COLUMNS)
    channels = heads * WIDTH
    dy, x, dx = dy + head * WIDTH, x + head * WIDTH, dx + head * WIDTH
    i, column = tl.arange(0, TILE), part * COLUMNS + tl.arange(0, COLUMNS)
    bands, products = (), ()  # carried over all units
    for s in tl.static_range(BACKS + 1):
        bands += (tl.trans(_band(weights + head * taps, taps, s, TILE)),)  # dx = A' dy
        products += (tl.zeros((TILE, TILE), tl.float32),)
    for unit in range(own, units, step):
        sentence, tile = (unit // chunks).to(tl.int64), unit % chunks * chunk  # a unit's
        first, last = bounds(start, end, sentence, length, STARTS, ENDS)
        own_dy, own_x = dy + sentence * dy_batch, x + sentence * x_batch
        own_dx = dx + sentence * length * channels * (2 if GLU else 1)
        stop = tl.minimum(tile + chunk, tl.cdiv(length, TILE))  # the tile after the unit
        values, unfinished = (), ()
        for s in tl.static_range(BACKS):
            row = (tile - 1 - s) * TILE + i + shift
            values += (_load_values(own_x, x_row, row, column, first, last, channels, WIDTH, GLU),)
            unfinished += (tl.zeros((TILE, COLUMNS), tl.float32),)  # dx of earlier tiles
        for n in range(tile, stop):
            row = n * TILE + i
            values = (_load_values(own_x, x_row, row + shift, column, first, last, channels, WIDTH, GLU),) + values
            slope = load_rows(own_dy, dy_row, row, column, 0, length, WIDTH)  # dy, (TILE, COLUMNS)
            unfinished = (tl.zeros((TILE, COLUMNS), tl.float32),) + unfinished
            sums, sent = (), ()
            for s in tl.static_range(BACKS + 1):
                sums += (product(slope, tl.trans(values[s]), products[s], WIDE),)
                sent += (product(bands[s], slope, unfinished[s], WIDE),)
            mine = tl.where((n - BACKS >= tile) | (tile == 0), length, 0)  # tiles before a chunk are its neighbor's
            row += shift - BACKS * TILE
            _store_slopes(own_dx, own_x, x_row, row, column, first, last, mine, channels, sent[BACKS], WIDTH, GLU)
            values, unfinished, products = values[:-1], sent[:-1], sums  # the last tile is finished
        for e in tl.static_range(BACKS):  # rows after the unit complete the dx of its last tiles
            row = (stop + e) * TILE + i
            slope = load_rows(own_dy, dy_row, row, column, 0, length, WIDTH)  # dy
            sent = ()
            for s in tl.static_range(BACKS - e):
                sent += (product(bands[s + e + 1], slope, unfinished[s], WIDE),)
            mine = tl.where((stop + e - BACKS >= tile) | (tile == 0), length, 0)
            row += shift - BACKS * TILE
            whole = sent[BACKS - e - 1]
            _store_slopes(own_dx, own_x, x_row, row, column, first, last, mine, channels, whole, WIDTH, GLU)
            unfinished = sent
    width: tl.constexpr = (BACKS + 1) * TILE  # columns of all products
    to = partial + tl.program_id(0) * (TILE * width) + i[:, None] * width + i[None, :]
    for s in tl.static_range(BACKS + 1):
        tl.store(to + (BACKS - s) * TILE, products[s])


@triton.jit(do_not_specialize=VARIES)
def direct_forward(
    x, weights, start, end, y,
    length, shift, heads, tiles, units, x_batch, x_row,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, TILE: tl.constexpr, TAPS: tl.constexpr,
    GLU: tl.constexpr, STARTS: tl.constexpr, ENDS: tl.constexpr,
):  # fmt: skip
    """Compute the same as band_forward for few taps: one multiply-add per tap; a unit is one tile."""
    head = tl.program_id(0) % heads
    channels = heads * WIDTH
    column = tl.arange(0, COLUMNS)  # (COLUMNS,)
    for unit in range(tl.program_id(0) // heads, units, tl.num_programs(0) // heads):
        sentence, row = (unit // tiles).to(tl.int64), unit % tiles * TILE + tl.arange(0, TILE)
        first, last = bounds(start, end, sentence, length, STARTS, ENDS)
        own_x = x + sentence * x_batch + head * WIDTH
        mixed = tl.zeros((TILE, COLUMNS), tl.float32)  # (rows, channels)
        for k in tl.static_range(TAPS):
            source = row + (k + shift - TAPS + 1)  # (TILE,): what tap k reads
            values = _load_values(own_x, x_row, source, column, first, last, channels, WIDTH, GLU)
            mixed += tl.load(weights + head * TAPS + k).to(tl.float32) * values.to(tl.float32)
        own_y = y + sentence * length * channels + head * WIDTH
        store_rows(own_y, channels, row, column, 0, length, mixed, WIDTH)


@triton.jit(do_not_specialize=VARIES)
def direct_backward(
    dy, x, weights, start, end, dx, partial,
    length, shift, heads, tiles, units, dy_batch, dy_row, x_batch, x_row,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, TILE: tl.constexpr, TAPS: tl.constexpr,
    GLU: tl.constexpr, STARTS: tl.constexpr, ENDS: tl.constexpr,
):  # fmt: skip
    """Compute the same as band_backward for few taps; a program's share of dweights is 4 sums."""
    head = tl.program_id(0) % heads
    channels = heads * WIDTH
    column, tap = tl.arange(0, COLUMNS), tl.arange(0, 4)  # 4: TAPS as a power of two
    total = tl.zeros((TILE, 4), tl.float32)  # dweights, over all units and the rows of a tile
    for unit in range(tl.program_id(0) // heads, units, tl.num_programs(0) // heads):
        sentence, row = (unit // tiles).to(tl.int64), unit % tiles * TILE + tl.arange(0, TILE)
        first, last = bounds(start, end, sentence, length, STARTS, ENDS)
        own_dy = dy + sentence * dy_batch + head * WIDTH
        own_x = x + sentence * x_batch + head * WIDTH
        slope = load_rows(own_dy, dy_row, row, column, 0, length, WIDTH).to(tl.float32)
        whole = tl.zeros((TILE, COLUMNS), tl.float32)  # dx of the tile
        for k in tl.static_range(TAPS):
            source = row + (k + shift - TAPS + 1)  # (TILE,): what tap k reads
            values = _load_values(own_x, x_row, source, column, first, last, channels, WIDTH, GLU)
            total += tl.where((tap == k)[None, :], tl.sum(slope * values.to(tl.float32), 1)[:, None], 0.0)
            reader = load_rows(own_dy, dy_row, 2 * row - source, column, 0, length, WIDTH)  # whose tap k is this row
            whole += tl.load(weights + head * TAPS + k).to(tl.float32) * reader.to(tl.float32)
        own_dx = dx + sentence * length * channels * (2 if GLU else 1) + head * WIDTH
        _store_slopes(own_dx, own_x, x_row, row, column, first, last, length, channels, whole, WIDTH, GLU)
    tl.store(partial + tl.program_id(0) * 4 + tap, tl.sum(total, 0))


def constants(
    op: str, taps: int, head_dim: int, dtype: torch.dtype, *, glu: bool, starts: bool, ends: bool, arch: int
) -> tuple[bool, dict[str, int | bool]]:
    """Return True for the direct kernel, and the constants that the one taken is compiled for, launch settings too."""
    settings = config(op, taps, head_dim, dtype, arch)
    values: dict[str, int | bool] = {"WIDTH": head_dim, "GLU": glu, "STARTS": starts, "ENDS": ends}
    values |= settings.launch
    values |= {"TILE": settings.tile, "COLUMNS": columns(head_dim, settings.columns)}
    if is_direct(op, taps):
        return True, values | {"TAPS": taps}
    return False, values | {"BACKS": backs(taps, settings.tile), "WIDE": needs_wide(dtype)}


def forward(x: Tensor, weights: Tensor, start: Tensor | None, end: Tensor | None, causal: bool, glu: bool) -> Tensor:
    """Compute y (B, T, C) from x (B, T, C), or (B, T, 2 C) with glu, and weights (H, K)."""
    x, weights = aligned(x), weights.contiguous()
    y = torch.empty((*x.shape[:2], x.shape[2] // (2 if glu else 1)), dtype=x.dtype, device=x.device)
    direct, values, sizes, programs = _plan("lightconv", y, weights, start, end, causal, glu)
    parts = triton.cdiv(y.shape[-1] // weights.shape[0], values["COLUMNS"])  # of a head's channels
    # a kernel takes a pointer for everything: weights stand for an absent bound, and are not read
    extent = [weights if bound is None else bound.contiguous() for bound in (start, end)]
    with torch.cuda.device_of(x):
        (direct_forward if direct else band_forward)[(programs * weights.shape[0] * parts,)](
            x, weights, *extent, y, *sizes, *x.stride()[:2], **values
        )
    return y


def backward(
    dy: Tensor, x: Tensor, weights: Tensor, start: Tensor | None, end: Tensor | None, causal: bool, glu: bool
) -> tuple[Tensor, Tensor]:
    """Compute dx, as x, and dweights (H, K) from dy (B, T, C) and the inputs of the forward pass."""
    dy, x, weights = aligned(dy), aligned(x), weights.contiguous()
    heads, taps = weights.shape
    direct, values, sizes, programs = _plan("lightconv_backward", dy, weights, start, end, causal, glu)
    dx, tile = torch.empty(x.shape, dtype=x.dtype, device=x.device), values["TILE"]
    # every program stores its share of dweights apart, so that sums need no atomics and repeat exactly
    width = 4 if direct else (values["BACKS"] + 1) * tile
    parts = triton.cdiv(dy.shape[-1] // heads, values["COLUMNS"])
    shape = (programs, heads, parts, *(() if direct else (tile,)), width)
    partial = torch.empty(shape, dtype=torch.float32, device=x.device)
    extent = [weights if bound is None else bound.contiguous() for bound in (start, end)]
    with torch.cuda.device_of(x):
        (direct_backward if direct else band_backward)[(programs * heads * parts,)](
            dy, x, weights, *extent, dx, partial, *sizes, *dy.stride()[:2], *x.stride()[:2], **values
        )
    # a tap is a diagonal of the products, whose last tile + K - 1 columns have the band
    total = partial.sum((0, 2))
    total = total[:, :taps] if direct else unskew(total[..., width - tile - taps + 1 :]).sum(-2)
    return dx, total.to(weights.dtype).contiguous()


def _plan(
    op: str, y: Tensor, weights: Tensor, start: Tensor | None, end: Tensor | None, causal: bool, glu: bool
) -> tuple[bool, dict[str, int | bool], tuple[int, ...], int]:
    """Return True for the direct kernel, then the constants, the sizes, and the number of programs for each head."""
    (batch_size, length, channels), (heads, taps) = y.shape, weights.shape
    shift = 0 if causal else taps - 1 - taps // 2  # K - 1 - left
    flags = {"glu": glu, "starts": start is not None, "ends": end is not None, "arch": target(y)}
    direct, values = constants(op, taps, channels // heads, y.dtype, **flags)
    chunks, chunk = triton.cdiv(length, values["TILE"]), 1
    if not direct:
        chunk = chunk_size(op, config(op, taps, channels // heads, y.dtype, target(y)), batch_size * chunks * heads)
        chunks = triton.cdiv(chunks, chunk)
    units = batch_size * chunks  # of each head
    sizes = (length, shift, heads, chunks, units)
    sizes = sizes if direct else (length, taps, shift, heads, chunks, chunk, units)
    return direct, values, sizes, min(units, max(1, PROGRAMS[op] // heads))
