"""Readers of parallel text, in blocks of raw pairs: line-aligned files, TSV, and tables of the hub's schemas."""

from __future__ import annotations

import gzip
import itertools
import json
import lzma
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from seq2seq.data.cleaning import Pairs

COMPRESSIONS = ("", ".gz", ".xz", ".zst")
ROWS = 16_384  # pairs that are in memory as Python strings at a time


class Columns(NamedTuple):
    """Languages of a table, and the columns that are not named by them.

    Args:
        src: Source language.
        tgt: Target language.
        names: Column names (or, in a TSV, numbers) by language.
    """

    src: str
    tgt: str
    names: Mapping[str, str | int] | None = None

    def of(self, language: str) -> str | int:
        """Return the column of `language`."""
        return (self.names or {}).get(language, language)


def open_bytes(path: Path) -> BinaryIO:
    """Open a file for reading, decompressed by its suffix (.gz, .xz, .zst)."""
    if path.suffix == ".gz":
        return gzip.open(path, "rb")  # type: ignore[return-value]
    if path.suffix == ".xz":
        return lzma.open(path, "rb")  # type: ignore[return-value]
    if path.suffix == ".zst":
        return pa.CompressedInputStream(pa.OSFile(str(path), "rb"), "zstd")  # type: ignore[return-value]
    return path.open("rb")


def read_blocks(path: Path) -> Iterator[bytes]:
    """Read the decompressed bytes of a file, some megabytes at a time; ValueError for a damaged one."""
    try:
        with open_bytes(path) as file:
            while block := file.read(1 << 22):
                yield block
    except (EOFError, OSError, lzma.LZMAError, zlib.error, pa.ArrowException) as error:
        if isinstance(error, OSError) and error.errno is not None:  # an error of the disk, not of the content
            raise
        raise ValueError(f"{path} cannot be decompressed ({error}): it is damaged or incomplete") from error


def read_lines(path: Path) -> Iterator[bytes]:
    """Read lines, which end at the byte \\n and nowhere else; a CR before it (CRLF) belongs to the line end."""
    rest = b""
    for block in read_blocks(path):
        # the last part of a block is the start of a line; a CR at its end waits for its \n
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r")
    if rest:  # the last line may lack its end
        yield rest.removesuffix(b"\r")


def decode(line: bytes) -> str:
    """Decode a line; bytes that are not UTF-8 become U+FFFD."""
    return line.decode("utf-8", errors="replace")


def text_pairs(src: Path, tgt: Path) -> Iterator[Pairs]:
    """Read pairs of two files, line by line.

    Raises:
        ValueError: One file has more lines than the other; the message counts both.
    """
    src_lines = read_lines(src)
    tgt_lines = read_lines(tgt)
    count = 0
    while True:
        # equal numbers of lines from both, so that pairs stay aligned
        src_block = list(itertools.islice(src_lines, ROWS))
        tgt_block = list(itertools.islice(tgt_lines, ROWS))
        if len(src_block) != len(tgt_block):
            # count to the ends, for a message that says how far apart the files are
            src_count = count + len(src_block) + _count(src_lines)
            tgt_count = count + len(tgt_block) + _count(tgt_lines)
            raise ValueError(
                f"{src} has {src_count} lines and {tgt} has {tgt_count}: "
                "line i of one must be the translation of line i of the other"
            )
        if not src_block:
            return
        count += len(src_block)
        yield list(map(decode, src_block)), list(map(decode, tgt_block))


def _count(lines: Iterator[bytes]) -> int:
    return sum(1 for _ in lines)


def tsv_pairs(path: Path, columns: Columns) -> Iterator[Pairs]:
    """Read pairs of a file with tabs between its columns; its first line names them, unless they have numbers.

    Raises:
        ValueError: A column is missing, or a row has too few.
    """
    lines = read_lines(path)
    first = next(lines, b"")
    src, tgt = _tsv_columns(path, decode(first).split("\t"), columns)
    if isinstance(columns.of(columns.src), int):
        lines = itertools.chain([first], lines)  # columns by number: there is no header
    # a row may have further columns, but none of these may be missing
    needed = max(src, tgt) + 1
    count = 0
    while block := list(itertools.islice(lines, ROWS)):
        rows = [decode(line).split("\t") for line in block]
        short = next((i for i, row in enumerate(rows) if len(row) < needed), None)
        if short is not None:
            raise ValueError(
                f"{path}: data row {count + short + 1} has {len(rows[short])} columns where {needed} are needed; "
                "a tab must separate them"
            )
        count += len(rows)
        yield [row[src] for row in rows], [row[tgt] for row in rows]


def _tsv_columns(path: Path, header: list[str], columns: Columns) -> tuple[int, int]:
    """Return the numbers of the source and the target column, from 0."""
    chosen = []
    for language in (columns.src, columns.tgt):
        column = columns.of(language)
        if isinstance(column, int):
            chosen.append(column)
        elif column in header:
            chosen.append(header.index(column))
        else:
            raise ValueError(
                f"{path} has no column {column!r}: its first line names {', '.join(map(repr, header[:8]))}; "
                f"without a header give numbers, as in '+data.columns={{{columns.src}: 0, {columns.tgt}: 1}}'"
            )
    return chosen[0], chosen[1]


def table_pairs(tables: Iterable[pa.Table], columns: Columns, where: str) -> Iterator[Pairs]:
    """Read pairs of Arrow tables in the WMT schema (translation: {de, en}) or with flat columns (de, en).

    Args:
        where: Name of the data in messages.

    Raises:
        ValueError: A table lacks a language.
    """
    for table in tables:
        # for each table: files of one pattern may differ in their schema
        src = _column(table.schema, columns.src, columns, where)
        tgt = _column(table.schema, columns.tgt, columns, where)
        yield strings(table, src), strings(table, tgt)


def _column(schema: pa.Schema, language: str, columns: Columns, where: str) -> tuple[str, ...]:
    """Return the path of a language's text: a column, or a column and a field inside it."""
    name = columns.of(language)
    # flat columns first, then fields of `translation`
    if name in schema.names:
        return (str(name),)
    present = list(schema.names)
    if "translation" in present:
        struct = schema.field("translation").type
        # `translation` may also be a string column
        inside = [struct.field(i).name for i in range(struct.num_fields)] if pa.types.is_struct(struct) else []
        if name in inside:
            return ("translation", str(name))
        present = inside or present
    raise ValueError(
        f"{where} has no language column {name!r}; it has {', '.join(map(repr, present))}: "
        "set data.src and data.tgt to two of these, or map languages to columns with data.columns"
    )


def strings(table: pa.Table, path: tuple[str, ...]) -> list[str]:
    """Read the text of a column, or of a field inside one; a null is an empty line."""
    column = table.column(path[0])
    if len(path) == 2:
        column = pc.struct_field(column, path[1])  # type: ignore[attr-defined]  # a field of `translation`
    # A null (no translation) is an empty line: cleaning drops it from training, scoring keeps its place.
    values = ("" if value is None else str(value) for value in column.to_pylist())
    # lone surrogates, which JSON can escape but UTF-8 cannot encode
    return [value.encode("utf-8", "replace").decode("utf-8") for value in values]


def json_head(path: Path, size: int) -> pa.Table:
    """Read the first rows of a file of JSON lines; ValueError for lines that are not JSON objects."""
    lines = itertools.islice(read_lines(path), size)
    try:
        return pa.Table.from_pylist([json.loads(decode(line)) for line in lines if line.strip()])
    except (ValueError, AttributeError, pa.ArrowException) as error:
        raise ValueError(f"{path} is not JSON lines, one object a line ({error})") from error


def parquet_head(path: Path, size: int) -> pa.Table:
    """Read the first rows of a parquet file; ValueError for another file."""
    try:
        with pq.ParquetFile(path) as file:
            # one batch: a row group may be large, its first rows are enough
            batches = list(itertools.islice(file.iter_batches(batch_size=size), 1))
            return pa.Table.from_batches(batches, file.schema_arrow)
    except pa.ArrowException as error:
        raise ValueError(f"{path} is not a parquet file ({error})") from error
