"""Readers of parallel text, in blocks of raw pairs: line-aligned files, and tables of the hub's schemas."""

from __future__ import annotations

import codecs
import gzip
import itertools
import lzma
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from seq2seq.data.cleaning import Pairs
from seq2seq.faults import first_line

COMPRESSIONS = ("", ".gz", ".xz", ".zst")
ROWS = 16_384  # pairs that are in memory as Python strings at a time
LONGEST_LINE = 1 << 28  # bytes; beyond it a file is not text, and would be read into memory as one line
# Names that say a column's side but not its language: BLEU's tokenizer and tags go by languages.
SIDES = {"src", "tgt", "trg", "source", "target"}


class Columns(NamedTuple):
    """Languages of a table, and the columns that are not named by them.

    Args:
        src: Source language.
        tgt: Target language.
        names: Column names (or, in CSV and TSV, numbers from 0) by language.
    """

    src: str
    tgt: str
    names: Mapping[str, str | int] | None = None

    def of(self, language: str) -> str | int:
        """Return the column of `language`."""
        return (self.names or {}).get(language, language)

    @property
    def both(self) -> tuple[str | int, str | int]:
        """Columns of the source and of the target.

        Raises:
            ValueError: They are the same column, or one is a name and the other a number, or a number is negative.
        """
        src, tgt = self.of(self.src), self.of(self.tgt)
        given = f"data.columns={{{self.src}: {src}, {self.tgt}: {tgt}}}"
        if src == tgt:
            raise ValueError(f"{given}: source and target are the same column")
        if isinstance(src, int) != isinstance(tgt, int):
            raise ValueError(f"{given}: give two names (the file has a header) or two numbers (it has none)")
        if isinstance(src, int) and isinstance(tgt, int) and min(src, tgt) < 0:
            raise ValueError(f"{given}: columns are counted from 0")
        return src, tgt

    def missing(self, column: str | int, present: Iterable[object]) -> str:
        """Explain that a table lacks `column`, and what to type for the columns that it has."""
        names = [str(name) for name in present]
        listed = ", ".join(map(repr, names[:8])) + (", ..." if len(names) > 8 else "")
        # Columns of a source and a target without their languages
        sides = [name for name in names if name.lower() in SIDES]
        src, tgt = sides if len(sides) == 2 else ("<column>", "<column>")
        mapping = f"'data.columns={{{self.src}: {src}, {self.tgt}: {tgt}}}'"
        has = f"no language column {column!r}; it has {listed}"
        if sides:
            return f"{has}: say which column is which language, as in {mapping}"
        return f"{has}: set data.src and data.tgt to two of these, or {mapping}"


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
            # Known where a file is opened, not where it is read
            error.filename = error.filename or str(path)
            raise
        raise ValueError(f"{path} cannot be decompressed ({error}): it is damaged or incomplete") from error


def read_text(path: Path) -> Iterator[bytes]:
    """Read the blocks of a file of text; ValueError for UTF-16 and UTF-32, whose bytes would read as other text."""
    blocks = read_blocks(path)
    first = next(blocks, b"")
    head = first[:4096]
    # Every second byte of Latin text is 0 in UTF-16; text in UTF-8 has hardly any
    wide = len(head) >= 16 and head.count(0) > 0.4 * len(head)
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or wide:
        raise ValueError(
            f"{path} is in UTF-16 or UTF-32, not UTF-8: convert it, as in iconv -f UTF-16 -t UTF-8 <file> > <new file>"
        )
    return itertools.chain([first] if first else [], blocks)


def read_lines(path: Path, *, ends: bool = False) -> Iterator[bytes]:
    """Read lines, which end at the byte \\n and nowhere else; a CR before it (CRLF) belongs to the line end.

    Args:
        ends: Keep the line ends.

    Raises:
        ValueError: The file is damaged, is not UTF-8, or has a line of more than `LONGEST_LINE` bytes.
    """
    parts: list[bytes] = []  # of a line whose end has not come
    size = 0
    for block in read_text(path):
        size = size + len(block) if b"\n" not in block else 0
        if size > LONGEST_LINE:
            raise ValueError(f"{path} has a line of more than {LONGEST_LINE >> 20} MiB: is it text?")
        if size:
            parts.append(block)
            continue
        # The last part of a block is the start of a line; a CR at its end waits for its \n
        *lines, rest = b"".join([*parts, block]).split(b"\n")
        parts = [rest]
        for line in lines:
            yield line + b"\n" if ends else line.removesuffix(b"\r")
    if rest := b"".join(parts):  # the last line may lack its end
        yield rest if ends else rest.removesuffix(b"\r")


def read_table_lines(path: Path, *, ends: bool = False) -> Iterator[str]:
    """Read the lines of a table as text, without the byte order mark that some programs write before it."""
    yield from map(decode, _without_mark(read_lines(path, ends=ends)))


def in_blocks(pairs: Iterable[tuple[str, str]]) -> Iterator[Pairs]:
    """Collect pairs to blocks of `ROWS`."""
    pairs = iter(pairs)
    while block := list(itertools.islice(pairs, ROWS)):
        yield [one_line(src) for src, _ in block], [one_line(tgt) for _, tgt in block]


def one_line(text: str) -> str:
    """Replace the line breaks inside a text by spaces, since a sentence is a line of every file written later."""
    return text.replace("\r\n", " ").replace("\n", " ") if "\n" in text else text


def decode(line: bytes) -> str:
    """Decode a line; bytes that are not UTF-8 become U+FFFD."""
    return line.decode("utf-8", errors="replace")


def text_pairs(src: Path, tgt: Path) -> Iterator[Pairs]:
    """Read pairs of two files, line by line.

    Raises:
        ValueError: One file has more lines than the other; the message counts both.
    """
    src_lines, tgt_lines = (_without_mark(read_lines(path)) for path in (src, tgt))
    count = 0
    while True:
        # Equal numbers of lines from both, so that pairs stay aligned
        src_block = list(itertools.islice(src_lines, ROWS))
        tgt_block = list(itertools.islice(tgt_lines, ROWS))
        if len(src_block) != len(tgt_block):
            # Count to the ends, for a message that says how far apart the files are
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


def _without_mark(lines: Iterator[bytes]) -> Iterator[bytes]:
    """Remove the byte order mark that programs of Windows write before the first line."""
    for first in itertools.islice(lines, 1):
        yield first.removeprefix(codecs.BOM_UTF8)
    yield from lines


def _count(lines: Iterator[bytes]) -> int:
    return sum(1 for _ in lines)


def table_pairs(tables: Iterable[pa.Table], columns: Columns, where: str) -> Iterator[Pairs]:
    """Read pairs of Arrow tables in the WMT schema (translation: {de, en}) or with flat columns (de, en).

    Args:
        where: Name of the data in messages.

    Raises:
        ValueError: A table lacks a language.
    """
    names = columns.both
    for table in tables:
        # For each table: files of one pattern may differ in their schema
        src, tgt = (_column(table.schema, name, columns, where) for name in names)
        yield strings(table, src), strings(table, tgt)


def _column(schema: pa.Schema, name: str | int, columns: Columns, where: str) -> tuple[str, ...]:
    """Return the path of a text: a column, or a column and a field inside it."""
    # Flat columns first, then fields of `translation`
    if name in schema.names:
        if schema.names.count(name) > 1:
            raise ValueError(f"{where} has the column {name!r} {schema.names.count(name)} times: rename one")
        _refuse_other_types(schema.field(str(name)).type, name, where)
        return (str(name),)
    present = list(schema.names)
    if "translation" in present:
        struct = schema.field("translation").type
        # `translation` may also be a string column
        inside = [struct.field(i).name for i in range(struct.num_fields)] if pa.types.is_struct(struct) else []
        if name in inside:
            _refuse_other_types(struct.field(str(name)).type, name, where)
            return ("translation", str(name))
        present = inside or present
    raise ValueError(f"{where} has {columns.missing(name, present)}")


def _refuse_other_types(kind: pa.DataType, name: str | int, where: str) -> None:
    """Raise ValueError for a column that holds neither text nor whole numbers, such as bytes or lists."""
    types = pa.types
    kind = kind.value_type if types.is_dictionary(kind) else kind
    text = (types.is_string, types.is_large_string, types.is_string_view, types.is_integer, types.is_null)
    if not any(test(kind) for test in text):
        raise ValueError(f"{where}: the column {name!r} holds values of type {kind}, not text")


def strings(table: pa.Table, path: tuple[str, ...]) -> list[str]:
    """Read the text of a column, or of a field inside one; a null is an empty line."""
    column = table.column(path[0])
    if len(path) == 2:
        column = pc.struct_field(column, path[1])  # type: ignore[attr-defined]  # a field of `translation`
    # A null (no translation) is an empty line: cleaning drops it from training, scoring keeps its place.
    values = ("" if value is None else str(value) for value in column.to_pylist())
    # Lone surrogates, which JSON can escape but UTF-8 cannot encode
    return [one_line(value.encode("utf-8", "replace").decode("utf-8")) for value in values]


def parquet_pairs(path: Path, columns: Columns) -> Iterator[Pairs]:
    """Read pairs of a parquet file, see `table_pairs`; only the columns of the languages are read.

    Raises:
        ValueError: It is another file, damaged, or lacks a language.
    """
    try:
        with pq.ParquetFile(path) as file:
            wanted = {_column(file.schema_arrow, name, columns, str(path))[0] for name in columns.both}
            batches = file.iter_batches(batch_size=ROWS, columns=sorted(wanted))
            yield from table_pairs((pa.Table.from_batches([batch]) for batch in batches), columns, str(path))
    except (pa.ArrowException, OSError) as error:
        # An error of the disk, not of the content
        if isinstance(error, OSError) and error.errno is not None:
            raise
        packed = "; decompress it, parquet is compressed within" if path.suffix in COMPRESSIONS[1:] else ""
        raise ValueError(f"{path} is not a whole parquet file ({first_line(error)}){packed}") from error
