"""The figure of a comparison: BLEU against training time or updates, and BLEU against parameters."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from seq2seq.experiments.comparison import Group

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Curve = Sequence[tuple[float, float]]
# Okabe and Ito's colours, which most colour-blind readers can tell apart, then line styles.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
STYLES = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_UNITS = ((3 * 3600, 3600, "hours"), (180, 60, "minutes"), (0, 1, "seconds"))


class Band(NamedTuple):
    """Curves of several seeds on one axis of times or updates: their mean, least and greatest."""

    places: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def require_matplotlib(what: str = "--figure") -> None:
    """ValueError with the remedy where matplotlib, which `what` needs, is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError(f"{what} needs matplotlib: pip install -c constraints.txt -e '.[figure]'")


def band(curves: Sequence[Curve]) -> Band | None:
    """The curves over the stretch that all of them have, straight between two validations; None if none."""
    points = [np.array(curve, dtype=float) for curve in curves if len(curve)]  # each (validations, 2)
    if not points:
        return None
    low, high = max(p[0, 0] for p in points), min(p[-1, 0] for p in points)
    places = np.unique([place for p in points for place in p[:, 0] if low <= place <= high])
    if not len(places):
        return None
    values = np.stack([np.interp(places, p[:, 0], p[:, 1]) for p in points])  # (seeds, places)
    return Band(places, values.mean(0), values.min(0), values.max(0))


def draw(groups: Sequence[Group], split: str, stem: Path, against: str = "time") -> list[Path]:
    """Write `stem`.png and `stem`.svg, curves against "time" or "updates", and return their paths."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from seq2seq.files import atomic_file

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    curves, against_size = figure.subplots(1, 2)
    _draw_curves(curves, groups, against)
    _draw_sizes(against_size, groups, split)
    if len(groups) > 1:
        handles, labels = against_size.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(groups)), frameon=False)
    paths = []
    for suffix in ("png", "svg"):
        paths.append(stem.with_name(f"{stem.name}.{suffix}"))
        with atomic_file(paths[-1]) as file:
            # no date in the file: the same runs give the same figure
            figure.savefig(file, format=suffix, dpi=150, metadata={"Date": None} if suffix == "svg" else None)
    return paths


def _look(index: int) -> dict[str, Any]:
    return {"color": COLOURS[index % len(COLOURS)], "linestyle": STYLES[index // len(COLOURS) % len(STYLES)]}


def _draw_curves(axes: Axes, groups: Sequence[Group], against: str) -> None:
    bands = [band([run.curve(against) for run in group.runs]) for group in groups]
    longest = max((b.places[-1] for b in bands if b), default=0.0)
    unit, name = next((unit, f"training time ({name})") for least, unit, name in _UNITS if longest >= least)
    if against == "updates":
        unit, name = 1, "updates"
    for index, (group, found) in enumerate(zip(groups, bands, strict=True)):
        if found is None:
            continue
        places, look = found.places / unit, _look(index)
        axes.plot(places, found.mean, label=group.label, marker=MARKERS[index % len(MARKERS)], markersize=3, **look)
        if len(group.runs) > 1:
            axes.fill_between(places, found.low, found.high, color=look["color"], alpha=0.2, linewidth=0)
    seeds = any(len(group.runs) > 1 for group in groups)
    axes.set_title("validation, mean and range over seeds" if seeds else "validation", fontsize=10)
    axes.set_xlabel(name)
    _finish(axes)


def _draw_sizes(axes: Axes, groups: Sequence[Group], split: str) -> None:
    for index, group in enumerate(groups):
        scores, size = np.array(group.values(split, "bleu")), group.mean("parameters") / 1e6
        mean = scores.mean()
        reach = [[mean - scores.min()], [scores.max() - mean]]
        axes.errorbar(
            [size], [mean], yerr=reach, label=group.label, color=COLOURS[index % len(COLOURS)],
            marker=MARKERS[index % len(MARKERS)], linestyle="none", capsize=3,
        )  # fmt: skip
    axes.set_title("test" if split == "test" else "validation, best", fontsize=10)
    axes.set_xlabel("parameters (millions)")
    axes.margins(x=0.15)
    _finish(axes)


def _finish(axes: Axes) -> None:
    axes.set_ylabel("BLEU")
    axes.grid(alpha=0.3, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
