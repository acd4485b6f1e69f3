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

# Characters of a field: one more is a quote that is never closed, which would swallow the rest of the file.
LONGEST_FIELD = 1 << 24
# Rows of a file without a header by which its delimiter is found.
_LOOK_AT = 1000
# Share of them that its right delimiter divides alike; the others are mistakes, which reading names.
_EVEN = 0.9
# Stands for a CR that ends no line, at which Python's csv module would end one; no decoded text has a lone surrogate.
_CR = "\udc0d"
# A field of CSV in quotes.
_QUOTED = re.compile(r'"(?:[^"]|"")*"')


def csv_pairs(path: Path, columns: LanguageColumns, *, delimiters: str = "") -> Iterator[Pairs]:
    """Read pairs of a CSV file; the first row names its columns, unless `columns` has numbers.

    Fields may be quoted, and then hold delimiters, doubled quotes and line ends. The delimiter is a comma, a semicolon
    or a tab: with a header the first of them by which it names both columns, without one that which divides every row
    alike.

    Args:
        delimiters: The only ones that may divide it.

    Raises:
        ValueError: A column is missing, a quote is not closed, or a row has another number of fields than the first.
    """
    delimiter, header, chosen = _layout(path, columns, delimiters)
    remedy = f'a field that holds {delimiter!r} must be in quotes ("...")'
    pairs = _pairs(path, _csv_rows(path, delimiter), columns, header, chosen, remedy)
    yield from in_blocks((src.replace(_CR, "\r"), tgt.replace(_CR, "\r")) for src, tgt in pairs)


def _pairs(
    path: Path,
    rows: Iterator[tuple[int, list[str]]],
    columns: LanguageColumns,
    first: list[str],
    chosen: tuple[int, int],
    remedy: str,
) -> Iterator[tuple[str, str]]:
    """Choose the fields of both languages out of rows, which must have as many fields as the first row.

    A header is no pair, nor is its repetition where files were joined.
    """
    src, tgt = chosen
    header = first
    if isinstance(columns.both[0], int) and (first[src], first[tgt]) != (columns.src, columns.tgt):
        # Columns by number: there is no header, unless its fields are the languages
        header = []
    for line, row in rows:
        if len(row) != len(first):
            raise ValueError(
                f"{path}: line {line} has {len(row)} fields where the first row has {len(first)}: {remedy}"
            )
        if row != header:
            yield row[src], row[tgt]


def _csv_rows(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Parse rows, each with the number of its first line; blank lines are not rows."""
    # A setting of the whole process, 131,072 by default
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


def _layout(path: Path, columns: LanguageColumns, delimiters: Sequence[str]) -> tuple[str, list[str], tuple[int, int]]:
    """Return the delimiter, the first row, and the numbers of the source and the target column."""
    # A header has no commas of its own
    delimiters = delimiters or ",;\t"
    if isinstance(columns.both[0], int) and len(delimiters) > 1:
        # Of those that divide every row alike, the one with the fewest columns too many. Commas are in texts as well,
        # with a space after them; a tab or a semicolon is there more rarely.
        needed = 1 + max(int(column) for column in columns.both)
        delimiters = sorted("\t;,", key=lambda delimiter: _unlikeliness(path, delimiter, needed))
    refused: list[tuple[int, ValueError]] = []
    for delimiter in delimiters:
        row: list[str] = []
        try:
            row = next(_csv_rows(path, delimiter), (1, row))[1]
            if not row:
                raise ValueError(f"{path} is empty: it has no rows")
            return delimiter, row, _column_numbers(path, row, columns)
        except ValueError as error:
            refused.append((len(row), error))
    # The delimiter that gives the most fields is the likeliest; of equal ones the first, the comma
    raise max(refused, key=lambda each: each[0])[1]


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


def _column_numbers(path: Path, header: Sequence[str], columns: LanguageColumns) -> tuple[int, int]:
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


def tsv_pairs(path: Path, columns: LanguageColumns) -> Iterator[Pairs]:
    """Read pairs of a file with tabs between its columns, in which quotes are text like any other.

    The first line names the columns, unless `columns` has numbers; blank lines are no rows. A file whose header is in
    quotes, or whose fields are as a spreadsheet writes those with quotes, is read as CSV.

    Raises:
        ValueError: A column is missing, or a row has another number of fields than the first.
    """
    head = list(itertools.islice(_tsv_rows(path), _LOOK_AT))
    if not head:
        raise ValueError(f"{path} is empty: it has no rows")
    first = head[0][1]
    names = isinstance(columns.both[0], str) and columns.both[0] not in first
    quoted = names and len(first) > 1 and all(len(name) > 1 and name[0] == name[-1] == '"' for name in first)
    if quoted or _quoting([row for _, row in head]) == {True}:
        yield from csv_pairs(path, columns, delimiters="\t")
        return
    chosen = _column_numbers(path, first, columns)
    remedy = (
        f"a tab divides fields; where texts hold one, remove these rows (awk -F'\\t' 'NF == {len(first)}'), or write "
        "fields in quotes as CSV does, with data.format=csv"
    )
    for block in in_blocks(_pairs(path, _tsv_rows(path), columns, first, chosen, remedy)):
        if True in _quoting(zip(*block, strict=True)):
            warn_once(
                f'{path} has fields as a spreadsheet writes them ("a ""quoted"" word"), and others that are not: '
                "quotes are read as text; if they are not, set data.format=csv"
            )
        yield block


def _tsv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    return ((number, line.split("\t")) for number, line in enumerate(read_lines(path), start=1) if line)


def _quoting(rows: Iterable[Sequence[str]]) -> set[bool]:
    """Tell if fields hold quotes as CSV alone writes them (True), or as it does not (False)."""
    fields = [field for row in rows for field in row if '"' in field]
    # A field that is in quotes but has none may be either
    return {'""' in field[1:-1] for field in fields if _QUOTED.fullmatch(field)} - {False} | {
        False for field in fields if not _QUOTED.fullmatch(field)
    }
