"""LightConv on a GPU, optionally with the gate of its input (GLU) in the same kernels; nothing is added atomically.

Sources are numbered as for DynamicConv, u = s - shift with shift = K - 1 - left, so that a tile of rows reads its own
tile and the BACKS tiles before it. All tiles of a head have the same weight matrices: a program makes them once and
then works through its share of the batch. Sentences of up to ONE_TILE positions have separate kernels, which use
one matrix and read no earlier tile.

Arguments of the kernels, in memory:
    x, dy: (B, T, C), x (B, T, 2 C) with GLU, with strides of batch and row; a head is WIDTH adjacent channels.
    y, dx: shaped like dy and x, contiguous. weights: (H, K), contiguous. end: (B,), contiguous.
    partial: float32, (programs, H, parts, TILE, (BACKS + 1) TILE); (programs, H, parts, TILE, TILE) for one tile;
        (programs, H, 1, 4) for the direct kernel.

Compile-time constants: as for DynamicConv, and GLU, the gate of the input.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import pad

from seq2seq.kernels.band_matrix import unskew
from seq2seq.kernels.launch_config import (
    HOPPER,
    Config,
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
from seq2seq.kernels.triton_ops import aligned, bound, gate, load_rows, needs_wide, product, store_rows

# Programs of a launch: enough to fill a GPU, but so few that partial sums stay small
PROGRAMS = {"lightconv": 4224, "lightconv_backward": 528}

# Sizes that vary by batch or layer: a kernel is not compiled again because one of them is 1 or a multiple of 16
VARIES = ("length", "taps", "shift", "chunks", "chunk", "tiles", "units")


@triton.jit
def share(heads, WIDTH: tl.constexpr, COLUMNS: tl.constexpr):
    """Return this program's part of a head, head, first unit, and the step to its next unit."""
    parts: tl.constexpr = (WIDTH + COLUMNS - 1) // COLUMNS  # of a head's channels
    program = tl.program_id(0) // parts
    return tl.program_id(0) % parts, program % heads, program // heads, tl.num_programs(0) // parts // heads


@triton.jit
def _load_halves(x, stride, row, column, last, channels, WIDTH: tl.constexpr, GLU: tl.constexpr):
    """Load rows of x[:C] and, with GLU, of x[C:]; without GLU return the first twice."""
    half = load_rows(x, stride, row, column, last, WIDTH)
    if GLU:
        return half, load_rows(x + channels, stride, row, column, last, WIDTH)
    return half, half


@triton.jit
def _gated(half, other, GLU: tl.constexpr):
    """Compute the convolution's input: x, or with GLU x[:C] sigmoid(x[C:])."""
    if GLU:
        return (half.to(tl.float32) * gate(other)).to(half.dtype)  # rounded as in torch
    return half


@triton.jit
def _load_values(x, stride, row, column, last, channels, WIDTH: tl.constexpr, GLU: tl.constexpr):
    """Load rows of the convolution's input."""
    half, other = _load_halves(x, stride, row, column, last, channels, WIDTH, GLU)
    return _gated(half, other, GLU)


@triton.jit
def _store_grads(
    dx, half, other, row, column, last, length, channels, whole, WIDTH: tl.constexpr, GLU: tl.constexpr
):  # fmt: skip
    """Write rows of dx from the gradients of the values; rows from `last` on get 0."""
    whole = tl.where((row < last)[:, None], whole, 0.0)
    if GLU:
        # d(a s(b)) = s(b) da + a s(b) (1 - s(b)) db
        gates = gate(other)
        part = whole * gates
        store_rows(dx, 2 * channels, row, column, length, part, WIDTH)
        part *= half.to(tl.float32) * (1.0 - gates)
        store_rows(dx + channels, 2 * channels, row, column, length, part, WIDTH)
    else:
        store_rows(dx, channels, row, column, length, whole, WIDTH)


@triton.jit
def _band(weights, taps, middle, TILE: tl.constexpr):
    """Load the matrix with which a tile reads another: row i reads column j with tap `middle` + j - i."""
    i, j = tl.arange(0, TILE)[:, None], tl.arange(0, TILE)[None, :]  # (TILE, 1), (1, TILE)
    tap = j - i + middle
    return tl.load(weights + tap, mask=(tap >= 0) & (tap < taps), other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=VARIES)
def band_forward(
    x, weights, end, y,
    length, taps, shift, heads, chunks, chunk, units, x_batch, x_row,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, TILE: tl.constexpr, BACKS: tl.constexpr,
    GLU: tl.constexpr, ENDS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Compute y_t = sum_k w_k x_{t+k-left} for a share of the units (`chunk` tiles of a sentence) of one head."""
    part, head, own, step = share(heads, WIDTH, COLUMNS)
    channels = heads * WIDTH
    x, y = x + head * WIDTH, y + head * WIDTH
    i, column = tl.arange(0, TILE), part * COLUMNS + tl.arange(0, COLUMNS)
    # The same weights at every position: BACKS + 1 matrices, made once for all units
    bands = ()
    for s in tl.static_range(BACKS + 1):
        bands += (_band(weights + head * taps, taps, taps - 1 - s * TILE, TILE),)  # reads the tile s before
    for unit in range(own, units, step):
        # A unit: its sentence and its first tile
        sentence, tile = (unit // chunks).to(tl.int64), unit % chunks * chunk
        last = bound(end, sentence, length, ENDS)
        own_x, own_y = x + sentence * x_batch, y + sentence * length * channels
        # Values of the BACKS tiles before the unit, the nearest first
        values = ()
        for s in tl.static_range(BACKS):
            row = (tile - 1 - s) * TILE + i + shift
            values += (_load_values(own_x, x_row, row, column, last, channels, WIDTH, GLU),)
        # Tile by tile: values[s] is the tile s before this one
        for n in range(tile, tl.minimum(tile + chunk, tl.cdiv(length, TILE))):
            row = n * TILE + i
            values = (_load_values(own_x, x_row, row + shift, column, last, channels, WIDTH, GLU),) + values
            mixed = tl.zeros((TILE, COLUMNS), tl.float32)  # (rows, channels)
            for s in tl.static_range(BACKS + 1):
                mixed = product(bands[s], values[s], mixed, WIDE)
            store_rows(own_y, channels, row, column, length, mixed, WIDTH)
            values = values[:-1]


@triton.jit(do_not_specialize=VARIES)
def band_backward(
    dy, x, weights, end, dx, partial, length, taps, shift, heads, chunks, chunk, units,
    dy_batch, dy_row, x_batch, x_row, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, TILE: tl.constexpr,
    BACKS: tl.constexpr, GLU: tl.constexpr, ENDS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Compute dx_s = sum_t w_{s-t+left} dy_t, and a share of sum_t dy_t . x_{t+k-left}: a product for each band."""
    part, head, own, step = share(heads, WIDTH, COLUMNS)
    channels = heads * WIDTH
    dy, x, dx = dy + head * WIDTH, x + head * WIDTH, dx + head * WIDTH
    i, column = tl.arange(0, TILE), part * COLUMNS + tl.arange(0, COLUMNS)
    bands, products = (), ()  # carried over all units; products have a row for each source, as values have
    for s in tl.static_range(BACKS + 1):
        bands += (tl.trans(_band(weights + head * taps, taps, taps - 1 - s * TILE, TILE)),)  # dx = A' dy
        products += (tl.zeros((TILE, TILE), tl.float32),)
    for unit in range(own, units, step):
        sentence, tile = (unit // chunks).to(tl.int64), unit % chunks * chunk  # of the unit
        last = bound(end, sentence, length, ENDS)
        own_dy, own_x = dy + sentence * dy_batch, x + sentence * x_batch
        own_dx = dx + sentence * length * channels * (2 if GLU else 1)
        stop = tl.minimum(tile + chunk, tl.cdiv(length, TILE))  # the tile after the unit
        values, halves, others, unfinished = (), (), (), ()  # x is kept until its dx is finished, which takes the gate
        for s in tl.static_range(BACKS):
            row = (tile - 1 - s) * TILE + i + shift
            half, other = _load_halves(own_x, x_row, row, column, last, channels, WIDTH, GLU)
            values += (_gated(half, other, GLU),)
            halves += (half,) if GLU else ()
            others += (other,) if GLU else ()
            unfinished += (tl.zeros((TILE, COLUMNS), tl.float32),)  # dx of earlier tiles
        for n in range(tile, stop):
            row = n * TILE + i
            half, other = _load_halves(own_x, x_row, row + shift, column, last, channels, WIDTH, GLU)
            values = (_gated(half, other, GLU),) + values
            if GLU:
                halves, others = (half,) + halves, (other,) + others
                half, other = halves[BACKS], others[BACKS]
            grad = load_rows(own_dy, dy_row, row, column, length, WIDTH)  # dy, (TILE, COLUMNS)
            unfinished = (tl.zeros((TILE, COLUMNS), tl.float32),) + unfinished
            sums, sent = (), ()
            for s in tl.static_range(BACKS + 1):
                sums += (product(values[s], tl.trans(grad), products[s], WIDE),)
                sent += (product(bands[s], grad, unfinished[s], WIDE),)
            # The previous unit finishes the tiles before this one
            mine = tl.where((n - BACKS >= tile) | (tile == 0), length, 0)
            row += shift - BACKS * TILE
            _store_grads(own_dx, half, other, row, column, last, mine, channels, sent[BACKS], WIDTH, GLU)
            values, unfinished, products = values[:-1], sent[:-1], sums  # the last tile is finished
            if GLU:
                halves, others = halves[:-1], others[:-1]
        for e in tl.static_range(BACKS):  # rows after the unit complete the dx of its last tiles
            grad = load_rows(own_dy, dy_row, (stop + e) * TILE + i, column, length, WIDTH)  # dy
            sent = ()
            for s in tl.static_range(BACKS - e):
                sent += (product(bands[s + e + 1], grad, unfinished[s], WIDE),)
            mine = tl.where((stop + e - BACKS >= tile) | (tile == 0), length, 0)
            row = (stop + e - BACKS) * TILE + i + shift
            half, other = (halves[BACKS - e - 1], others[BACKS - e - 1]) if GLU else (grad, grad)
            whole, unfinished = sent[BACKS - e - 1], sent
            _store_grads(own_dx, half, other, row, column, last, mine, channels, whole, WIDTH, GLU)
    to = partial + (tl.program_id(0) * TILE + i[:, None]) * ((BACKS + 1) * TILE) + i[None, :]
    for s in tl.static_range(BACKS + 1):
        tl.store(to + (BACKS - s) * TILE, tl.trans(products[s]))  # side by side, the furthest tile's first


@triton.jit(do_not_specialize=VARIES)
def one_tile_forward(
    x, weights, end, y,
    length, taps, shift, heads, units, x_batch, x_row,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, TILE: tl.constexpr,
    GLU: tl.constexpr, ENDS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Compute the same as band_forward for sentences of one tile, which are its units."""
    part, head, own, step = share(heads, WIDTH, COLUMNS)
    channels = heads * WIDTH
    x, y = x + head * WIDTH, y + head * WIDTH
    row, column = tl.arange(0, TILE), part * COLUMNS + tl.arange(0, COLUMNS)
    band = _band(weights + head * taps, taps, taps - 1 - shift, TILE)
    for unit in range(own, units, step):
        sentence = tl.full((), unit, tl.int64)
        last = bound(end, sentence, length, ENDS)
        values = _load_values(x + sentence * x_batch, x_row, row, column, last, channels, WIDTH, GLU)
        mixed = product(band, values, tl.zeros((TILE, COLUMNS), tl.float32), WIDE)  # (rows, channels)
        store_rows(y + sentence * length * channels, channels, row, column, length, mixed, WIDTH)


@triton.jit(do_not_specialize=VARIES)
def one_tile_backward(
    dy, x, weights, end, dx, partial,
    length, taps, shift, heads, units, dy_batch, dy_row, x_batch, x_row,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, TILE: tl.constexpr,
    GLU: tl.constexpr, ENDS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Compute the same as band_backward for sentences of one tile, which are its units."""
    part, head, own, step = share(heads, WIDTH, COLUMNS)
    channels = heads * WIDTH
    dy, x, dx = dy + head * WIDTH, x + head * WIDTH, dx + head * WIDTH
    row, column = tl.arange(0, TILE), part * COLUMNS + tl.arange(0, COLUMNS)
    band = tl.trans(_band(weights + head * taps, taps, taps - 1 - shift, TILE))  # dx = A' dy
    products = tl.zeros((TILE, TILE), tl.float32)  # carried over all units: a row for each source
    for unit in range(own, units, step):
        sentence = tl.full((), unit, tl.int64)
        last = bound(end, sentence, length, ENDS)
        own_x, own_dx = x + sentence * x_batch, dx + sentence * length * channels * (2 if GLU else 1)
        grad = load_rows(dy + sentence * dy_batch, dy_row, row, column, length, WIDTH)  # dy, (TILE, COLUMNS)
        whole = product(band, grad, tl.zeros((TILE, COLUMNS), tl.float32), WIDE)
        half, other = _load_halves(own_x, x_row, row, column, last, channels, WIDTH, GLU)
        products = product(_gated(half, other, GLU), tl.trans(grad), products, WIDE)
        _store_grads(own_dx, half, other, row, column, last, length, channels, whole, WIDTH, GLU)
    to = partial + tl.program_id(0) * (TILE * TILE) + row[:, None] * TILE + tl.arange(0, TILE)[None, :]
    tl.store(to, tl.trans(products))


@triton.jit(do_not_specialize=VARIES)
def direct_forward(
    x, weights, end, y,
    length, shift, heads, tiles, units, x_batch, x_row,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, TILE: tl.constexpr, TAPS: tl.constexpr,
    GLU: tl.constexpr, ENDS: tl.constexpr,
):  # fmt: skip
    """Compute the same as band_forward for few taps: one multiply-add per tap; a unit is one tile."""
    head = tl.program_id(0) % heads
    channels = heads * WIDTH
    column = tl.arange(0, COLUMNS)  # (COLUMNS,)
    for unit in range(tl.program_id(0) // heads, units, tl.num_programs(0) // heads):
        sentence, row = (unit // tiles).to(tl.int64), unit % tiles * TILE + tl.arange(0, TILE)
        last = bound(end, sentence, length, ENDS)
        own_x = x + sentence * x_batch + head * WIDTH
        mixed = tl.zeros((TILE, COLUMNS), tl.float32)  # (rows, channels)
        for k in tl.static_range(TAPS):
            source = row + (k + shift - TAPS + 1)  # (TILE,): the row that tap k reads
            values = _load_values(own_x, x_row, source, column, last, channels, WIDTH, GLU)
            mixed += tl.load(weights + head * TAPS + k).to(tl.float32) * values.to(tl.float32)
        own_y = y + sentence * length * channels + head * WIDTH
        store_rows(own_y, channels, row, column, length, mixed, WIDTH)


@triton.jit(do_not_specialize=VARIES)
def direct_backward(
    dy, x, weights, end, dx, partial,
    length, shift, heads, tiles, units, dy_batch, dy_row, x_batch, x_row,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, TILE: tl.constexpr, TAPS: tl.constexpr,
    GLU: tl.constexpr, ENDS: tl.constexpr,
):  # fmt: skip
    """Compute the same as band_backward for few taps; a program's share of dweights is 4 sums."""
    head = tl.program_id(0) % heads
    channels = heads * WIDTH
    column, tap = tl.arange(0, COLUMNS), tl.arange(0, 4)  # 4: TAPS as a power of two
    total = tl.zeros((TILE, 4), tl.float32)  # dweights, over all units and the rows of a tile
    for unit in range(tl.program_id(0) // heads, units, tl.num_programs(0) // heads):
        sentence, row = (unit // tiles).to(tl.int64), unit % tiles * TILE + tl.arange(0, TILE)
        last = bound(end, sentence, length, ENDS)
        own_dy = dy + sentence * dy_batch + head * WIDTH
        own_x = x + sentence * x_batch + head * WIDTH
        grad = load_rows(own_dy, dy_row, row, column, length, WIDTH).to(tl.float32)
        whole = tl.zeros((TILE, COLUMNS), tl.float32)  # dx of the tile
        for k in tl.static_range(TAPS):
            source = row + (k + shift - TAPS + 1)  # (TILE,): the row that tap k reads
            values = _load_values(own_x, x_row, source, column, last, channels, WIDTH, GLU)
            total += tl.where((tap == k)[None, :], tl.sum(grad * values.to(tl.float32), 1)[:, None], 0.0)
            # dy of the row whose tap k reads this row
            reader = load_rows(own_dy, dy_row, 2 * row - source, column, length, WIDTH)
            whole += tl.load(weights + head * TAPS + k).to(tl.float32) * reader.to(tl.float32)
        own_dx = dx + sentence * length * channels * (2 if GLU else 1) + head * WIDTH
        # Read x again instead of keeping it
        half, other = _load_halves(own_x, x_row, row, column, last, channels, WIDTH, GLU)
        _store_grads(own_dx, half, other, row, column, last, length, channels, whole, WIDTH, GLU)
    tl.store(partial + tl.program_id(0) * 4 + tap, tl.sum(total, 0))


class Launch(NamedTuple):
    """Launch of a kernel.

    Attributes:
        kind: The kernel's name without the direction: "band", "tile" or "direct".
        values: Its constants and launch settings.
        sizes: Its integer arguments, except strides.
        programs: Programs for each part of a head.
        parts: Parts of a head.
    """

    kind: str
    values: dict[str, int | bool]
    sizes: tuple[int, ...]
    programs: int
    parts: int


@remembered
def constants(
    op: str, taps: int, head_dim: int, dtype: torch.dtype, *, glu: bool, ends: bool, arch: int
) -> tuple[bool, dict[str, int | bool]]:
    """Return True for the direct kernel, False for the band kernel, and its constants with its launch settings."""
    values = _values(config(op, taps, head_dim, dtype, arch), head_dim, glu, ends)
    if is_direct(op, taps):
        narrow = dtype != torch.float32 and values["COLUMNS"] == 64 and not glu
        if op == "lightconv_backward" and taps == 3 and narrow and arch == HOPPER:
            # Without a limit, Triton 3.6's assembler spills two registers to fit one more block
            values["maxnreg"] = 72
        return True, values | {"TAPS": taps}
    return False, values | {"BACKS": backs(taps, values["TILE"]), "WIDE": needs_wide(dtype)}


@remembered
def one_tile_constants(
    op: str, tile: int, taps: int, head_dim: int, dtype: torch.dtype, *, glu: bool, ends: bool, arch: int
) -> dict[str, int | bool]:
    """Return the constants of the kernel for sentences of up to `tile` positions, which do not depend on K."""
    settings = one_tile_config(op, tile, head_dim, dtype, arch)
    return _values(settings, head_dim, glu, ends) | {"WIDE": needs_wide(dtype)}


def _values(settings: Config, head_dim: int, glu: bool, ends: bool) -> dict[str, int | bool]:
    """Return the constants that all kernels share."""
    flags = {"WIDTH": head_dim, "GLU": glu, "ENDS": ends, "TILE": settings.tile}
    return flags | settings.launch | {"COLUMNS": columns(head_dim, settings.columns)}


def forward(x: Tensor, weights: Tensor, end: Tensor | None, causal: bool, glu: bool) -> Tensor:
    """Compute y (B, T, C) from x (B, T, C), or (B, T, 2 C) with glu, and weights (H, K)."""
    x, weights = aligned(x), weights.contiguous()
    y = torch.empty((*x.shape[:2], x.shape[2] // (2 if glu else 1)), dtype=x.dtype, device=x.device)
    launch = _launch("lightconv", y, weights, end, causal, glu)
    kernel = {"band": band_forward, "tile": one_tile_forward, "direct": direct_forward}[launch.kind]
    # A kernel takes a pointer for every argument: weights stand for an absent end, and are not read
    ends = weights if end is None else end.contiguous()
    with torch.cuda.device_of(x):
        kernel[(launch.programs * weights.shape[0] * launch.parts,)](
            x, weights, ends, y, *launch.sizes, *x.stride()[:2], **launch.values
        )
    return y


def backward(
    dy: Tensor, x: Tensor, weights: Tensor, end: Tensor | None, causal: bool, glu: bool
) -> tuple[Tensor, Tensor]:
    """Compute dx, shaped like x, and dweights (H, K) from dy (B, T, C) and the inputs of the forward pass."""
    dy, x, weights = aligned(dy), aligned(x), weights.contiguous()
    heads, taps = weights.shape
    launch = _launch("lightconv_backward", dy, weights, end, causal, glu)
    kernel = {"band": band_backward, "tile": one_tile_backward, "direct": direct_backward}[launch.kind]
    dx, tile = torch.empty(x.shape, dtype=x.dtype, device=x.device), launch.values["TILE"]
    # Every program stores its share of dweights separately, so sums need no atomics and repeat exactly
    share_of = {"band": (tile, (launch.values.get("BACKS", 0) + 1) * tile), "tile": (tile, tile), "direct": (4,)}
    shape = (launch.programs, heads, launch.parts, *share_of[launch.kind])
    partial = torch.empty(shape, dtype=torch.float32, device=x.device)
    ends = weights if end is None else end.contiguous()
    with torch.cuda.device_of(x):
        kernel[(launch.programs * heads * launch.parts,)](
            dy, x, weights, ends, dx, partial, *launch.sizes, *dy.stride()[:2], *x.stride()[:2], **launch.values
        )
    total = partial.sum((0, 2))
    if launch.kind == "direct":
        total = total[:, :taps]
    else:
        # A tap's gradient sums a diagonal of the products: shifted for one tile, else in the last tile + K - 1 columns
        shift = _shift(taps, causal)
        band = pad(total, (taps - 1 - shift, shift)) if launch.kind == "tile" else total[..., -(tile + taps - 1) :]
        total = unskew(band).sum(-2)
    return dx, total.to(weights.dtype).contiguous()


def _launch(op: str, y: Tensor, weights: Tensor, end: Tensor | None, causal: bool, glu: bool) -> Launch:
    """Choose the kernel, its constants and sizes, and the number of programs."""
    (batch_size, length, channels), (heads, taps) = y.shape, weights.shape
    head_dim, arch, shift = channels // heads, target(y), _shift(taps, causal)
    flags = {"glu": glu, "ends": end is not None}
    if tile := one_tile(op, taps, length, head_dim, y.dtype):
        kind, values = "tile", one_tile_constants(op, tile, taps, head_dim, y.dtype, **flags, arch=arch)
        units = batch_size  # of each head
        sizes = (length, taps, shift, heads, units)
    else:
        direct, values = constants(op, taps, head_dim, y.dtype, **flags, arch=arch)
        kind, chunks, chunk = "direct" if direct else "band", triton.cdiv(length, values["TILE"]), 1
        if not direct:
            chunk = chunk_size(op, config(op, taps, head_dim, y.dtype, arch), batch_size * chunks * heads)
            chunks = triton.cdiv(chunks, chunk)
        units = batch_size * chunks
        sizes = (length, shift, heads, chunks, units)
        sizes = sizes if direct else (length, taps, shift, heads, chunks, chunk, units)
    programs = min(units, max(1, PROGRAMS[op] // heads))
    return Launch(kind, values, sizes, programs, triton.cdiv(head_dim, values["COLUMNS"]))


def _shift(taps: int, causal: bool) -> int:
    """Return K - 1 - left, the number of later positions that a row reads."""
    return 0 if causal else taps - 1 - taps // 2
