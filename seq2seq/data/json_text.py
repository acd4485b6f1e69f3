"""Readers of JSON lines and JSON arrays of pairs."""

from __future__ import annotations

import codecs
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from seq2seq.data import readers
from seq2seq.data.readers import LanguageColumns, in_blocks
from seq2seq.data.text_files import open_text, read_blocks, read_lines

# Characters of one element of an array; more are read only for an element that never ends.
_LONGEST_ELEMENT = 1 << 24
_BLANK = " \t\r\n"
_NOT_BLANK = re.compile(rf"[^{_BLANK}]|\Z")
_FORMS = 'a file holds one object a line, as in {"de": "...", "en": "..."}, or one array of such objects'

# A value, and its place in messages.
Record = tuple[str, Any]


@in_blocks
def json_pairs(path: Path, columns: LanguageColumns) -> Iterator[tuple[str, str]]:
    """Read pairs from JSON lines, one object a line, or from one array of objects; null is an empty line.

    An object has the texts under its columns, or under `translation` as in the WMT schema.

    Raises:
        ValueError: A line is not a JSON object, a text is not a string, or no object of the first block has a column.
    """
    src, tgt = columns.both
    missing = [src, tgt]
    first: dict[str, Any] = {}
    number = 0
    for number, (where, record) in enumerate(_records(path), start=1):
        if not isinstance(record, dict):
            raise ValueError(f"{path}: {where} is not a JSON object; {_FORMS}")
        first = first or record
        # A single record may lack a language, which then counts as null
        if missing:
            missing = [name for name in missing if name not in _texts(record, name)]
            if missing and number >= readers.ROWS:
                break
        yield _text(path, where, record, src), _text(path, where, record, tgt)
    if not number:
        raise ValueError(f"{path} is empty: it has no JSON objects")
    if missing:
        inner = first.get("translation")
        raise ValueError(f"{path} has {columns.missing(missing[0], inner if isinstance(inner, dict) else first)}")


def _texts(record: dict[str, Any], name: str | int) -> dict[Any, Any]:
    """Return the object that holds the texts: the record, or its `translation`."""
    inner = record.get("translation")
    return inner if name not in record and isinstance(inner, dict) else record


def _text(path: Path, where: str, record: dict[str, Any], name: str | int) -> str:
    value = _texts(record, name).get(name)
    if value is None or type(value) in (str, int):
        return "" if value is None else str(value)
    kind = {bool: "true or false", float: "a number", list: "a list", dict: "an object"}[type(value)]
    raise ValueError(f"{path}: {where}: {name!r} is {kind}, not text")


def _records(path: Path) -> Iterator[Record]:
    # The first character decides, since the first line may be a whole array
    texts = (block.removeprefix(codecs.BOM_UTF8).lstrip(_BLANK.encode()) for block in read_blocks(open_text(path)))
    return _array(path) if next(filter(None, texts), b"").startswith(b"[") else _lines(path)


def _lines(path: Path) -> Iterator[Record]:
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip(_BLANK):
            continue
        where = f"line {number}"
        try:
            record = json.loads(line, object_pairs_hook=_object)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}: {where} is not JSON ({_reason(error)}); {_FORMS}") from error
        yield where, record


def _object(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(fields)
    if len(record) < len(fields):
        names = [name for name, _ in fields]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} occurs twice")
    return record


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if "integer string conversion" in str(error):
        return "a number has thousands of digits"
    # Without the position in the whole text: the message names the line
    return f"{error.msg}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)


def _array(path: Path) -> Iterator[Record]:
    """Parse the elements of an array one by one; only the unread part of a block is in memory."""
    parse = json.JSONDecoder(object_pairs_hook=_object).raw_decode
    decode = codecs.getincrementaldecoder("utf-8-sig")(errors="replace").decode
    text, wanted, where = "", "[", ""
    line = number = 1
    # None is the end of the file
    for block in itertools.chain(map(decode, read_blocks(open_text(path))), [None]):
        text += block or ""
        at = counted = 0
        while (at := _NOT_BLANK.search(text, at).start()) < len(text):  # type: ignore[union-attr]  # matches the end
            line += text.count("\n", counted, at)
            counted = at
            if wanted == "element" and not (text[at] == "]" and number == 1):
                where = f"element {number} (line {line})"
                try:
                    record, at = parse(text, at)
                except (ValueError, RecursionError) as error:
                    # The element may continue in the next block
                    if block is not None and isinstance(error, ValueError) and len(text) - at <= _LONGEST_ELEMENT:
                        break
                    reason = error.msg if isinstance(error, json.JSONDecodeError) else _reason(error)
                    raise ValueError(f"{path}: {where} is not JSON ({reason}); {_FORMS}") from error
                yield where, record
                number += 1
                wanted = ","
                continue
            if not wanted:
                raise ValueError(f"{path}: line {line} follows the end of the array; {_FORMS}")
            if wanted == "," and text[at] not in ",]":
                raise ValueError(f"{path}: a comma or ] is missing after {where}: is the file complete?")
            wanted = "" if text[at] == "]" else "element"
            at += 1
        line += text.count("\n", counted, at)
        text = text[at:]
    if wanted:
        raise ValueError(f"{path}: a comma or ] is missing after {where or 'its beginning'}: is the file complete?")
