"""Formatting of Markdown: tables, and text without markup of others."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

# The beginnings of HTML tags, and what makes links and images of brackets.
_MARKUP = re.compile(r"<(?=[A-Za-z/!?])|(?<=\])\(")


def without_markup(text: str) -> str:
    """Return Markdown in which foreign names make neither HTML nor links nor images."""
    return _MARKUP.sub(r"\\\g<0>", text)


def markdown_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Collection[str] = (),
    padded: bool = False,
) -> str:
    """Format a Markdown table, without a newline at its end; a vertical bar in a cell does not end it.

    Args:
        header: Names of the columns.
        rows: Texts of the cells.
        right: Names of the columns that are aligned to the right.
        padded: Pad all cells of a column to the length of the longest, for reading in a terminal.
    """
    header, right, *rows = [[re.sub(r"[\\|]", r"\\\g<0>", cell) for cell in row] for row in (header, right, *rows)]
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
