"""Estimate the time of a kernel on a GPU by counts: bytes, issue slots, special functions, and warps that wait.

Nothing here was measured on a GPU. Four times are computed for a call, each as if the other three were zero:

- memory: the fewest bytes that the call can move (`minimal_bytes`) at ACHIEVED of the bandwidth of a copy. The rest
  goes to rows that two programs read, and to the turns between reading and writing.
- issue: a scheduler issues one instruction of a warp in a cycle. A multiprocessor has four.
- MUFU: exponentials, reciprocals and tanh take a warp eight cycles on a scheduler's unit.
- turn: a program takes `cycles_alone` from its first instruction to its last. As many programs run at the same
  time as the registers and the shared memory of a multiprocessor can hold; then the next ones have their turn.

A kernel takes the longest of the last three. Memory overlaps with it in part: the two are added like the sides of a
right angle, so that equal ones take 1.4 times as long as one. The share of the roofline is the time of the fewest bytes
at the whole bandwidth, divided by this estimate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from benchmarks.kernels.shapes import Shape, minimal_bytes
from benchmarks.roofline.machine_code import Path, cycles_alone, executed, loops

# Bytes per second of a copy. Both GPUs have the same multiprocessors and about the same clock.
BANDWIDTH = {"H100": 3.0e12, "H200": 4.3e12}
MULTIPROCESSORS = 132
SCHEDULERS = 4
CLOCK = 1.755e9
MUFU_CYCLES = 8
ACHIEVED = 0.92


class Work(NamedTuple):
    """Work of one launch.

    Attributes:
        path: Instructions of a warp.
        trips: Iterations of a loop of the path, by its depth.
        programs: Programs of the launch.
        block: Warps of a program.
        warps: Warps that fit on a multiprocessor.
    """

    path: Path
    trips: tuple[float, ...]
    programs: int
    block: int
    warps: int


class Estimate(NamedTuple):
    """Estimated times of a call in microseconds, and its share of the roofline."""

    memory: float
    issue: float
    mufu: float
    turn: float
    us: float
    share: float


def estimate(op: str, direction: str, shape: Shape, launches: Iterable[Work], gpu: str) -> Estimate:
    """Estimate a call of one or more launches, which follow each other."""
    least = 1e6 * minimal_bytes(op, direction, shape) / BANDWIDTH[gpu]
    memory = least / ACHIEVED
    times = [_times(work) for work in launches]
    issue, mufu, turn = (sum(column) for column in zip(*times, strict=True))
    us = math.hypot(memory, sum(map(max, times)))
    return Estimate(memory, issue, mufu, turn, us, least / us)


def _times(work: Work) -> tuple[float, float, float]:
    """Return the microseconds of issue slots, special functions and turns."""
    schedulers, second = MULTIPROCESSORS * SCHEDULERS, 1e6 / CLOCK
    of_all = work.programs * work.block * second / schedulers
    issue = of_all * executed(work.path, work.trips)
    mufu = of_all * executed(work.path, work.trips, "MUFU") * MUFU_CYCLES
    resident = MULTIPROCESSORS * (work.warps // work.block)
    # A GPU that is not full takes as long as one program
    turn = max(1.0, work.programs / resident) * cycles_alone(work.path, work.trips) * second
    return issue, mufu, turn


def trips(path: Path, shape: Shape, programs: int, values: dict[str, Any]) -> tuple[float, ...]:
    """Return the mean number of iterations of a launch's loops, by depth.

    A loop steps from tile to tile; where loops are nested, the outer one steps from unit to unit of `chunk` tiles.

    Args:
        values: Arguments of the launch by name, TILE and COLUMNS among them.
    """
    depth = max((depth for depth, _ in loops(path)), default=0)
    if not depth:
        return ()
    across = -(-(shape.channels // shape.heads) // values["COLUMNS"])
    tiles = shape.batch * shape.heads * across * -(-shape.length // values["TILE"])
    if depth < 2:
        return (tiles / programs,) * depth
    units = values["units"] * shape.heads * across
    return units / programs, tiles / units


def tile_instructions(path: Path) -> int:
    """Count the instructions of the longest innermost loop; without a loop, all of them."""
    nest = list(loops(path))
    depth = max((depth for depth, _ in nest), default=0)
    return int(max(executed(loop.body, ()) for at, loop in nest if at == depth) if nest else executed(path, ()))
