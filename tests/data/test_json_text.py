"""JSON lines and JSON arrays, against Python's own parser; errors name the line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seq2seq.data import json_text, text_files
from seq2seq.data.json_text import json_pairs
from seq2seq.data.readers import LanguageColumns, one_line

COLUMNS = LanguageColumns("de", "en")
TEXT = st.text(max_size=8) | st.none() | st.integers()
RECORD = st.fixed_dictionaries({"de": TEXT, "en": TEXT}, optional={"more": st.lists(st.booleans())})


def read(path: Path, content: str | bytes, columns: LanguageColumns = COLUMNS) -> list[tuple[str, str]]:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return [pair for src, tgt in json_pairs(path, columns) for pair in zip(src, tgt, strict=True)]


def plain(value: object) -> str:
    return one_line("" if value is None else str(value))


@settings(max_examples=150)
@given(st.lists(RECORD, min_size=1, max_size=6), st.booleans(), st.sampled_from([None, 0, 2]), st.integers(1, 9))
def test_agrees_with_pythons_parser(tmp_path_factory, records, ascii_only, indent, size):
    path = tmp_path_factory.mktemp("json") / "x.json"
    expected = [(plain(each["de"]), plain(each["en"])) for each in records]
    lines = "".join(json.dumps(each, ensure_ascii=ascii_only) + "\n" for each in records)
    assert read(path, lines) == expected
    array = json.dumps(records, ensure_ascii=ascii_only, indent=indent).encode()
    # In blocks of a few bytes, so that they end anywhere
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            json_text, "read_blocks", lambda _: iter([array[i : i + size] for i in range(0, len(array), size)])
        )
        assert read(path, array) == expected


def test_schemas(tmp_path):
    path = tmp_path / "x.jsonl"
    assert read(path, '{"translation": {"de": "a", "en": "b"}}\n\n{"translation": null}\n') == [("a", "b"), ("", "")]
    assert read(path, '{"x": "a", "y": "b"}\n', LanguageColumns("de", "en", {"de": "x", "en": "y"})) == [("a", "b")]
    # A record without a language is an empty line, as null is
    assert read(path, '{"de": "a", "fr": "b"}\n{"de": "c", "en": "d"}\n') == [("a", ""), ("c", "d")]
    assert read(path, b'\xef\xbb\xbf[{"de": "a\\ud800", "en": "b\xff"}]') == [("a?", "b\ufffd")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"de": "a", "en": "b"}\n{"de": "a"\n', r"line 2 is not JSON \(Expecting ',' delimiter, column 11\)"),
        ('{"de": "a", "en": "b"}\n"c"\n', "line 2 is not a JSON object"),
        ('{"de": "a", "en": "b"}\n{"de": 1.5, "en": "b"}\n', "line 2: 'de' is a number, not text"),
        ('{"de": "a", "en": ["b"]}\n', "line 1: 'en' is a list, not text"),
        ('{"de": "a", "en": "b", "de": "c"}\n', "line 1 is not JSON .the key 'de' occurs twice"),
        ('{"de": ' + "[" * 100_000, "nested too deeply"),
        ('{"de": ' + "1" * 9000 + "}", "a number has thousands of digits"),
        ("\n \n", "is empty: it has no JSON objects"),
        ("[]", "is empty: it has no JSON objects"),
        ('[{"de": "a", "en": "b"},\n {"de": 1', r"element 2 \(line 2\) is not JSON"),
        ('[{"de": "a", "en": "b"}\n {"de": 1}]', "a comma or ] is missing after element 1"),
        ('[{"de": "a", "en": "b"}]\n[]', "line 2 follows the end of the array"),
        ('{"src": "a", "tgt": "b"}\n', r"'data.columns=\{de: src, en: tgt\}'"),
        ('{"en": "a", "fr": "b"}\n', "no language column 'de'; it has 'en', 'fr': set data.src and data.tgt"),
    ],
)
def test_wrong_files_name_the_line(tmp_path, content, message):
    with pytest.raises(ValueError, match=message) as told:
        read(tmp_path / "x.json", content)
    assert "\n" not in str(told.value)


def test_an_array_may_be_one_line_of_any_length(tmp_path, monkeypatch):
    """It is read element by element, so that its length needs no limit; after the mark and blanks of some programs."""
    monkeypatch.setattr(text_files, "LONGEST_LINE", 1 << 12)
    rows = [{"de": "Hund " * 100, "en": "dog " * 100}] * 10_000
    path = tmp_path / "x.json"
    assert read(path, b"\xef\xbb\xbf \n" + json.dumps(rows).encode()) == [(row["de"], row["en"]) for row in rows]
    assert path.stat().st_size > 2 << 22


def test_a_line_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "LONGEST_LINE", 1 << 22)
    with pytest.raises(ValueError, match=r"x\.jsonl: line 1 has more than 4 MiB"):
        read(tmp_path / "x.jsonl", b" " * (1 << 23))
