"""The figure of a comparison: BLEU against training time or updates, and BLEU against parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from seq2seq.comparison.groups import Group
from seq2seq.system.canvas import add_legend, add_title, finish_bleu_axes, look, new_figure, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Curve = Sequence[tuple[float, float]]
# Units of time: the least length of the curve in seconds, the unit in seconds, and its name.
_UNITS = ((3 * 3600, 3600, "hours"), (180, 60, "minutes"), (0, 1, "seconds"))


class Band(NamedTuple):
    """Mean, minimum and maximum of the curves of several runs on one axis of times or updates."""

    axis: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def band(curves: Sequence[Curve]) -> Band | None:
    """Average curves over their common range, interpolating linearly between validations; None without such a range."""
    points = [np.array(curve, dtype=float) for curve in curves if len(curve)]  # each (validations, 2)
    if not points:
        return None
    # Outside the common range the mean would have fewer seeds
    start = max(curve[0, 0] for curve in points)
    end = min(curve[-1, 0] for curve in points)
    # Every validation of any seed becomes a point of the mean
    axis = np.unique([x for curve in points for x in curve[:, 0] if start <= x <= end])
    if not len(axis):
        return None
    values = np.stack([np.interp(axis, curve[:, 0], curve[:, 1]) for curve in points])  # (seeds, axis)
    return Band(axis, values.mean(0), values.min(0), values.max(0))


def draw(
    groups: Sequence[Group],
    curves: Mapping[str, Sequence[Curve]],
    split: str,
    stem: Path,
    against: str,
    *,
    title: str | None = None,
) -> Path:
    """Write `stem`.png and `stem`.svg, and return the path of the first.

    Args:
        curves: The curves of each group's runs, by its label.
        split: "test" or "valid", for the scores over parameters; the curves always show validation scores.
        stem: Path of both files without the suffix.
        against: The axis of the curves, "time", "cpu" or "updates".
        title: Title above both panels.
    """
    figure = new_figure(10, 4.2)
    if title:
        add_title(figure, title, size=11)
    left, right = figure.subplots(1, 2)
    _draw_curves(left, groups, [band(curves[group.label]) for group in groups], against)
    _draw_sizes(right, groups, split)
    if len(groups) > 1:
        # One legend for both panels: their colors agree
        add_legend(figure, *right.get_legend_handles_labels())
    return save(figure, stem, dpi=150)


def _draw_curves(axes: Axes, groups: Sequence[Group], bands: Sequence[Band | None], against: str) -> None:
    """Draw the validation scores and shade the range over runs."""
    unit, name = (1, "updates") if against == "updates" else _unit(bands, against)
    for index, (group, result) in enumerate(zip(groups, bands, strict=True)):
        if result is None:
            continue
        style = look(index)
        axes.plot(result.axis / unit, result.mean, label=group.label, markersize=3, **style)
        # One run has no range
        if len(group.runs) > 1:
            color = style["color"]
            axes.fill_between(result.axis / unit, result.low, result.high, color=color, alpha=0.2, linewidth=0)
    several = any(len(group.runs) > 1 for group in groups)
    axes.set_title("validation, mean and range over runs" if several else "validation", fontsize=10)
    axes.set_xlabel(name)
    finish_bleu_axes(axes)


def _unit(bands: Sequence[Band | None], against: str) -> tuple[int, str]:
    """Return the unit of time for the longest curve, in seconds, and the label of the axis."""
    longest = max((each.axis[-1] for each in bands if each), default=0.0)
    seconds, name = next((seconds, name) for least, seconds, name in _UNITS if longest >= least)
    return seconds, f"{'CPU time' if against == 'cpu' else 'training time'} ({name})"


def _draw_sizes(axes: Axes, groups: Sequence[Group], split: str) -> None:
    """Draw the scores over the number of parameters, with a bar for the range over seeds."""
    for index, group in enumerate(groups):
        scores = np.array(group.values(split, "bleu"))
        # Error bars are distances from the mean, not positions
        mean = scores.mean()
        style: dict[str, Any] = look(index) | {"linestyle": "none"}
        axes.errorbar(
            [group.mean("parameters") / 1e6],
            [mean],
            yerr=[[mean - scores.min()], [scores.max() - mean]],
            label=group.label,
            capsize=3,
            **style,
        )
    axes.set_title("test" if split == "test" else "validation, best", fontsize=10)
    axes.set_xlabel("parameters (millions)")
    axes.margins(x=0.15)
    finish_bleu_axes(axes)
