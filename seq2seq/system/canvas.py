"""Figures: the palette, an empty canvas, and files that are byte for byte the same for the same figure."""

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

# Okabe and Ito's palette, which most color-blind readers can tell apart; then other lines and markers.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
LINE_STYLES = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


def require_matplotlib(what: str = "--figure") -> None:
    """Check that matplotlib is installed, which is an optional dependency.

    Args:
        what: The option or output that needs it, for the message.

    Raises:
        ValueError: It is not installed; names the remedy.
    """
    require_installed("matplotlib", what, extra="figure")


def look(index: int) -> dict[str, Any]:
    """Return color, line style and marker of one of several curves.

    The first eight differ in color and marker; each further eight repeat the colors with another line style, and with
    other markers, so that even points without a line differ.

    Args:
        index: Position of the curve in the legend, from 0.

    Returns:
        Keyword arguments for matplotlib's `plot`.
    """
    # One more each time the colors have been used up
    turn = index // len(COLORS)
    return {
        "color": COLORS[index % len(COLORS)],
        "linestyle": LINE_STYLES[turn % len(LINE_STYLES)],
        "marker": MARKERS[(index + turn) % len(MARKERS)],
    }


def new_figure(width: float, height: float) -> Figure:
    """Create an empty figure, in inches, that is independent of any window system."""
    # No pyplot: it keeps figures alive in global state and chooses a window system
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # Constrained: labels and legends get room instead of being cut off
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def add_title(figure: Figure, title: str, *, size: int) -> None:
    """Add a title above all panels, in as many lines as the figure's width asks for; it grows by all but the first.

    Args:
        size: Size of the letters, in points.
    """
    text = figure.suptitle(title, fontsize=size)
    before = text.get_window_extent()
    if (excess := before.width / figure.bbox.width) > 1:
        # Signatures and paths have no spaces
        text.set_text(textwrap.fill(title, _fitting(len(title), excess)))
        figure.set_figheight(figure.get_figheight() + (text.get_window_extent().height - before.height) / figure.dpi)


def add_legend(figure: Figure, handles: Sequence[Any], labels: Sequence[str]) -> None:
    """Add a legend below all panels, in as many columns, at most four, as the figure is wide enough for.

    The figure grows by the height of the legend, so that the panels keep theirs. A label that is longer than the figure
    is wide is broken at spaces.
    """
    for columns in range(min(4, len(labels)), 0, -1):
        # Measured before the figure is laid out, in which a legend higher than it leaves no room for panels
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
    """Return how many characters of a text fit in the figure, which `length` of them exceed by this factor."""
    # Some are wider than others
    return int(0.9 * length / excess)


def draw_means(figure: Figure, axes: Axes, curves: Mapping[str, Sequence[tuple[float, Sequence[float]]]]) -> None:
    """Draw a curve for each label, with the range over seeds shaded, and a legend below.

    Args:
        figure: The figure of `axes`.
        axes: Where to draw; the y axis is BLEU.
        curves: By label, pairs of x and the values of all seeds there, in order of x.
    """
    for index, (label, points) in enumerate(curves.items()):
        style = look(index)
        x = [position for position, _ in points]
        axes.plot(x, [statistics.fmean(values) for _, values in points], label=label, markersize=4, **style)
        # One run has no range
        if any(len(values) > 1 for _, values in points):
            low, high = ([extreme(values) for _, values in points] for extreme in (min, max))
            axes.fill_between(x, low, high, color=style["color"], alpha=0.2, linewidth=0)
    finish_bleu_axes(axes)
    add_legend(figure, *axes.get_legend_handles_labels())


def finish_bleu_axes(axes: Axes) -> None:
    """Name the y axis BLEU, draw a light grid, and take away the frame above and on the right."""
    axes.set_ylabel("BLEU")
    axes.grid(alpha=0.3, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)


def save(figure: Figure, stem: Path, *, dpi: int = 130) -> Path:
    """Write `stem`.png and `stem`.svg, and return the path of the first.

    The same figure gives the same bytes: an SVG gets no date, and the ids in it follow from the file's name instead of
    from a random number.
    """
    from matplotlib import rc_context

    # SVG for papers, PNG for pages and chats
    for suffix in ("svg", "png"):
        path = stem.with_name(f"{stem.name}.{suffix}")
        # PNG has no date of its own
        metadata = {"Date": None} if suffix == "svg" else None
        # The hash salt seeds the ids of an SVG's elements, which are random otherwise
        with atomic_file(path) as file, rc_context({"svg.hashsalt": stem.name}), warnings.catch_warnings():
            # A character that no installed font has is drawn as a box (docs/atlas.md)
            warnings.filterwarnings("ignore", message="Glyph .* missing from font")
            figure.savefig(file, format=suffix, dpi=dpi, metadata=metadata)
    return stem.with_name(f"{stem.name}.png")
