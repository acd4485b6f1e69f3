"""Readers of JSON lines and JSON arrays of pairs."""

from __future__ import annotations

import codecs
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from seq2seq.data import readers
from seq2seq.data.cleaning import Pairs
from seq2seq.data.readers import LanguageColumns, in_blocks
from seq2seq.data.text_files import open_text, read_lines

# Most bytes of an array, which is read into memory as a whole.
_LONGEST_ARRAY = 1 << 30
_BLANK = " \t\r\n"
_FORMS = 'a file holds one object a line, as in {"de": "...", "en": "..."}, or one array of such objects'

# A record, and its place in messages.
Record = tuple[str, dict[str, Any]]


def json_pairs(path: Path, columns: LanguageColumns) -> Iterator[Pairs]:
    """Read pairs from JSON lines, one object a line, or from one array of objects; null is an empty line.

    An object has the texts under its columns, or under `translation` as in the WMT schema. An array is read into memory
    as a whole.

    Raises:
        ValueError: A line is not a JSON object, a text is not a string, or no object of the first block has a column.
    """
    records = _records(path)
    head = list(itertools.islice(records, readers.ROWS))
    if not head:
        raise ValueError(f"{path} is empty: it has no JSON objects")
    names = columns.both
    for name in names:
        # A single record may lack a language, which then counts as null
        if not any(name in _texts(record, name) for _, record in head):
            present = head[0][1].get("translation")
            present = present if isinstance(present, dict) else head[0][1]
            raise ValueError(f"{path} has {columns.missing(name, present)}")
    src, tgt = names
    yield from in_blocks(
        (_text(path, where, record, src), _text(path, where, record, tgt))
        for where, record in itertools.chain(head, records)
    )


def _texts(record: dict[str, Any], name: str | int) -> dict[Any, Any]:
    """Return the object that holds the texts: the record, or its `translation`."""
    inner = record.get("translation")
    return inner if name not in record and isinstance(inner, dict) else record


def _text(path: Path, where: str, record: dict[str, Any], name: str | int) -> str:
    value = _texts(record, name).get(name)
    if isinstance(value, str):
        # JSON can escape lone surrogates, which UTF-8 cannot encode
        return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")
    if value is None:
        return ""
    if type(value) is int:
        return str(value)
    kind = {bool: "true or false", float: "a number", list: "a list", dict: "an object"}[type(value)]
    raise ValueError(f"{path}: {where}: {name!r} is {kind}, not text")


def _records(path: Path) -> Iterator[Record]:
    with open_text(path) as file:
        # The first character decides, since the first line may be a whole array
        head = file.peek(1 << 12).removeprefix(codecs.BOM_UTF8).lstrip(_BLANK.encode())
        content = file.read(_LONGEST_ARRAY + 1) if head.startswith(b"[") else b""
    if len(content) > _LONGEST_ARRAY:
        raise ValueError(f"{path} is an array of more than {_LONGEST_ARRAY >> 20} MiB: write one object a line")
    values: Iterator[tuple[str, Any]]
    if content:
        elements = _parse(path, content.decode("utf-8-sig", "replace"))
        values = ((f"element {number}", element) for number, element in enumerate(elements, start=1))
    else:
        lines = ((number, line) for number, line in enumerate(read_lines(path), start=1) if line.strip(_BLANK))
        values = ((f"line {number}", _parse(path, line, number)) for number, line in lines)
    for where, record in values:
        if not isinstance(record, dict):
            raise ValueError(f"{path}: {where} is not a JSON object; {_FORMS}")
        yield where, record


def _parse(path: Path, text: str, number: int | None = None) -> Any:
    """Parse line `number` of a file, or its whole text; raise ValueError with the reason if it is not JSON."""
    where = f"line {number}" if number else "it"
    try:
        return json.loads(text, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        reason = str(error)
        if isinstance(error, RecursionError):
            reason = "it is nested too deeply"
        elif isinstance(error, json.JSONDecodeError):
            where = where if number else f"line {error.lineno}"
            reason = f"{error.msg}, column {error.colno}"
        elif "integer string conversion" in reason:
            reason = "a number has thousands of digits"
        raise ValueError(f"{path}: {where} is not JSON ({reason}); {_FORMS}") from error


def _object(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(fields)
    if len(record) < len(fields):
        names = [name for name, _ in fields]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} occurs twice")
    return record
