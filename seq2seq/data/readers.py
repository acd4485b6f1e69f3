"""Readers of parallel text, in blocks of raw pairs: line-aligned files, and Arrow tables in the hub's schemas."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

from seq2seq.data.cleaning import Pairs
from seq2seq.data.text_checks import find_shift
from seq2seq.data.text_files import read_lines
from seq2seq.system.errors import first_line
from seq2seq.system.files import compression
from seq2seq.system.packages import require

if TYPE_CHECKING:
    import pyarrow as pa

# Pairs that are in memory as Python strings at a time, and about how many characters they have at most.
ROWS = 16_384
_LARGEST_BLOCK = 1 << 24
# Rows of a table that are decoded at a time.
_DECODED_ROWS = 1024
# Names of columns that say the side but not the language, which BLEU's tokenizer and tags need.
SIDE_NAMES = {"src", "tgt", "trg", "source", "target"}

T = TypeVar("T")
P = ParamSpec("P")


class LanguageColumns(NamedTuple):
    """Languages of a table, and their columns if these have other names.

    Args:
        names: Column names, or in CSV and TSV numbers from 0, by language.
    """

    src: str
    tgt: str
    names: Mapping[str, str | int] | None = None

    @property
    def both(self) -> tuple[str | int, str | int]:
        """Columns of source and target; ValueError if they are the same, of two kinds, or negative.

        Raises:
            ValueError: They are the same column, a name and a number, or a negative number.
        """
        src, tgt = ((self.names or {}).get(language, language) for language in (self.src, self.tgt))
        given = f"data.columns={{{self.src}: {src}, {self.tgt}: {tgt}}}"
        if src == tgt:
            raise ValueError(f"{given}: source and target are the same column")
        if isinstance(src, int) != isinstance(tgt, int):
            raise ValueError(f"{given}: give two names (the file has a header) or two numbers (it has none)")
        if isinstance(src, int) and isinstance(tgt, int) and min(src, tgt) < 0:
            raise ValueError(f"{given}: columns are counted from 0")
        return src, tgt

    def missing(self, column: str | int, present: Iterable[object]) -> str:
        """Explain that a table lacks `column`, with the settings for the columns that it has."""
        names = [str(name) for name in present]
        listed = ", ".join(map(repr, names[:8])) + (", ..." if len(names) > 8 else "")
        sides = [name for name in names if name.lower() in SIDE_NAMES]
        src, tgt = sides if len(sides) == 2 else ("<column>", "<column>")
        mapping = f"'data.columns={{{self.src}: {src}, {self.tgt}: {tgt}}}'"
        has = f"no language column {column!r}; it has {listed}"
        if sides:
            return f"{has}: say which column is which language, as in {mapping}"
        return f"{has}: set data.src and data.tgt to two of these, or {mapping}"


def _bounded(items: Iterable[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """Collect items into lists of at most `ROWS` items and about `_LARGEST_BLOCK` characters."""
    found: list[T] = []
    characters = 0
    for item in items:
        found.append(item)
        characters += size(item)
        if len(found) >= ROWS or characters > _LARGEST_BLOCK:
            yield found
            found = []
            characters = 0
    if found:
        yield found


def in_blocks(read: Callable[P, Iterator[tuple[str, str]]]) -> Callable[P, Iterator[Pairs]]:
    """Collect the pairs of a reader into blocks as `_bounded` does."""

    @functools.wraps(read)
    def blocks(*args: P.args, **kwargs: P.kwargs) -> Iterator[Pairs]:
        for block in _bounded(read(*args, **kwargs), lambda pair: len(pair[0]) + len(pair[1])):
            yield [one_line(src) for src, _ in block], [one_line(tgt) for _, tgt in block]

    return blocks


def one_line(text: str) -> str:
    """Replace line breaks by spaces and lone surrogates by ?, since later files have one sentence a line in UTF-8."""
    text = text.replace("\r\n", " ").replace("\n", " ") if "\n" in text else text
    # JSON can escape lone surrogates
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def text_pairs(src: Path, tgt: Path) -> Iterator[Pairs]:
    """Read pairs from two files, line by line.

    Raises:
        ValueError: The files have different numbers of lines, which the message gives.
    """
    # After the end of one file, its lines are None
    lines = itertools.zip_longest(read_lines(src), read_lines(tgt))
    count = 0
    for pairs in _bounded(lines, lambda pair: len(pair[0] or "") + len(pair[1] or "")):
        block = [line for line, _ in pairs if line is not None], [line for _, line in pairs if line is not None]
        if len(block[0]) != len(block[1]):
            # Count all lines for the message
            src_count, tgt_count = (count + len(side) for side in block)
            for src_line, tgt_line in lines:
                src_count += src_line is not None
                tgt_count += tgt_line is not None
            shift = find_shift(*block, first=count + 1)
            raise ValueError(
                f"{src} has {src_count} lines and {tgt} has {tgt_count}: "
                f"line i of one must be the translation of line i of the other{shift and f'; {shift}'}"
            )
        count += len(block[0])
        yield block


def arrow_tables(dataset: Any) -> Iterator[pa.Table]:
    """Iterate over a data set of `datasets` as Arrow tables, so that only one block at a time is in Python strings."""
    yield from dataset.with_format("arrow").iter(batch_size=_DECODED_ROWS)


@in_blocks
def table_pairs(tables: Iterable[pa.Table], columns: LanguageColumns, where: str) -> Iterator[tuple[str, str]]:
    """Read pairs from Arrow tables in the WMT schema (translation: {de, en}) or with flat columns (de, en).

    Raises:
        ValueError: A table lacks a language.
    """
    names = columns.both
    for table in tables:
        # The schema may differ between the files of a pattern
        src, tgt = (_column(table.schema, name, columns, where) for name in names)
        yield from zip(strings(table, src), strings(table, tgt), strict=True)


def _column(schema: pa.Schema, name: str | int, columns: LanguageColumns, where: str) -> tuple[str, ...]:
    """Return the path of a text: a column, or a column and a field in it."""
    import pyarrow as pa

    # Flat columns first, then fields of `translation`
    if name in schema.names:
        if schema.names.count(name) > 1:
            raise ValueError(f"{where} has the column {name!r} {schema.names.count(name)} times: rename one")
        _refuse_other_types(schema.field(str(name)).type, name, where)
        return (str(name),)
    present = list(schema.names)
    if "translation" in present:
        struct = schema.field("translation").type
        inside = [struct.field(i).name for i in range(struct.num_fields)] if pa.types.is_struct(struct) else []
        if name in inside:
            _refuse_other_types(struct.field(str(name)).type, name, where)
            return ("translation", str(name))
        present = inside or present
    raise ValueError(f"{where} has {columns.missing(name, present)}")


def _refuse_other_types(kind: pa.DataType, name: str | int, where: str) -> None:
    """Raise ValueError for a column that holds neither text nor whole numbers, such as bytes or lists."""
    from pyarrow import types

    kind = kind.value_type if types.is_dictionary(kind) else kind
    text = (types.is_string, types.is_large_string, types.is_string_view, types.is_integer, types.is_null)
    if not any(test(kind) for test in text):
        raise ValueError(f"{where}: the column {name!r} holds values of type {kind}, not text")


def strings(table: pa.Table, path: tuple[str, ...]) -> Iterator[str]:
    """Read the text of a column, or of a field in it, one at a time; a null is an empty line."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = table.column(path[0])
    if len(path) == 2:
        column = pc.struct_field(column, path[1])  # type: ignore[attr-defined]
    # A dictionary of one text may stand for thousands of copies; other columns have their size already
    lazy = pa.types.is_dictionary(column.type)
    for value in (scalar.as_py() for scalar in column) if lazy else column.to_pylist():
        # Cleaning drops empty lines from training text; scoring keeps them in their places
        yield "" if value is None else str(value)


def parquet_pairs(path: Path, columns: LanguageColumns) -> Iterator[Pairs]:
    """Read pairs from a parquet file as `table_pairs` does, without reading its other columns.

    Raises:
        ValueError: The file is not parquet, is damaged, or lacks a language.
    """
    pa = require("pyarrow", "a parquet file", extra="train")
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            wanted = {_column(file.schema_arrow, name, columns, str(path))[0] for name in columns.both}
            batches = file.iter_batches(batch_size=_DECODED_ROWS, columns=sorted(wanted))
            yield from table_pairs((pa.Table.from_batches([batch]) for batch in batches), columns, str(path))
    except (pa.ArrowException, OSError) as error:
        # An error of the disk, not of the content
        if isinstance(error, OSError) and error.errno is not None:
            raise
        packed = "; decompress it: parquet compresses its own contents" if compression(path) else ""
        raise ValueError(f"{path} is not a whole parquet file ({first_line(error)}){packed}") from error
