"""Readers of CSV (RFC 4180) and TSV."""

from __future__ import annotations

import contextlib
import csv
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from seq2seq.data.cleaning import Pairs
from seq2seq.data.readers import LanguageColumns, in_blocks
from seq2seq.data.text_files import read_lines, warn_once

# Most characters of a field. A longer field has a quote that is never closed, and would swallow the whole file.
LONGEST_FIELD = 1 << 24
# Number of rows from which to infer the delimiter of a file without a header, and how a TSV file uses quotes.
_SAMPLE_ROWS = 1000
_LONG_ROW = 1 << 17  # characters; such a row ends the sample
# Least share of these rows that the right delimiter cuts into equally many fields. Reading reports other rows.
_ALIKE = 0.9
# Stands for a CR inside a line, at which Python's csv module would end the line; decoded text has no lone surrogate.
_CR = "\udc0d"
# A field of CSV in quotes.
_QUOTED = re.compile(r'"(?:[^"]|"")*"')

Row = tuple[int, list[str]]  # the number of its first line, and its fields


@in_blocks
def csv_pairs(path: Path, columns: LanguageColumns, *, delimiter: str = "") -> Iterator[tuple[str, str]]:
    """Read pairs from a CSV file; the first row names its columns, unless `columns` has numbers.

    Fields in quotes may hold delimiters, doubled quotes and line ends.

    Args:
        delimiter: By default the comma, semicolon or tab that fits the file.

    Raises:
        ValueError: A column is missing, a quote is not closed, or a row has more or fewer fields than the first.
    """
    delimiter = delimiter or _find_delimiter(path, columns)
    remedy = f'a field that holds {delimiter!r} must be in quotes ("...")'
    for src, tgt in _pairs(path, _csv_rows(path, delimiter), columns, remedy):
        yield src.replace(_CR, "\r"), tgt.replace(_CR, "\r")


def tsv_pairs(path: Path, columns: LanguageColumns) -> Iterator[Pairs]:
    """Read pairs from a file with tabs between its columns, in which quotes are text.

    The first line names the columns, unless `columns` has numbers; blank lines are not rows. A file is read as CSV if
    its header is in quotes, or if its fields have quotes as a spreadsheet writes them.

    Raises:
        ValueError: A column is missing, or a row has more or fewer fields than the first.
    """
    head = _sample(_tsv_rows(path))
    first = head[0] if head else []
    named = isinstance(columns.both[0], str) and columns.both[0] not in first
    quoted_header = named and len(first) > 1 and all(len(name) > 1 and name[0] == name[-1] == '"' for name in first)
    if quoted_header or _quoting(head) == {True}:
        yield from csv_pairs(path, columns, delimiter="\t")
        return
    remedy = (
        f"tabs separate fields; remove rows with a tab in a text (awk -F'\\t' 'NF == {len(first)}'), or quote "
        "fields as CSV does and set data.format=csv"
    )
    for block in in_blocks(_pairs)(path, _tsv_rows(path), columns, remedy):
        if True in _quoting(zip(*block, strict=True)):
            warn_once(
                f'{path} has fields quoted as a spreadsheet does ("a ""quoted"" word"), and other quotes: '
                "all quotes are read as text; set data.format=csv if they enclose fields"
            )
        yield block


def _pairs(path: Path, rows: Iterator[Row], columns: LanguageColumns, remedy: str) -> Iterator[tuple[str, str]]:
    """Choose the fields of both languages; raise ValueError with `remedy` if a row is wider or narrower than the first.

    A header is not a pair, even in the middle of a file that was joined from several.
    """
    number, first = next(rows, (1, []))
    if not first:
        raise ValueError(f"{path} is empty: it has no rows")
    src, tgt = _column_numbers(path, first, columns)
    # If columns are numbers, the file has no header, unless the fields of its first row are the languages
    named = isinstance(columns.both[0], str) or (first[src], first[tgt]) == (columns.src, columns.tgt)
    for line, row in itertools.chain([(number, first)], rows):
        if len(row) != len(first):
            raise ValueError(
                f"{path}: line {line} has {len(row)} fields where the first row has {len(first)}: {remedy}"
            )
        if not (named and row == first):
            yield row[src], row[tgt]


def _tsv_rows(path: Path) -> Iterator[Row]:
    return ((number, line.split("\t")) for number, line in enumerate(read_lines(path), start=1) if line)


def _csv_rows(path: Path, delimiter: str) -> Iterator[Row]:
    """Parse rows; blank lines are not rows."""
    # The limit holds for the whole process, and is 131,072 by default
    csv.field_size_limit(LONGEST_FIELD)
    lines = (line.replace("\r", _CR) + "\n" for line in read_lines(path))
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    line = 1
    try:
        for row in reader:
            if row:
                yield line, row
            line = reader.line_num + 1
    except csv.Error as error:
        reason = "a quote is not closed" if "unexpected end" in str(error) or "limit" in str(error) else str(error)
        raise ValueError(
            f'{path}: line {line} is not CSV: {reason}; a field with quotes is written as "a ""quoted"" word"'
        ) from error


def _sample(rows: Iterator[Row]) -> list[list[str]]:
    """Read the first rows, before one that is long or cannot be read, which reading the file reports."""
    found: list[list[str]] = []
    short = itertools.takewhile(lambda row: sum(map(len, row[1])) < _LONG_ROW, rows)
    with contextlib.suppress(ValueError):
        found.extend(row for _, row in itertools.islice(short, _SAMPLE_ROWS))
    return found


def _find_delimiter(path: Path, columns: LanguageColumns) -> str:
    """Find the delimiter of a CSV file: by its header or, without a header, by how evenly it divides the rows."""
    if isinstance(columns.both[0], int):
        needed = 1 + max(int(column) for column in columns.both)
        return min("\t;,", key=lambda delimiter: _unlikeliness(path, delimiter, needed))
    widths = dict.fromkeys(",;\t", 0)
    for delimiter in widths:
        with contextlib.suppress(ValueError):
            _, header = next(_csv_rows(path, delimiter), (1, []))
            widths[delimiter] = len(header)
            _column_numbers(path, header, columns)
            return delimiter
    # No delimiter gives both columns: reading reports the columns of the likeliest delimiter
    return max(widths, key=lambda delimiter: widths[delimiter])


def _unlikeliness(path: Path, delimiter: str, needed: int) -> tuple[bool, int, float]:
    """Rate a delimiter by the first rows; the lowest rating is the likeliest.

    Texts also contain commas, with a space after them; they rarely contain tabs and semicolons.

    Returns:
        True if columns are missing or rows are uneven, the number of surplus columns, and the share of fields that
        begin with a space.
    """
    rows = _sample(_csv_rows(path, delimiter))
    (width, count), *_ = Counter(map(len, rows)).most_common(1) or [(0, 0)]
    later = [field for row in rows for field in row[1:]]
    spaced = sum(field.startswith(" ") for field in later) / max(1, len(later))
    return width < needed or count < _ALIKE * len(rows), width - needed, spaced


def _column_numbers(path: Path, header: Sequence[str], columns: LanguageColumns) -> tuple[int, int]:
    """Return the numbers of the source and target columns, from 0; raise ValueError if `header` lacks one."""
    chosen = []
    for column in columns.both:
        if isinstance(column, int):
            if column >= len(header):
                raise ValueError(f"{path}: line 1 has {len(header)} columns where {column + 1} are needed")
            chosen.append(column)
        elif header.count(column) == 1:
            chosen.append(header.index(column))
        elif column in header:
            raise ValueError(f"{path} has the column {column!r} {header.count(column)} times: rename one")
        else:
            raise ValueError(
                f"{path} has {columns.missing(column, (name[:40] for name in header))} (numbers from 0 if its first "
                "line is not a header)"
            )
    return chosen[0], chosen[1]


def _quoting(rows: Iterable[Sequence[str]]) -> set[bool]:
    """Collect True for fields in quotes with doubled quotes inside, as in CSV, and False for other quotes."""
    found = set()
    for field in (field for row in rows for field in row if '"' in field):
        if not _QUOTED.fullmatch(field):
            found.add(False)
        # A field in quotes without quotes inside may be of either kind
        elif '""' in field[1:-1]:
            found.add(True)
    return found
