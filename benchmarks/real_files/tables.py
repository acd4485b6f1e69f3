"""Files with both sides: TSV, CSV, JSON, TMX and parquet, with separators and quotes as programs write them."""

from __future__ import annotations

import csv
import functools
import io
import json
import random
import zipfile
from collections.abc import Callable, Iterable, Sequence
from xml.sax.saxutils import escape

import pyarrow as pa
from pyarrow import parquet

from benchmarks.real_files.attempts import Pair
from benchmarks.real_files.lines import ENCODING, PACKED, PACKERS, WIDE
from benchmarks.real_files.places import TableFile, TableKind, read_table
from benchmarks.real_files.sentences import LANGUAGES

Languages = tuple[str, str]
KINDS: dict[str, Callable[..., object]] = {}
FIELDS = r"columns?|fields?|tabs?\b"
NUMBERS = "data.columns={{{0}: 0, {1}: 1}}"


def kind(name: str) -> Callable[[TableKind], TableKind]:
    """Register a kind of table."""

    def register(function: TableKind) -> TableKind:
        KINDS[name] = functools.partial(read_table, kind=function)
        return function

    return register


def _tsv(rows: Iterable[Sequence[str]]) -> bytes:
    return "".join("\t".join(row) + "\n" for row in rows).encode()


def _csv(rows: Iterable[Sequence[str]], delimiter: str = ",", end: str = "\n") -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=delimiter, lineterminator=end).writerows(rows)
    return text.getvalue().encode()


def _json(rows: Iterable[object]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def _tmx(pairs: Iterable[Pair], languages: Languages, encoding: str = "UTF-8") -> bytes:
    """Write a translation memory from segments that are already escaped."""
    rows = [f'<?xml version="1.0" encoding="{encoding}"?>', '<tmx version="1.4"><header srclang="de"/><body>']
    for pair in pairs:
        sides = zip(languages, pair, strict=True)
        rows.append(
            "<tu>" + "".join(f'<tuv xml:lang="{code}"><seg>{text}</seg></tuv>' for code, text in sides) + "</tu>"
        )
    return "\n".join([*rows, "</body></tmx>", ""]).encode(encoding)


def _parquet(pairs: Sequence[Pair], languages: Languages, *, nested: bool = False) -> bytes:
    rows = [dict(zip(languages, pair, strict=True)) for pair in pairs]
    store = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist([{"translation": row} for row in rows] if nested else rows), store)
    return store.getvalue()


def _writers(pairs: Sequence[Pair], languages: Languages) -> dict[str, bytes]:
    """Write the same pairs in every format."""
    return {
        ".tsv": _tsv([languages, *pairs]),
        ".csv": _csv([languages, *pairs]),
        ".jsonl": _json(dict(zip(languages, pair, strict=True)) for pair in pairs),
        ".tmx": _tmx([(escape(source), escape(target)) for source, target in pairs], languages),
        ".parquet": _parquet(pairs, languages),
    }


@kind("TSV")
def _good_tsv(rng: random.Random, pairs: list[Pair], languages: Languages) -> TableFile:
    what = rng.choice(("header", "columns by number", "further columns", "quoted header", "CRLF", "BOM"))
    if what == "columns by number":
        return TableFile(what, "x.tsv", _tsv(pairs), pairs, (NUMBERS.format(*languages),))
    data = _tsv([languages, *pairs])
    if what == "further columns":
        data = _tsv([("id", *languages, "source"), *((str(i), *pair, "web") for i, pair in enumerate(pairs))])
    elif what == "quoted header":
        data = "".join("\t".join(f'"{text}"' for text in row) + "\n" for row in [languages, *pairs]).encode()
    elif what == "CRLF":
        data = data.replace(b"\n", b"\r\n")
    return TableFile(f"TSV, {what}", "x.tsv", b"\xef\xbb\xbf" * (what == "BOM") + data, pairs)


@kind("TSV, tab in a text")
def _tab(rng: random.Random, pairs: list[Pair], languages: Languages) -> TableFile:
    number = rng.random() < 0.3
    share = rng.choice((0.05, 0.2, 0.5))
    rows = [
        (text[: len(text) // 2] + "\t" + text[len(text) // 2 :], other)
        if rng.random() < share or i == 7
        else (text, other)
        for i, (text, other) in enumerate(pairs)
    ]
    extra = not number and rng.random() < 0.4
    rows = [
        ("id", *languages) if extra else languages,
        *((str(i), *row) if extra else row for i, row in enumerate(rows)),
    ]
    data = _tsv(rows[1:] if number else rows)
    words = (NUMBERS.format(*languages),) if number else ()
    return TableFile("TSV, tab in a text", "x.tsv", data, None, words, "refused warned", FIELDS)


@kind("TSV, missing field")
def _missing(rng: random.Random, pairs: list[Pair], languages: Languages) -> TableFile:
    rows = [*pairs[:5], (pairs[5][0],), *pairs[6:]]
    return TableFile("TSV, missing field", "x.tsv", _tsv([languages, *rows]), None, (), "refused warned", FIELDS)


@kind("blank lines in a table")
def _blank(rng: random.Random, pairs: list[Pair], languages: Languages) -> TableFile:
    suffix = rng.choice((".tsv", ".csv", ".jsonl"))
    lines = _writers(pairs, languages)[suffix].split(b"\n")
    places = rng.choice(((len(lines) - 1,), (5,), (4, 9, len(lines) - 1)))
    for place in reversed(places):
        lines.insert(place, rng.choice((b"", b"\r")))
    return TableFile(
        f"{suffix}, blank lines", f"x{suffix}", b"\n".join(lines), pairs, (), "right refused", FIELDS + "|blank|empty"
    )


@kind("second header")
def _header(rng: random.Random, pairs: list[Pair], languages: Languages) -> TableFile:
    suffix = rng.choice((".tsv", ".csv"))
    lines = _writers(pairs, languages)[suffix].split(b"\n")
    data = b"\n".join([*lines[:7], lines[0], *lines[7:]])
    return TableFile(
        f"{suffix}, second header", f"x{suffix}", data, pairs, (), "right refused warned", "header|first (row|line)"
    )


@kind("quotes of a spreadsheet")
def _quotes(rng: random.Random, pairs: list[Pair], languages: Languages) -> TableFile:
    # A spreadsheet quotes only fields with quotes, delimiters or line breaks
    quoted = [(source, f'"{target}", he said' if i % 2 else target) for i, (source, target) in enumerate(pairs)]
    data = _csv([languages, *quoted], "\t", rng.choice(("\n", "\r\n")))
    return TableFile("TSV of a spreadsheet", "x.tsv", data, quoted, (), "right refused warned", "quote|csv")


@kind("CSV")
def _good_csv(rng: random.Random, pairs: list[Pair], languages: Languages) -> TableFile:
    delimiter = rng.choice((",", ";", "\t"))
    end = rng.choice(("\n", "\r\n"))
    what = rng.choice(("header", "columns by number", "line breaks", "quotes", "BOM", "sep="))
    if what == "line breaks":
        written = [(source.replace(" ", end, 1), target) for source, target in pairs]
        pairs = [(source.replace(end, " "), target) for source, target in written]
    else:
        pairs = [(f'"{source}", {delimiter}x', target) for source, target in pairs] if what == "quotes" else pairs
        written = pairs
    words = (NUMBERS.format(*languages),) if what == "columns by number" else ()
    data = _csv(written if words else [languages, *written], delimiter, end)
    if what == "sep=":
        # A first line that only spreadsheets understand
        data = f"sep={delimiter}{end}".encode() + data
        return TableFile("CSV, sep=", "x.csv", data, pairs, words, "right refused", FIELDS)
    return TableFile(f"CSV, {delimiter!r}, {what}", "x.csv", b"\xef\xbb\xbf" * (what == "BOM") + data, pairs, words)


@kind("CSV, damaged")
def _bad_csv(rng: random.Random, pairs: list[Pair], languages: Languages) -> TableFile:
    lines = _csv([languages, *pairs]).split(b"\n")
    what, row = rng.choice(
        (("unclosed quote", b'"never closed,x'), ("comma in a text", b"a, b, c,d"), ("missing field", b"x"))
    )
    data = b"\n".join([*lines[:4], row, *lines[4:]])
    return TableFile(f"CSV, {what}", "x.csv", data, None, (), "refused warned", FIELDS + "|quote")


@kind("JSON")
def _good_json(rng: random.Random, pairs: list[Pair], languages: Languages) -> TableFile:
    what = rng.choice(("nested", "array", "nulls", "line breaks", "escapes", "further keys", "CRLF", "BOM"))
    rows: list[dict[str, object]] = [dict(zip(languages, pair, strict=True)) for pair in pairs]
    if what == "nulls":
        rows[3][languages[1]] = rows[9][languages[0]] = None
        pairs = [tuple(row[code] or "" for code in languages) for row in rows]  # type: ignore[misc]
    elif what == "line breaks":
        for row in rows[::3]:
            row[languages[0]] = str(row[languages[0]]).replace(" ", "\n", 1)
        pairs = [(str(row[languages[0]]).replace("\n", " "), pair[1]) for row, pair in zip(rows, pairs, strict=True)]
    elif what == "further keys":
        rows = [{"id": i, "meta": {"x": [1, None]}, **row} for i, row in enumerate(rows)]
    data = _json({"translation": row} if what == "nested" else row for row in rows)
    if what == "array":
        return TableFile("JSON, array", "x.json", json.dumps(rows, indent=rng.choice((None, 1))).encode(), pairs)
    if what == "escapes":
        data = "".join(json.dumps(row, ensure_ascii=True) + "\n" for row in rows).encode()
    data = data.replace(b"\n", b"\r\n") if what == "CRLF" else b"\xef\xbb\xbf" * (what == "BOM") + data
    return TableFile(f"JSON, {what}", rng.choice(("x.jsonl", "x.ndjson", "x.json")), data, pairs)


@kind("JSON, damaged")
def _bad_json(rng: random.Random, pairs: list[Pair], languages: Languages) -> TableFile:
    lines = _writers(pairs, languages)[".jsonl"].split(b"\n")
    what = rng.choice(("duplicate keys", "cut line", "a number", "other case"))
    damaged = {
        "duplicate keys": lines[4][:-1] + f', "{languages[1]}": "another text"}}'.encode(),
        "cut line": lines[4][:-9],
        "a number": b'["a", "b"]',
        "other case": lines[4].replace(f'"{languages[0]}"'.encode(), f'"{languages[0].upper()}"'.encode()),
    }
    data = b"\n".join([*lines[:4], damaged[what], *lines[5:]])
    says = r"json|column|twice|duplicate|dropped by empty|missing|key"
    return TableFile(f"JSON, {what}", "x.jsonl", data, None, (), "refused warned", says)


@kind("TMX")
def _good_tmx(rng: random.Random, pairs: list[Pair], languages: Languages) -> TableFile:
    segments = [(escape(source), escape(target)) for source, target in pairs]
    what = rng.choice(("regions", "line break", "tab", "codes", "markup as text", "CDATA", "third language"))
    codes = {
        "line break": ('Press<ph type="lb">&lt;br/&gt;</ph>Enter', "Press Enter"),
        "tab": ('Press<ph x="1">\\t</ph>Enter', "Press Enter"),
        "codes": ('Pr<bpt i="1">&lt;b&gt;</bpt>ess<ept i="1">&lt;/b&gt;</ept> <hi>Enter</hi>', "Press Enter"),
        "markup as text": ("&lt;b&gt;Enter&lt;/b&gt; &amp;amp;", "<b>Enter</b> &amp;"),
        "CDATA": ("<![CDATA[A & B]]>", "A & B"),
    }  # fmt: skip
    if what in codes:
        segment, text = codes[what]
        segments[3], pairs[3] = (segment, segments[3][1]), (text, pairs[3][1])
    names = (f"{languages[0]}-XX", languages[1].upper()) if what == "regions" else languages
    data = _tmx(segments, names)
    if what == "third language":
        alone = b'<tu><tuv xml:lang="sv"><seg>Hej</seg></tuv></tu>'
        data = data.replace(b"<body>", b"<body>" + alone).replace(
            b"<tu><tuv", b'<tu><tuv xml:lang="sv"><seg>Hej</seg></tuv><tuv'
        )
    # A formatting code for a break may cause a warning instead of being replaced
    allowed = "right warned refused" if what in ("line break", "tab") else "right"
    return TableFile(
        f"TMX, {what}", "x.tmx", data, pairs, (), allowed, "<ph|code|tag|placeholder" if len(allowed) > 5 else ""
    )


@kind("table in another encoding")
def _encoded(rng: random.Random, pairs: list[Pair], languages: Languages) -> TableFile:
    suffix = rng.choice((".tsv", ".csv", ".jsonl", ".tmx"))
    page = rng.choice(("utf-16", "utf-16-le", "code page"))
    own = next(code for code in languages if code != "en")
    page = rng.choice(LANGUAGES[own].pages or ("utf-16",)) if page == "code page" else page
    # Only the XML declaration may name the encoding
    data = (
        _writers(pairs, languages)[suffix]
        .decode()
        .replace("UTF-8", page if rng.random() < 0.5 else "UTF-8")
        .encode(page)
    )
    return TableFile(
        f"{suffix} in {page}", f"x{suffix}", data, pairs, (), "right refused warned", f"{WIDE}|{ENCODING}|not XML"
    )


@kind("table, capital suffix")
def _capital(rng: random.Random, pairs: list[Pair], languages: Languages) -> TableFile:
    suffix, data = rng.choice(list(_writers(pairs, languages).items()))
    name = "X" + rng.choice((suffix.upper(), suffix.title()))
    return TableFile(name, name, data, pairs, (), "right refused", r"capital|case|data\.format|suffix|end")


@kind("table, compressed")
def _packed(rng: random.Random, pairs: list[Pair], languages: Languages) -> TableFile:
    suffix, data = rng.choice([item for item in _writers(pairs, languages).items() if item[0] != ".parquet"])
    packer = rng.choice((*PACKERS, ".zip", ""))
    if packer == ".zip":
        store = io.BytesIO()
        with zipfile.ZipFile(store, "w") as archive:
            archive.writestr("x", data)
        data = store.getvalue()
    else:
        data = PACKERS[packer or rng.choice(list(PACKERS))](data)
    what = f"{suffix}{packer}" if packer else f"{suffix}, compressed within"
    allowed = "right" if packer in (".gz", ".xz", ".zst") else "right refused"
    return TableFile(what, f"x{suffix}{packer}", data, pairs, (), allowed, PACKED + "|not XML")


@kind("parquet")
def _good_parquet(rng: random.Random, pairs: list[Pair], languages: Languages) -> TableFile:
    what = rng.choice(("flat", "nested", "line breaks"))
    written = [(source.replace(" ", "\n", 1), target) for source, target in pairs] if what == "line breaks" else pairs
    pairs = [(source.replace("\n", " "), target) for source, target in written]
    return TableFile(f"parquet, {what}", "x.parquet", _parquet(written, languages, nested=what == "nested"), pairs)


@kind("columns exchanged")
def _exchanged(rng: random.Random, pairs: list[Pair], languages: Languages) -> TableFile:
    suffix, data = rng.choice(list(_writers([(target, source) for source, target in pairs], languages).items()))
    return TableFile(f"{suffix}, columns exchanged", f"x{suffix}", data, None, (), "refused warned", "swapped|exchange")
