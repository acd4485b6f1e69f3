"""Overlay mixing matrices on a source that is an image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from seq2seq.analysis.html_report import Pair, ReportSection
from seq2seq.analysis.mixing_matrix import View
from seq2seq.analysis.plots import Row, panels
from seq2seq.images.lines import unpack
from seq2seq.settings.tokenizer import PatchGrid
from seq2seq.system.canvas import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def sections(views: Sequence[View], src: torch.Tensor, pair: Pair, grid: PatchGrid) -> list[ReportSection]:
    """Draw the shares that one patch reads in the encoder, and the shares that each target piece reads.

    Args:
        views: Mixers at work, as `mixing_matrix.views` returns them.
        src: Source ids (1, S).
        pair: Names of the positions of both sides.
        grid: The grid of the image.
    """
    pixels = unpack(src.numpy(), grid)[0]
    query = busiest_patch(pixels, grid)
    found: list[ReportSection] = []
    encoder: list[Row] = [
        (view.title, [(name, matrix[query]) for name, matrix in view.matrices()])
        for view in views
        if view.part == "encoder"
    ]
    cross: list[Row] = [
        (view.title, list(zip(pair.target, view.total, strict=True))) for view in views if view.part == "cross"
    ]
    scale = "The opacity of the red is a patch's share relative to the largest share of the panel."
    text = f"What the patch in the frame (row and column {pair.source[query]}) reads, by layer and head. {scale}"
    # An encoder may have no self mixers
    if encoder:
        figure = draw(encoder, pixels, grid, query)
        found.append(ReportSection("encoder-image", "The encoder's mixing over the image", text, figure))
    text = f"What each piece of the decoder's input reads of the image, by layer. {scale}"
    return [*found, ReportSection("cross-image", "Alignments over the image", text, draw(cross, pixels, grid))]


def busiest_patch(pixels: np.ndarray, grid: PatchGrid) -> int:
    """Return the patch of pixels (height, width, ...) with the largest standard deviation."""
    cells = pixels.reshape(grid.rows, grid.size, grid.columns, -1).swapaxes(1, 2).reshape(grid.length, -1)
    return int(cells.astype(np.float64).std(1).argmax())


def overlay(shares: np.ndarray, grid: PatchGrid) -> np.ndarray:
    """Return a red layer (height, width, 4) whose opacity follows the shares (S,) of the patches."""
    opacity = shares / max(shares.max(), np.finfo(shares.dtype).tiny)
    cells = opacity.reshape(grid.rows, grid.columns)
    layer = np.zeros((grid.height, grid.width, 4))
    layer[..., 0] = 0.85
    layer[..., 3] = 0.8 * cells.repeat(grid.size, 0).repeat(grid.size, 1)  # the image shows through
    return layer


def draw(rows: Sequence[Row], pixels: np.ndarray, grid: PatchGrid, query: int | None = None) -> Figure:
    """Draw a panel for each entry of each row.

    Args:
        rows: The panels with their shares.
        pixels: The image.
        grid: The grid of the image.
        query: A patch to frame, or None.
    """
    from matplotlib.patches import Rectangle

    columns = max(len(entries) for _, entries in rows)
    width = min(1.6, max(0.6, grid.width / 20))  # inches of a panel
    figure = new_figure(0.3 + columns * (width + 0.1), 0.3 + len(rows) * (width * grid.height / grid.width + 0.3))
    for _, _, axes, shares in panels(figure, rows, fontsize=6):
        axes.set_axis_off()
        axes.imshow(pixels, cmap="gray", vmin=0, vmax=255)
        axes.imshow(overlay(shares, grid))
        if query is not None:
            corner = (query % grid.columns * grid.size - 0.5, query // grid.columns * grid.size - 0.5)
            axes.add_patch(Rectangle(corner, grid.size, grid.size, fill=False, edgecolor="red", linewidth=1))
    return figure
