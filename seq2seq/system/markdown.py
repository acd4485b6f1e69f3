"""Formatting of Markdown tables, for comparisons and the atlas."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def markdown_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Collection[str] = (),
    padded: bool = False,
) -> str:
    """Format a Markdown table, without a newline at its end.

    Args:
        header: Names of the columns.
        rows: Texts of the cells.
        right: Names of the columns that are aligned to the right.
        padded: Widen all cells of a column to the longest, for reading in a terminal.
    """
    columns = list(zip(header, *rows, strict=True))
    # Markdown wants three dashes or more below a name
    widths = [max(3, *map(len, column)) if padded else 0 for column in columns]
    aligned = [">" if name in right else "<" for name in header]

    def line(cells: Sequence[str]) -> str:
        texts = [f"{cell:{side}{width}}" for cell, side, width in zip(cells, aligned, widths, strict=True)]
        return "| " + " | ".join(texts) + " |"

    rule = [_rule(width, side) for width, side in zip(widths, aligned, strict=True)]
    return "\n".join([line(header), line(rule), *map(line, rows)])


def _rule(width: int, side: str) -> str:
    """Return the dashes below a column's name, with Markdown's colon for a column aligned to the right."""
    if side == ">":
        return "-" * ((width or 4) - 1) + ":"
    return "-" * (width or 3)
