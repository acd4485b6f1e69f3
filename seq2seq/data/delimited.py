"""Readers of CSV (RFC 4180) and TSV."""

from __future__ import annotations

import contextlib
import csv
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from seq2seq.data.cleaning import Pairs
from seq2seq.data.readers import Columns, in_blocks, read_table_lines

# Characters of a field: one more is a quote that is never closed, which would swallow the rest of the file.
LONGEST_FIELD = 1 << 24
# Rows of a file without a header by which its delimiter is found.
_LOOK_AT = 1000
# Share of them that its right delimiter divides alike; the others are mistakes, which reading names.
_EVEN = 0.9
# Stands for a CR that ends no line, at which Python's csv module would end one; no decoded text has a lone surrogate.
_CR = "\udc0d"


def csv_pairs(path: Path, columns: Columns) -> Iterator[Pairs]:
    """Read pairs of a CSV file; the first row names its columns, unless `columns` has numbers.

    Fields may be quoted, and then hold delimiters, doubled quotes and line ends. The delimiter is a comma, a semicolon
    or a tab: with a header the first of them by which it names both columns, without one that which divides every row
    alike.

    Raises:
        ValueError: A column is missing, a quote is not closed, or a row has another number of fields than the first.
    """
    delimiter, width, (src, tgt) = _layout(path, columns)
    yield from in_blocks(_csv_pairs(path, columns, delimiter, width, src, tgt))


def _csv_pairs(
    path: Path, columns: Columns, delimiter: str, width: int, src: int, tgt: int
) -> Iterator[tuple[str, str]]:
    rows = _csv_rows(path, delimiter)
    # Columns by number: there is no header, unless its fields are the languages
    if not _is_header(first := next(rows)[1], columns, src, tgt):
        yield first[src].replace(_CR, "\r"), first[tgt].replace(_CR, "\r")
    for line, row in rows:
        if len(row) != width:
            raise ValueError(
                f"{path}: line {line} has {len(row)} fields where the first row has {width}: "
                f'a field that holds {delimiter!r} must be in quotes ("...")'
            )
        yield row[src].replace(_CR, "\r"), row[tgt].replace(_CR, "\r")


def _csv_rows(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Parse rows, each with the number of its first line; blank lines are not rows."""
    # A setting of the whole process, 131,072 by default
    csv.field_size_limit(LONGEST_FIELD)
    reader = csv.reader(map(_hide_lone_returns, read_table_lines(path, ends=True)), delimiter=delimiter, strict=True)
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


def _hide_lone_returns(line: str) -> str:
    if "\r" not in line:
        return line
    body, end = (line[:-2], "\r\n") if line.endswith("\r\n") else (line, "")
    return body.replace("\r", _CR) + end


def _layout(path: Path, columns: Columns) -> tuple[str, int, tuple[int, int]]:
    """Return the delimiter, the number of fields, and the numbers of the source and the target column."""
    refused: list[tuple[int, ValueError]] = []
    for delimiter in _delimiters(path, columns):
        row: list[str] = []
        try:
            row = next(_csv_rows(path, delimiter), (1, row))[1]
            if not row:
                raise ValueError(f"{path} is empty: it has no rows")
            return delimiter, len(row), column_numbers(path, row, columns)
        except ValueError as error:
            refused.append((len(row), error))
    # The delimiter that gives the most fields is the likeliest; of equal ones the first, the comma
    raise max(refused, key=lambda each: each[0])[1]


def _delimiters(path: Path, columns: Columns) -> list[str]:
    """Return the delimiters to try, the likeliest first."""
    # A header has no commas of its own.
    if isinstance(columns.both[0], str):
        return [",", ";", "\t"]
    needed = 1 + max(int(column) for column in columns.both)
    # Of those that divide every row alike, the one with the fewest columns too many. Commas are in texts as well, with
    # a space after them; a tab or a semicolon is there more rarely.
    return sorted("\t;,", key=lambda delimiter: _unlikeliness(path, delimiter, needed))


def _unlikeliness(path: Path, delimiter: str, needed: int) -> tuple[bool, int, float]:
    """Rate a delimiter by the first rows: uneven, columns too many, share of fields that begin with a space."""
    rows: list[list[str]] = []
    # What cannot be read is told, with its line, when the file is read
    with contextlib.suppress(ValueError):
        rows.extend(row for _, row in itertools.islice(_csv_rows(path, delimiter), _LOOK_AT))
    (width, count), *_ = Counter(map(len, rows)).most_common(1) or [(0, 0)]
    later = [field for row in rows for field in row[1:]]
    spaced = sum(field.startswith(" ") for field in later) / max(1, len(later))
    return width < needed or count < _EVEN * len(rows), width - needed, spaced


def column_numbers(path: Path, header: Sequence[str], columns: Columns) -> tuple[int, int]:
    """Return the numbers of the source and the target column, from 0; ValueError for one that `header` lacks."""
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


def _is_header(row: Sequence[str], columns: Columns, src: int, tgt: int) -> bool:
    """Return True if the first row names columns rather than being a pair."""
    return isinstance(columns.both[0], str) or (row[src], row[tgt]) == (columns.src, columns.tgt)


def tsv_pairs(path: Path, columns: Columns) -> Iterator[Pairs]:
    """Read pairs of a file with tabs between its columns, in which quotes are text like any other.

    The first line names the columns, unless `columns` has numbers. If these names are in quotes, the file is read as
    CSV; data.format=csv asks for it elsewhere.

    Raises:
        ValueError: A column is missing, or a row has too few.
    """
    lines = read_table_lines(path)
    first = next(lines, None)
    if first is None:
        raise ValueError(f"{path} is empty: it has no rows")
    header = first.split("\t")
    quoted = len(header) > 1 and all(name[:1] == name[-1:] == '"' and len(name) > 1 for name in header)
    if quoted and isinstance(columns.both[0], str) and columns.both[0] not in header:
        yield from csv_pairs(path, columns)
        return
    src, tgt = column_numbers(path, header, columns)
    # A row may have further columns, but none of these may be missing
    yield from in_blocks(_tsv_pairs(path, itertools.chain([first], lines), columns, src, tgt))


def _tsv_pairs(path: Path, lines: Iterator[str], columns: Columns, src: int, tgt: int) -> Iterator[tuple[str, str]]:
    needed = max(src, tgt) + 1
    for number, line in enumerate(lines, start=1):
        row = line.split("\t")
        if len(row) < needed:
            raise ValueError(
                f"{path}: line {number} has {len(row)} columns where {needed} are needed; a tab must separate them "
                "(fields that are quoted as in CSV need data.format=csv)"
            )
        if number > 1 or not _is_header(row, columns, src, tgt):
            yield row[src], row[tgt]
