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
        padded: Pad all cells of a column to the length of the longest, for reading in a terminal.
    """
    columns = list(zip(header, *rows, strict=True))
    # Markdown wants three dashes or more below a name
    widths = [max(3, *map(len, column)) if padded else 0 for column in columns]

    def line(cells: Sequence[str]) -> str:
        texts = []
        for cell, name, width in zip(cells, header, widths, strict=True):
            texts.append(cell.rjust(width) if name in right else cell.ljust(width))
        return "| " + " | ".join(texts) + " |"

    rule = []
    for name, width in zip(header, widths, strict=True):
        rule.append("-" * ((width or 4) - 1) + ":" if name in right else "-" * (width or 3))
    return "\n".join([line(header), line(rule), *map(line, rows)])
