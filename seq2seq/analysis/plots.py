"""Plots of mixers: matrices by layer and head, kernels, centers, and distances by layer."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from seq2seq.analysis.mixing_matrix import View, by_head, distance_profile, locality, uniform_weights
from seq2seq.kernels.band_matrix import left_padding
from seq2seq.system.canvas import look, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Maximum number of labels on a side of a matrix; a longer sentence has a label for every n-th piece.
MOST_LABELS = 40
COLOR_MAP = "Blues"
# Fonts with Chinese, Japanese or Korean, as Linux, macOS and Windows install them.
WIDE_FONTS = (
    *("Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans CJK KR", "Source Han Sans SC", "WenQuanYi Zen Hei"),
    *("Droid Sans Fallback", "PingFang SC", "Hiragino Sans", "Microsoft YaHei", "Yu Gothic", "Malgun Gothic"),
    "Arial Unicode MS",
)


@functools.cache
def families() -> list[str]:
    """List fonts for pieces of any script: matplotlib's own, then the installed WIDE_FONTS."""
    from matplotlib import font_manager

    # A missing family causes a warning for every piece
    installed = set(font_manager.get_font_names())
    return ["DejaVu Sans", *(name for name in WIDE_FONTS if name in installed)]


# A row of panels: its title, and for each panel its name and numbers.
Row = tuple[str, Sequence[tuple[str, torch.Tensor]]]


def panels(figure: Figure, rows: Sequence[Row], *, fontsize: int = 7) -> Iterator[tuple[int, int, Axes, np.ndarray]]:
    """Add a grid of titled panels to a figure; the title of the first panel in a row also names the row.

    Yields:
        The row, column, axes and numbers of each panel.
    """
    # Layers may differ in the number of heads
    grid: Any = figure.subplots(len(rows), max(len(entries) for _, entries in rows), squeeze=False)
    for r, (title, entries) in enumerate(rows):
        for axes in grid[r, len(entries) :]:
            axes.set_axis_off()
        for c, ((name, values), axes) in enumerate(zip(entries, grid[r], strict=False)):
            text = axes.set_title(name if c else f"{title}: {name}", fontsize=fontsize, loc="center" if c else "left")
            # A piece may be a dollar sign
            text.set_parse_math(False)
            yield r, c, axes, values.detach().cpu().numpy()


def matrices(rows: Sequence[Row], down: list[str], across: list[str]) -> Figure:
    """Draw matrices (T, S) as a grid.

    Args:
        rows: Title and named matrices of each row of the grid.
        down: Names of the T positions.
        across: Names of the S positions.
    """
    columns = max(len(entries) for _, entries in rows)
    width = _inches(across)
    height = _inches(down)
    # Inches: 1.5 for the names at the left and the scale at the right, 1.0 for the names below
    figure = new_figure(1.5 + columns * (width + 0.15), 1.0 + len(rows) * (height + 0.3))
    for r, c, axes, matrix in panels(figure, rows):
        # aspect auto: all panels have one size
        axes.imshow(matrix, cmap=COLOR_MAP, norm=_shades(), aspect="auto")
        # Only the lowest panel of a column names the positions across
        lowest = r == len(rows) - 1 or c >= len(rows[r + 1][1])
        _name_ticks(axes, down if c == 0 else None, across if lowest else None)
    _bar(figure, len(rows) * height, "share of the row")
    return figure


def _inches(names: list[str]) -> float:
    """Return the length of a matrix' side with room for its labels, 0.088 inches each."""
    return max(1.2, 0.088 * min(len(names), MOST_LABELS))


def _shades() -> Any:
    """Map shares from 0 to 1 to colors, with more contrast among small ones."""
    from matplotlib.colors import PowerNorm

    # Square root: a uniform share of 40 positions, 0.025, would be near white on a linear scale
    return PowerNorm(0.5, 0, 1)


def _colors(weights: Sequence[torch.Tensor]) -> dict[str, Any]:
    """Return imshow's arguments for weights: one hue if all are shares from 0 to 1, otherwise a hue for each sign."""
    from matplotlib.colors import Normalize

    low, high = min(float(each.min()) for each in weights), max(float(each.max()) for each in weights)
    # Allow for rounding
    if low >= 0 and high <= 1.001:
        return {"cmap": COLOR_MAP, "norm": _shades()}
    # White is 0
    most = max(-low, high)
    return {"cmap": "RdBu", "norm": Normalize(-most, most)}


def _bar(figure: Figure, height: float, label: str) -> None:
    """Draw the scale of all matrices of a figure, whose grid is about `height` inches high."""
    (image,) = figure.axes[0].images
    # The bar is at most 2.4 inches high
    bar = figure.colorbar(image, ax=figure.axes, shrink=min(1.0, 2.4 / height), aspect=25, pad=0.01)
    # More ticks among small shares
    if image.get_cmap().name == COLOR_MAP:
        bar.set_ticks([0, 0.05, 0.2, 0.5, 1])
    bar.ax.tick_params(labelsize=6)
    bar.set_label(label, fontsize=7)


def _name_ticks(axes: Axes, down: list[str] | None, across: list[str] | None) -> None:
    """Name the positions on both sides of a matrix; None leaves a side without names."""
    for names, axis, turn in ((down, axes.yaxis, 0), (across, axes.xaxis, 90)):
        axis.set_tick_params(length=0, labelsize=5.5, pad=1)
        if names is None:
            axis.set_ticks([])
            continue
        # Show every step-th name; the division rounds up
        step = -(-len(names) // MOST_LABELS)
        axis.set_ticks(range(0, len(names), step), names[::step], rotation=turn)
        for label in axis.get_ticklabels():
            # A piece may be a dollar sign
            label.set_parse_math(False)
            label.set_fontfamily(families())
    for spine in axes.spines.values():
        spine.set_linewidth(0.4)


def mixing(views: Sequence[View], down: list[str], across: list[str]) -> Figure:
    """Draw the mixing matrices of one part by layer: the whole mixer, then each head."""
    return matrices([(view.title, view.matrices()) for view in views], down, across)


def weights(views: Sequence[View], name: str, down: list[str], across: list[str]) -> Figure:
    """Draw weights that mixers report themselves, (B, H, T, S), of the first sentence."""
    return matrices([(view.title, by_head(view.details[name][0])) for view in views], down, across)


def distances(views: Sequence[View]) -> Figure:
    """Draw the share at each distance by layer in a panel for each part, and the locality of all layers in the last.

    Dashed lines show uniform weights.
    """
    parts = list(dict.fromkeys(view.part for view in views))
    figure = new_figure(3.4 * len(parts) + 3.2, 3.1)
    *panels, last = figure.subplots(1, len(parts) + 1)
    ticks: list[str] = []
    for part, axes in zip(parts, panels, strict=True):
        mine = [view for view in views if view.part == part]
        for view in mine:
            style = look(view.layer - 1)
            profile = distance_profile(view.total, view.columns).cpu().numpy()
            axes.plot(profile, markersize=2.5, linewidth=1.2, label=view.title, **style)
            last.barh(len(ticks), locality(view), color=style["color"])
            ticks.append(f"{part} {view.layer}")
        # All layers of a part have the same positions
        equal = uniform_weights(len(mine[0].total), causal=part == "decoder")
        profile = distance_profile(equal, mine[0].columns).numpy()
        axes.plot(profile, color="#999999", linestyle="--", linewidth=1, label="uniform weights")
        axes.xaxis.get_major_locator().set_params(integer=True)
        _label(axes, f"{part}: mean share at a distance", "distance |i - j|", "share of the row")
        axes.legend(fontsize=6, frameon=False)
    # Uniform weights are at 1
    last.axvline(1, color="#999999", linestyle="--", linewidth=1)
    last.set_yticks(range(len(ticks)), ticks)
    last.invert_yaxis()
    _label(last, "mean distance", "relative to uniform weights", "")
    return figure


def kernels(views: Sequence[View], name: str) -> Figure:
    """Draw fixed kernels (H, K), a panel for each layer: the weight of each offset, a line for each head."""
    figure = new_figure(2.3 * len(views) + 0.4, 2.3)
    panels = np.atleast_1d(figure.subplots(1, len(views), sharey=True))
    for axes, view in zip(panels, views, strict=True):
        for head, kernel in enumerate(view.details[name].detach().cpu().numpy()):
            # Layers may differ in kernel size
            offsets = _offsets(view, len(kernel))
            axes.plot(offsets, kernel, markersize=2.5, linewidth=1, label=f"head {head + 1}", **look(head))
        axes.xaxis.get_major_locator().set_params(integer=True)
        _label(axes, view.title, "offset j - i", "weight" if view is views[0] else "")
    axes.legend(fontsize=6, frameon=False)
    return figure


def predicted_kernels(views: Sequence[View], name: str, pieces: list[str]) -> Figure:
    """Draw kernels (B, T, H, K) along the first sentence: a row for each layer, a panel for each head."""
    # (H, T, K) for each layer
    rows = [(view.title, by_head(view.details[name][0].transpose(0, 1))) for view in views]
    height = _inches(pieces)
    columns = max(len(entries) for _, entries in rows)
    figure = new_figure(1.5 + 1.5 * columns, 0.8 + len(views) * (height + 0.45))
    colors = _colors([view.details[name][0] for view in views])
    for r, c, axes, kernel in panels(figure, rows):
        offsets = _offsets(views[r], kernel.shape[1])
        # Ticks are at the centers of cells
        extent = (offsets[0] - 0.5, offsets[-1] + 0.5, len(pieces) - 0.5, -0.5)
        axes.imshow(kernel, **colors, aspect="auto", extent=extent)
        _name_ticks(axes, pieces if c == 0 else None, None)
        axes.set_xticks([offsets[0], 0, offsets[-1]])
        axes.set_xlabel("offset j - i", fontsize=6, labelpad=1)
    _bar(figure, len(views) * height, "weight")
    return figure


def centers(views: Sequence[View]) -> Figure:
    """Draw the centers of the heads by layer.

    Centers (H,) have a bar of one standard deviation each way; centers on a grid (H, 2) have a circle, in a panel for
    each layer.
    """
    if views[0].details["centers"].dim() == 2:
        return _centers_on_a_grid(views)
    figure = new_figure(5.5, 0.9 + 0.45 * len(views))
    axes = figure.subplots()
    for row, view in enumerate(views):
        positions, widths = _widths(view)
        for head, (center, width) in enumerate(zip(positions, widths, strict=True)):
            style = look(head)
            axes.errorbar(
                center,
                # Spread the heads of a layer over half a line, so that their bars do not overlap
                row + 0.5 * (head / max(1, len(positions) - 1) - 0.5),
                xerr=width,
                marker=style["marker"],
                markersize=4,
                linewidth=1,
                color=style["color"],
                # Only the first layer has labels
                label=None if row else f"head {head + 1}",
            )
    axes.axvline(0, color="#999999", linewidth=0.6)
    axes.legend(fontsize=6, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    axes.set_yticks(range(len(views)), [f"{view.part} {view.layer}" for view in views])
    axes.invert_yaxis()
    _label(axes, "centers of the heads ± one standard deviation", "offset j - i", "")
    return figure


def _centers_on_a_grid(views: Sequence[View]) -> Figure:
    from matplotlib.patches import Circle

    figure = new_figure(2.2 * len(views) + 0.4, 2.5)
    panels = np.atleast_1d(figure.subplots(1, len(views), sharex=True, sharey=True))
    for axes, view in zip(panels, views, strict=True):
        positions, widths = _widths(view)
        for head, ((row, column), width) in enumerate(zip(positions, widths, strict=True)):
            style = look(head)
            axes.plot(column, row, marker=style["marker"], markersize=4, color=style["color"])
            circle = Circle((column, row), width, fill=False, color=style["color"], linewidth=0.8)
            circle.set_linestyle(style["linestyle"])
            axes.add_patch(circle)
        # Equal scales keep circles round
        axes.set_aspect("equal")
        _label(axes, f"{view.part} {view.layer}", "columns", "rows" if view is views[0] else "")
    # Rows are counted downwards, in all panels
    axes.invert_yaxis()
    return figure


def _widths(view: View) -> tuple[np.ndarray, list[float]]:
    """Return the centers, and the standard deviation 1 / sqrt(2 a) of each head's bell."""
    sharpness = view.details["sharpness"].detach().flatten().tolist()
    # exp(-a (d - c)^2) is a Gaussian of variance 1 / (2 a)
    centers = view.details["centers"].detach().cpu().numpy()
    return centers, [(2 * a) ** -0.5 for a in sharpness]


def numbers(views: Sequence[View], name: str) -> Figure:
    """Draw a number for each head, by layer."""
    figure = new_figure(4.5, 2.6)
    axes = figure.subplots()
    for view in views:
        values = view.details[name].detach().flatten().cpu().numpy()
        for head, value in enumerate(values):
            style = look(head)
            axes.plot(view.layer, value, markersize=4, color=style["color"], marker=style["marker"])
    axes.set_xticks(sorted({view.layer for view in views}))
    _label(axes, f"{name} of the heads", "layer", name)
    return figure


def _offsets(view: View, taps: int) -> np.ndarray:
    """Return the offset j - i of each tap: up to 0 in a decoder, on both sides elsewhere."""
    return np.arange(taps) - left_padding(taps, view.part == "decoder")


def _label(axes: Axes, title: str, across: str, down: str) -> None:
    """Set the title and the labels of the x and y axes, and thin out the frame."""
    axes.set_title(title, fontsize=8)
    axes.set_xlabel(across, fontsize=7)
    axes.set_ylabel(down, fontsize=7)
    axes.tick_params(labelsize=6)
    axes.grid(alpha=0.3, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
