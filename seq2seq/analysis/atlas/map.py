"""Draw the map of all self mixers by four measured properties; lines join places that differ in one property."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from operator import ne
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from seq2seq.analysis.atlas.survey import Point
from seq2seq.system.canvas import new_figure, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Gray codes: neighbors differ in one property.
COLUMNS = ((False, True), (False, False), (True, False), (True, True))  # dynamic, sparse
# Weights shared over positions, over channels, and the name of the row.
ROWS = {
    (True, True): "positions\nand channels",
    (False, True): "channels",
    (False, False): "nothing",
    (True, False): "positions",
}
# Colors of a box, by `dynamic`: blue for static mixers, orange for dynamic ones.
FILL = {False: "#E8F1FA", True: "#FCEBDD"}
LINE = {False: "#0072B2", True: "#D55E00"}
# Width of a box, height of a line of text in it, and space between boxes, in inches.
WIDTH = 2.25
LINE_HEIGHT = 0.2
GAP = 0.5


class Place(NamedTuple):
    """Place on the map, by four properties."""

    dynamic: bool
    sparse: bool
    shares_positions: bool
    shares_channels: bool


def places(points: Sequence[Point]) -> dict[Place, list[Point]]:
    """Group the mixers by their four properties."""
    collected: dict[Place, list[Point]] = {}
    for point in points:
        # Every self mixer has a bidirectional form
        own = point.bidirectional.properties
        place = Place(own.dynamic, own.sparse, own.shares_positions, own.shares_channels)
        collected.setdefault(place, []).append(point)
    return collected


def edges(taken: Sequence[Place]) -> list[tuple[Place, Place]]:
    """Return the pairs of places that differ in exactly one property.

    Args:
        taken: The places that have a mixer.
    """
    return [(one, other) for one, other in combinations(taken, 2) if sum(map(ne, one, other)) == 1]


def draw(points: Sequence[Point], stem: Path) -> Path:
    """Draw the map, write `stem`.png and `stem`.svg, and return the path of the first.

    Args:
        points: The measured mixers.
        stem: Path of both files without the suffix.
    """
    taken = places(points)
    # A row is as high as its fullest box, at least two lines
    heights = []
    for row in range(4):
        most = max(len(taken.get(_at(row, column), [])) for column in range(4))
        heights.append(LINE_HEIGHT * max(2, most) + 0.2)
    total = sum(heights) + GAP * 3
    # 1.9 inches for the names of the rows, 1.0 for the names of the columns and the text
    figure = new_figure(4 * WIDTH + 3 * GAP + 1.9, total + 1.0)
    axes = figure.subplots()
    # The limits below make y grow downward
    tops = [sum(heights[:row]) + GAP * row for row in range(4)]
    centers = {
        _at(row, column): (column * (WIDTH + GAP) + WIDTH / 2, tops[row] + heights[row] / 2)
        for row in range(4)
        for column in range(4)
    }
    # Draw the lines first, since boxes cover their ends
    for one, other in edges(list(taken)):
        _edge(axes, one, other, centers)
    for place, here in taken.items():
        _box(axes, centers[place], here, place.dynamic)
    _captions(axes, tops, heights, total)
    # One unit is about one inch, so that text fits its box
    axes.set_xlim(-1.75, 4 * WIDTH + 3 * GAP + 0.1)
    axes.set_ylim(total + 0.35, -0.75)
    axes.set_aspect("equal")
    axes.set_axis_off()
    return save(figure, stem, dpi=110)


def _at(row: int, column: int) -> Place:
    return Place(*COLUMNS[column], *list(ROWS)[row])


def _edge(axes: Axes, one: Place, other: Place, centers: dict[Place, tuple[float, float]]) -> None:
    """Draw a line between neighbors, or a curve through free space between others."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Outline

    start = centers[one]
    end = centers[other]
    column, other_column = (COLUMNS.index((place.dynamic, place.sparse)) for place in (one, other))
    row, other_row = (list(ROWS).index((place.shares_positions, place.shares_channels)) for place in (one, other))
    # The control point of the curve
    middle_x = (start[0] + end[0]) / 2
    middle_y = (start[1] + end[1]) / 2
    # First and last column differ in one property too: bend around the boxes between them
    if abs(column - other_column) > 1:
        middle_y += 0.8 if row < 2 else -0.8
    elif abs(row - other_row) > 1:
        middle_x += WIDTH + GAP if column < 2 else -(WIDTH + GAP)
    outline = Outline([start, (middle_x, middle_y), end], [Outline.MOVETO, Outline.CURVE3, Outline.CURVE3])
    axes.add_patch(PathPatch(outline, facecolor="none", edgecolor="#AAAAAA", linewidth=1.1, zorder=0))


def _box(axes: Axes, center: tuple[float, float], here: Sequence[Point], dynamic: bool) -> None:
    """Draw a place as a box with the names of its mixers."""
    from matplotlib.patches import FancyBboxPatch

    height = LINE_HEIGHT * len(here) + 0.12
    corner = (center[0] - WIDTH / 2, center[1] - height / 2)
    style = "round,pad=0,rounding_size=0.1"
    box = FancyBboxPatch(corner, WIDTH, height, boxstyle=style, linewidth=1, zorder=1)
    box.set_facecolor(FILL[dynamic])
    box.set_edgecolor(LINE[dynamic])
    axes.add_patch(box)
    for row, point in enumerate(sorted(here, key=lambda point: point.name)):
        measured = point.bidirectional
        # Mark two measurements that have no axis; `_captions` explains the marks
        marks = ("" if measured.properties.linear else " *") + ("" if measured.sparse_channels else " †")
        # Lines of text centered in the box
        y = center[1] + LINE_HEIGHT * (row - (len(here) - 1) / 2)
        text = point.name + marks
        # About 32 letters of the usual size fit
        axes.text(center[0], y, text, ha="center", va="center", fontsize=min(8.5, 8.5 * 32 / len(text)), zorder=2)


def _captions(axes: Axes, tops: Sequence[float], heights: Sequence[float], total: float) -> None:
    """Name columns and rows, and explain lines and marks."""
    for column, (dynamic, sparse) in enumerate(COLUMNS):
        name = f"{'dynamic' if dynamic else 'static'}, {'sparse' if sparse else 'dense'}"
        axes.text(column * (WIDTH + GAP) + WIDTH / 2, -0.35, name, ha="center", fontsize=10, color=LINE[dynamic])
    for top, height, name in zip(tops, heights, ROWS.values(), strict=True):
        axes.text(-0.3, top + height / 2, name, ha="right", va="center", fontsize=10)
    axes.text(-0.3, -0.35, "weights shared over", ha="right", fontsize=9, color="#666666")
    text = (
        "A line joins places that differ in one of these four properties.    "
        "* not linear in its values (a gate, a state)    † mixes channels also between projections"
    )
    axes.text(0, total + 0.25, text, fontsize=8, color="#666666")
