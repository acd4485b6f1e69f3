"""Figures: colors, titles, legends, and files whose bytes depend only on the figure."""

from __future__ import annotations

import statistics
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seq2seq.system.files import atomic_file
from seq2seq.system.packages import require_installed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, whose colors most color-blind readers can distinguish.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
LINE_STYLES = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


def require_matplotlib(what: str = "--figure") -> None:
    """Check that matplotlib, an optional dependency, is installed.

    Args:
        what: The option or output that needs it, for the message.

    Raises:
        ValueError: It is not installed; the message names the remedy.
    """
    require_installed("matplotlib", what, extra="figure")


def look(index: int) -> dict[str, Any]:
    """Return color, line style and marker of a curve, as keyword arguments for matplotlib's `plot`.

    The first eight curves differ in color and marker. The next eight have the same colors, with other line styles and
    markers, and so on.

    Args:
        index: Position of the curve in the legend, from 0.
    """
    turn = index // len(COLORS)
    return {
        "color": COLORS[index % len(COLORS)],
        "linestyle": LINE_STYLES[turn % len(LINE_STYLES)],
        "marker": MARKERS[(index + turn) % len(MARKERS)],
    }


def new_figure(width: float, height: float) -> Figure:
    """Create an empty figure of this size in inches, without a window."""
    # pyplot would keep figures alive in global state and choose a window system
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # The constrained layout does not cut off labels and legends
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def add_title(figure: Figure, title: str, *, size: int) -> None:
    """Add a title above all panels, broken into lines of the figure's width, and make room for more than one line.

    Args:
        size: Font size in points.
    """
    text = figure.suptitle(title, fontsize=size)
    before = text.get_window_extent()
    if (excess := before.width / figure.bbox.width) > 1:
        # Break within words, too: signatures and paths have no spaces
        text.set_text(textwrap.fill(title, _fitting(len(title), excess)))
        figure.set_figheight(figure.get_figheight() + (text.get_window_extent().height - before.height) / figure.dpi)


def add_legend(figure: Figure, handles: Sequence[Any], labels: Sequence[str]) -> None:
    """Add a legend below all panels, in the largest number of columns that fits, at most four.

    The figure grows by the height of the legend. A label that is wider than the figure is broken at spaces.
    """
    for columns in range(min(4, len(labels)), 0, -1):
        # Measure before the layout, where a tall legend would leave no room for panels
        legend = figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
        excess = legend.get_window_extent().width / figure.bbox.width
        if columns == 1 and excess > 1:
            width = _fitting(max(map(len, labels)), excess)
            for text in legend.get_texts():
                text.set_text(textwrap.fill(text.get_text(), width, break_long_words=False, break_on_hyphens=False))
        if columns == 1 or excess <= 1:
            figure.set_figheight(figure.get_figheight() + legend.get_window_extent().height / figure.dpi)
            return
        legend.remove()


def _fitting(length: int, excess: float) -> int:
    """Return the number of characters that fit, if `length` characters are too wide by the factor `excess`."""
    # Some characters are wider than others
    return int(0.9 * length / excess)


def draw_means(figure: Figure, axes: Axes, curves: Mapping[str, Sequence[tuple[float, Sequence[float]]]]) -> None:
    """Draw the mean over seeds as a curve for each label, with the range shaded, and a legend below.

    Args:
        figure: The figure of `axes`.
        axes: The axes to draw on; their y axis is BLEU.
        curves: By label, pairs of x and the values of all seeds at x, in order of x.
    """
    for index, (label, points) in enumerate(curves.items()):
        style = look(index)
        x = [position for position, _ in points]
        axes.plot(x, [statistics.fmean(values) for _, values in points], label=label, markersize=4, **style)
        # A single run has no range
        if any(len(values) > 1 for _, values in points):
            low, high = ([extreme(values) for _, values in points] for extreme in (min, max))
            axes.fill_between(x, low, high, color=style["color"], alpha=0.2, linewidth=0)
    finish_bleu_axes(axes)
    add_legend(figure, *axes.get_legend_handles_labels())


def finish_bleu_axes(axes: Axes) -> None:
    """Label the y axis BLEU, draw a light grid, and remove the frame above and on the right."""
    axes.set_ylabel("BLEU")
    axes.grid(alpha=0.3, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)


def save(figure: Figure, stem: Path, *, dpi: int = 130) -> Path:
    """Write `stem`.png and `stem`.svg, and return the path of the PNG.

    The same figure gives the same bytes: an SVG has no date, and its ids follow from the file's name.
    """
    from matplotlib import rc_context

    for suffix in ("svg", "png"):
        path = stem.with_name(f"{stem.name}.{suffix}")
        metadata = {"Date": None} if suffix == "svg" else None
        # Without a salt, ids of an SVG's elements are random
        with atomic_file(path) as file, rc_context({"svg.hashsalt": stem.name}), warnings.catch_warnings():
            # A character that no installed font has is drawn as a box (docs/atlas.md)
            warnings.filterwarnings("ignore", message="Glyph .* missing from font")
            figure.savefig(file, format=suffix, dpi=dpi, metadata=metadata)
    return stem.with_name(f"{stem.name}.png")
