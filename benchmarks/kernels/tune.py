"""Time launch settings of the Triton kernels, the default and candidates, for kernels/launch_config.py.

Two rounds keep the number of candidates small. The first varies the parameters with the largest effect: the size of a
tile, the columns and the warps. The second takes the fastest of the first round and varies the chunk, the stages and
the limit of registers, one at a time. Two kernels with separate settings can take short sentences.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.kernels.convolutions import calls_of, relative_error
from benchmarks.kernels.inputs import draw
from benchmarks.kernels.session import Row, Session, guarded
from benchmarks.kernels.shapes import OPS, PASSES, Shape, Sizes
from benchmarks.kernels.timing import Call, buffers, measure
from benchmarks.kernels.ways import by_backend
from seq2seq.kernels import launch_config


class Kernel(NamedTuple):
    """Kernel that can take a call.

    Attributes:
        way: Name in the rows.
        name: Name of its settings, see `launch_config.override`.
        default: Its settings in an ordinary call.
        sizes: Values of the settings that are swept.
    """

    way: str
    name: str
    default: launch_config.Config
    sizes: Sizes


def tune_section(session: Session) -> None:
    """Time all candidates; save after each operator, since a bad candidate may crash the device."""
    if session.ours != "triton":
        session.result["log"].append("tune: nothing to tune without Triton")
        return
    for shape, op, direction in itertools.product(session.sizes.tuned, OPS, PASSES):
        if not session.late(f"tune: {op} {direction}, {shape}"):
            tune_one(op, direction, shape, session)
            session.save()
            torch.cuda.empty_cache()


def tune_one(op: str, direction: str, shape: Shape, session: Session) -> None:
    """Time the default settings, which choose another kernel for few taps, then both rounds of candidates."""
    able = kernels(op, direction, shape, session.sizes)
    # Bytes of x in bf16
    count = buffers(2 * shape.tokens * shape.channels, session.device)
    drawn = [draw(op, shape, torch.bfloat16, session.device) for _ in range(count)]
    row = Row(op, direction, "default", shape, able[-1].default)
    with torch.set_grad_enabled(direction == "backward"):
        calls = calls_of(direction, [by_backend(session.ours, op, one, shape) for one in drawn])
        # The default's results, which candidates must reproduce
        wanted = tensors(calls[0]())
        session.rows.append(row._replace(**measure(calls, session)))
        for kernel in reversed(able):
            row, best = row._replace(way=kernel.way, detail=kernel.default), kernel.default
            for grid in (candidates, variants):
                tried = grid(best, kernel.sizes)
                for number, settings in enumerate(tried):
                    left = f"{len(tried) - number} of {len(tried)} {grid.__name__}"
                    if session.late(f"tune: {op} {direction}, {shape}, {kernel.way}, {left}"):
                        return
                    row = row._replace(detail=settings)
                    session.rows.append(time_settings(row, kernel.name, calls, wanted, session))
                best = fastest(session.rows, row)


def fastest(rows: list[Row], like: Row) -> launch_config.Config:
    """Return the settings of the fastest row for the same call as `like`, or its own settings if none could run."""
    mine = [row for row in rows if row[:4] == like[:4] and math.isfinite(row.us)]
    return min(mine, key=lambda row: row.us, default=like).detail


@guarded
def time_settings(row: Row, name: str, calls: list[Call], wanted: list[Tensor], session: Session) -> Row:
    """Time the calls under these settings, or record an error if their results are wrong."""
    with launch_config.override(name, row.detail):
        error = max(relative_error(a, b) for a, b in zip(tensors(calls[0]()), wanted, strict=True))
        # Written so that NaN fails too
        if not error < 1e-2:
            return row._replace(error=f"wrong by {error:.1e}")
        return row._replace(**measure(calls, session, seconds=0.3 * session.sizes.seconds))


def op_name(op: str, direction: str) -> str:
    """Return the name of an operator's direction in the table of launch settings."""
    return op if direction == "forward" else f"{op}_backward"


def kernels(op: str, direction: str, shape: Shape, sizes: Sizes) -> list[Kernel]:
    """List the kernels that could take a call; an ordinary call is taken by the last one."""
    name = op_name(op, direction)
    able = [Kernel("candidate", name, default_settings(op, direction, shape), sizes)]
    head = (shape.channels // shape.heads, torch.bfloat16)
    if tile := launch_config.one_tile(name, shape.taps, shape.length, *head):
        default = launch_config.one_tile_config(name, tile, *head)
        # The kernel for one tile has no chunks
        _, columns, warps, _, stages = sizes.sweep
        swept = sizes._replace(sweep=((tile,), columns, warps, (1,), stages))
        able.append(Kernel("one tile", f"{name}_one_tile", default, swept))
    return able


def default_settings(op: str, direction: str, shape: Shape) -> launch_config.Config:
    """Return the settings of an ordinary call, with the chunk that follows from its shape."""
    name = op_name(op, direction)
    settings = launch_config.config(name, shape.taps, shape.channels // shape.heads, torch.bfloat16)
    tiles = shape.batch * shape.heads * -(-shape.length // settings.tile)
    return settings._replace(chunk=launch_config.chunk_size(name, settings, tiles))


def candidates(default: launch_config.Config, sizes: Sizes) -> list[launch_config.Config]:
    """List the settings of the first round, nearest to the default first: tiles, columns, warps."""
    grid = [
        default._replace(tile=tile, columns=columns, num_warps=warps)
        for tile, columns, warps in itertools.product(*sizes.sweep[:3])
    ]

    # The distance is in powers of two; columns do not count
    def distance(one: launch_config.Config) -> float:
        return abs(math.log2(one.tile / default.tile)) + abs(math.log2(one.num_warps / default.num_warps))

    return sorted(grid, key=distance)


def variants(best: launch_config.Config, sizes: Sizes) -> list[launch_config.Config]:
    """List the settings of the second round: the first round's best with another chunk, stages, or limit of registers.

    Only one setting differs at a time, because the second round is not compiled ahead.
    """
    chunks, stages = sizes.sweep[3:]
    others = [best._replace(chunk=chunk) for chunk in chunks] + [best._replace(num_stages=stage) for stage in stages]
    # With 168 registers a thread, three blocks of 128 threads fit on a multiprocessor
    others += [best._replace(registers=limit) for limit in (None, 168)]
    return [one for one in dict.fromkeys(others) if one != best]


def tensors(output: Any) -> list[Tensor]:
    """Return the output of a forward or backward call as a list."""
    return [output] if isinstance(output, Tensor) else list(output)
