"""CSV by RFC 4180 and TSV: against Python's own reader, and the layouts that programs write."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seq2seq.data.delimited import csv_pairs, tsv_pairs
from seq2seq.data.readers import LanguageColumns, one_line
from seq2seq.data.text_files import warn_once

NAMED = LanguageColumns("de", "en")
NUMBERED = LanguageColumns("de", "en", {"de": 1, "en": 0})
# Characters of a cell: special ones of CSV, line ends of other programs, and any other character
CELL = st.text(st.sampled_from("\",;\t\n\r\x0b\x85\u2028 ab'") | st.characters(exclude_categories=["Cs"]), max_size=8)


def read(reader, path: Path, content: str | bytes, columns: LanguageColumns = NAMED) -> list[tuple[str, str]]:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return [pair for src, tgt in reader(path, columns) for pair in zip(src, tgt, strict=True)]


@settings(max_examples=150)
@given(st.lists(st.tuples(CELL, CELL, CELL), min_size=1, max_size=8), st.sampled_from(",;\t"), st.booleans())
def test_csv_agrees_with_pythons_writer(tmp_path_factory, rows, delimiter, header):
    path = tmp_path_factory.mktemp("csv") / "x.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter, quoting=csv.QUOTE_ALL)
        writer.writerows([["en", "de", "other"]] * header + [list(row) for row in rows])
    found = read(csv_pairs, path, path.read_bytes(), NAMED if header else NUMBERED)
    expected = [(one_line(de), one_line(en)) for en, de, _ in rows]
    # A headless table whose first row has the names of the languages does have a header
    assert found == (expected if header or rows[0][1::-1] != ("de", "en") else expected[1:])


@settings(max_examples=150)
@given(st.text(st.sampled_from('",\n\rab'), max_size=30))
def test_any_text_is_read_as_python_reads_it_or_refused(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("csv") / "x.csv"
    found: object
    try:
        found = read(csv_pairs, path, f"de,en\n{text}")
    except ValueError as error:
        found = str(error)
    if isinstance(found, str):
        assert "\n" not in found
        return
    # A lone CR ends a line for Python's reader and none here
    plain = text.replace("\r\n", "\n")
    if "\r" not in plain:
        rows = [row for row in csv.reader(plain.splitlines(keepends=True), strict=True) if row]
        assert found == [(one_line(src), one_line(tgt)) for src, tgt in rows]


def test_layouts(tmp_path):
    path = tmp_path / "x.csv"
    expected = [("a, b", "c"), ('d "e"', "f g")]
    assert read(csv_pairs, path, 'de,en\n"a, b",c\n\n"d ""e""","f\ng"') == expected
    assert read(csv_pairs, path, '\ufeffid;en;de\r\n1;c;a, b\r\n2;"f\r\ng";"d ""e"""\r\n') == expected
    assert read(csv_pairs, path, 'de\ten\na, b\tc\n"d ""e"""\tf g\n') == expected
    assert read(csv_pairs, path, "x,y,z\n", LanguageColumns("de", "en", {"de": 2, "en": 0})) == [("z", "x")]
    # Without a header, the delimiter divides all rows alike: commas occur in texts as well
    for text in ("a, b{}c, d\ne, f{}g, h\n", "a, b{}c\ne{}g, h\n"):
        for delimiter in ";\t":
            found = read(
                csv_pairs, path, text.format(delimiter, delimiter), LanguageColumns("de", "en", {"de": 0, "en": 1})
            )
            assert found == [tuple(row.split(delimiter)) for row in text.format(delimiter, delimiter).splitlines()]
    for text, pairs in (
        ("a;b,c\nd,e\n", [("a;b", "c"), ("d", "e")]),
        ("Er kam; sie ging.,He came; she went.\n", [("Er kam; sie ging.", "He came; she went.")]),
        ("a;b,c;d\ne;f,g;h\n", [("a;b", "c;d"), ("e;f", "g;h")]),
        ("a; b,c\nd; e,f\n", [("a; b", "c"), ("d; e", "f")]),
    ):
        assert read(csv_pairs, path, text, LanguageColumns("de", "en", {"de": 0, "en": 1})) == pairs
    # A mistake does not change the delimiter
    wrong = "".join(f"a, {i};b, {i}\n" for i in range(20)) + "c;d;e\n"
    with pytest.raises(ValueError, match=r"line 21 has 3 fields where the first row has 2: a field that holds ';'"):
        read(csv_pairs, path, wrong, LanguageColumns("de", "en", {"de": 0, "en": 1}))
    # Lone returns are text
    assert read(csv_pairs, path, 'de,en\na\rb,"c\rd\r\n"\n') == [("a\rb", "c\rd ")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("de,en\na,b\nc, d,e\n", r"line 3 has 3 fields where the first row has 2: .*must be in quotes"),
        ('de,en\na,b\n"c,d\ne,f\n', "line 3 is not CSV: a quote is not closed"),
        ('de,en\n"a" b,c\n', r"line 2 is not CSV: ',' expected after '\"'"),
        ("de,en,de\na,b,c\n", "the column 'de' 2 times"),
        ("source,target\na,b\n", r"no language column 'de'; .*'data.columns=\{de: source, en: target\}'"),
        ("a,b\nc,d\n", r"it has 'a', 'b': .*numbers from 0 if its first line is not a header"),
        ("", "is empty"),
    ],
)
def test_wrong_tables_name_the_line(tmp_path, content, message):
    with pytest.raises(ValueError, match=message):
        read(csv_pairs, tmp_path / "x.csv", content)


def test_tsv_has_no_quotes_unless_its_header_has(tmp_path):
    path = tmp_path / "x.tsv"
    assert read(tsv_pairs, path, 'de\ten\n"a\tb"\n') == [('"a', 'b"')]
    assert read(tsv_pairs, path, '"de"\t"en"\n"a\tb"\t"c ""d"""\n') == [("a\tb", 'c "d"')]
    assert read(tsv_pairs, path, "b\ta\nd\tc\n", NUMBERED) == [("a", "b"), ("c", "d")]
    with pytest.raises(ValueError, match=r"line 3 has 1 fields where the first row has 2: .*data\.format=csv"):
        read(tsv_pairs, path, 'de\ten\na\tb\n"c\n')


@pytest.mark.parametrize("header", ["en\tde\n", "id\ten\tde\n", ""])
def test_rows_of_a_tsv_have_as_many_fields_as_the_first(tmp_path, header):
    """If other rows were read, one side of a pair would be the rest of the other side."""
    path = tmp_path / "x.tsv"
    more = "1\t" if "id" in header else ""
    columns = NAMED if header else NUMBERED
    good = f"{more}A dog runs.\tEin Hund rennt.\n"
    for row in (f"{more}A\tgirl runs.\tEin Mädchen rennt.\n", f"{more}A girl runs.\n"):
        with pytest.raises(ValueError, match=r"line \d has \d fields where the first row has \d: .*awk -F"):
            read(tsv_pairs, path, header + good + row, columns)
    # Blank lines, and the header of a file that was joined to this one, are no rows
    expected = [("Ein Hund rennt.", "A dog runs.")] * 2
    assert read(tsv_pairs, path, f"{header}\n{good}\n\r\n{header}{good}\n", columns) == expected
    joined = header.replace("\t", ",") + good.replace("\t", ",")
    assert read(csv_pairs, path, joined * 2, columns) == expected


def test_the_quotes_of_a_spreadsheet_are_no_text(tmp_path, caplog):
    """A spreadsheet doubles inner quotes, which tells its quotes from quotes of the text; a mixture gives a warning."""
    path = tmp_path / "x.tsv"
    quoted = 'de\ten\n"Er sagt ""ja"" jetzt"\t"He says ""yes"", now"\nWand\twall\n'
    expected = [('Er sagt "ja" jetzt', 'He says "yes", now'), ("Wand", "wall")]
    assert read(tsv_pairs, path, quoted) == expected
    assert read(tsv_pairs, path, quoted.partition("\n")[2], LanguageColumns("de", "en", {"de": 0, "en": 1})) == expected
    assert not caplog.text
    for text in ('"Ja", sagt er', 'Er sagt "ja"', '"Nein'):
        warn_once.cache_clear()
        caplog.clear()
        found = read(tsv_pairs, path, f"{quoted}{text}\tx\n")
        assert found[0][0] == '"Er sagt ""ja"" jetzt"'
        assert found[-1][0] == text
        assert caplog.text.count("set data.format=csv") == 1
