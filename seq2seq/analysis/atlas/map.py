"""The picture of the map: every self mixer at the place that was measured, and what is one property away."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from seq2seq.analysis.atlas.table import Point
from seq2seq.experiments.figures import new_figure, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# In this order neighbours differ in one property.
COLUMNS = ((False, True), (False, False), (True, False), (True, True))  # dynamic, sparse
ROWS = ((True, True), (False, True), (False, False), (True, False))  # shared over positions, over channels
FILL = {False: "#E8F1FA", True: "#FCEBDD"}
LINE = {False: "#0072B2", True: "#D55E00"}
WIDE, LINE_HIGH, GAP = 2.25, 0.2, 0.5


class Place(NamedTuple):
    """One point of the map by its four properties."""

    dynamic: bool
    sparse: bool
    shares_positions: bool
    shares_channels: bool


def places(points: Sequence[Point]) -> dict[Place, list[Point]]:
    """Which mixers were measured to be where."""
    found: dict[Place, list[Point]] = {}
    for point in points:
        p = point.bidirectional.properties
        found.setdefault(Place(p.dynamic, p.sparse, p.shares_positions, p.shares_channels), []).append(point)
    return found


def edges(found: Sequence[Place]) -> list[tuple[Place, Place]]:
    """Pairs of places that differ in exactly one property."""
    return [(a, b) for a, b in combinations(found, 2) if sum(x != y for x, y in zip(a, b, strict=True)) == 1]


def draw(points: Sequence[Point], stem: Path) -> Path:
    """Write `stem`.png and `stem`.svg; the first one's path."""
    found = places(points)
    high = [max((len(found.get(_at(row, column), [])) for column in range(4)), default=0) for row in range(4)]
    heights = [LINE_HIGH * max(2, count) + 0.2 for count in high]
    total = sum(heights) + GAP * 3
    figure = new_figure(4 * WIDE + 3 * GAP + 1.9, total + 1.0)
    axes = figure.subplots()
    tops = [sum(heights[:row]) + GAP * row for row in range(4)]
    centers = {
        _at(row, column): (column * (WIDE + GAP) + WIDE / 2, tops[row] + heights[row] / 2)
        for row in range(4)
        for column in range(4)
    }
    for one, other in edges(list(found)):
        _edge(axes, one, other, centers)
    for place, here in found.items():
        _box(axes, centers[place], here, place.dynamic)
    _captions(axes, tops, heights, total)
    axes.set_xlim(-1.75, 4 * WIDE + 3 * GAP + 0.1)
    axes.set_ylim(total + 0.35, -0.75)
    axes.set_aspect("equal")
    axes.set_axis_off()
    return save(figure, stem, dpi=110)


def _at(row: int, column: int) -> Place:
    return Place(*COLUMNS[column], *ROWS[row])


def _edge(axes: Axes, one: Place, other: Place, centers: dict[Place, tuple[float, float]]) -> None:
    """A line between neighbours; between others a bow through the free space towards the middle of the map."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Outline

    (x, y), (x2, y2) = centers[one], centers[other]
    columns, rows = (abs(a - b) for a, b in zip(_cell(one), _cell(other), strict=True))
    right, down = (1 if _cell(one)[0] < 2 else -1), (1 if _cell(one)[1] < 2 else -1)
    bow = (0.0, 0.8 * down) if columns > 1 else ((WIDE + GAP) * right, 0.0) if rows > 1 else (0.0, 0.0)
    middle = ((x + x2) / 2 + bow[0], (y + y2) / 2 + bow[1])
    outline = Outline([(x, y), middle, (x2, y2)], [Outline.MOVETO, Outline.CURVE3, Outline.CURVE3])
    axes.add_patch(PathPatch(outline, facecolor="none", edgecolor="#AAAAAA", linewidth=1.1, zorder=0))


def _cell(place: Place) -> tuple[int, int]:
    """Column and row."""
    return COLUMNS.index((place.dynamic, place.sparse)), ROWS.index((place.shares_positions, place.shares_channels))


def _box(axes: Axes, center: tuple[float, float], here: Sequence[Point], dynamic: bool) -> None:
    from matplotlib.patches import FancyBboxPatch

    high = LINE_HIGH * len(here) + 0.12
    corner = (center[0] - WIDE / 2, center[1] - high / 2)
    axes.add_patch(
        FancyBboxPatch(
            corner,
            WIDE,
            high,
            boxstyle="round,pad=0,rounding_size=0.1",
            facecolor=FILL[dynamic],
            edgecolor=LINE[dynamic],
            linewidth=1,
            zorder=1,
        )
    )
    for row, point in enumerate(sorted(here, key=lambda point: point.name)):
        found = point.bidirectional
        marks = ("" if found.properties.linear else " *") + ("" if found.sparse_channels else " †")
        y = center[1] + LINE_HIGH * (row - (len(here) - 1) / 2)
        axes.text(center[0], y, point.name + marks, ha="center", va="center", fontsize=8.5, zorder=2)


def _captions(axes: Axes, tops: Sequence[float], heights: Sequence[float], total: float) -> None:
    for column, (dynamic, sparse) in enumerate(COLUMNS):
        name = f"{'dynamic' if dynamic else 'static'}, {'sparse' if sparse else 'dense'}"
        axes.text(column * (WIDE + GAP) + WIDE / 2, -0.35, name, ha="center", fontsize=10, color=LINE[dynamic])
    names = {(True, True): "positions\nand channels", (False, True): "channels", (False, False): "nothing",
             (True, False): "positions"}  # fmt: skip
    for row, key in enumerate(ROWS):
        axes.text(-0.3, tops[row] + heights[row] / 2, names[key], ha="right", va="center", fontsize=10)
    axes.text(-0.3, -0.35, "weights shared over", ha="right", fontsize=9, color="#666666")
    text = (
        "A line joins places that differ in one of these four properties.    "
        "* not linear in its values (a gate, a state)    † mixes channels also between projections"
    )
    axes.text(0, total + 0.25, text, fontsize=8, color="#666666")
