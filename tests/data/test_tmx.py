"""TMX: variants of languages, inline elements, encodings, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from seq2seq.data import tmx
from seq2seq.data.readers import LanguageColumns
from seq2seq.data.tmx import tmx_pairs

HEAD = '<?xml version="1.0" encoding="{}"?>\n<!DOCTYPE tmx SYSTEM "tmx14.dtd">\n<tmx version="1.4"><header/>\n<body>'


def document(*units: str, encoding: str = "utf-8") -> bytes:
    return (HEAD.format(encoding) + "\n".join(units) + "</body></tmx>").encode(encoding)


def unit(**texts: str) -> str:
    variants = (f'<tuv xml:lang="{name.replace("_", "-")}"><seg>{text}</seg></tuv>' for name, text in texts.items())
    return f"<tu>{''.join(variants)}</tu>"


def read(path: Path, content: bytes, columns: LanguageColumns | None = None) -> list[tuple[str, str]]:
    path.write_bytes(content)
    blocks = tmx_pairs(path, columns or LanguageColumns("de", "en"))
    return [pair for src, tgt in blocks for pair in zip(src, tgt, strict=True)]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "iso-8859-1", "windows-1252"])
def test_encodings(tmp_path, encoding):
    found = read(tmp_path / "x.tmx", document(unit(en="x", de="Größe &amp; &#233;"), encoding=encoding))
    assert found == [("Größe & é", "x")]


def test_variants_of_languages(tmp_path):
    path = tmp_path / "x.tmx"
    content = document(
        unit(fr="x", EN_us="1", de_DE="eins"),
        unit(en_GB="2", de_AT="zwei a", de="zwei"),
        unit(en="3", fr="trois"),
        '<tu><tuv lang="de"><seg>vier</seg></tuv><tuv lang="en"><seg>4</seg></tuv></tu>',
    )
    assert read(path, content) == [("eins", "1"), ("zwei", "2"), ("vier", "4")]
    assert read(path, content, LanguageColumns("de", "en", {"de": "de-AT"})) == [("zwei a", "2")]
    assert read(path, content, LanguageColumns("fr", "en")) == [("x", "1"), ("trois", "3")]


def test_inline_elements_and_line_breaks(tmp_path):
    text = (
        '<bpt i="1">&lt;b&gt;</bpt>Hallo<ept i="1">&lt;/b&gt;</ept>, <hi>du</hi>\n   da<ph>x<sub>y</sub></ph>&nbsp;z '
    )
    assert read(tmp_path / "x.tmx", document(unit(de=text, en="a<it>b</it>c"))) == [("Hallo, du da\xa0z", "ac")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('Press<ph type="lb">{lb}</ph>Enter', "Press Enter"),
        ('Press <ph type="lb"/>Enter', "Press Enter"),
        ('Press<ph type="lb"/>.', "Press."),
        ('Press<x id="1" type="lb"/><x type="lb"/>Enter', "Press Enter"),
        ("Press<it pos='begin'>&lt;br/&gt;</it>Enter", "Press Enter"),
        ("Press<ph>\\n</ph>Enter", "Press Enter"),
        ("Press<ph>\n</ph>Enter", "Press Enter"),
        ("Press<ut>&#9;</ut>Enter", "Press Enter"),
        ('un<ph>&lt;b&gt;</ph>do<ph x="1"/>ing', "undoing"),
        ('un<bpt i="1">&lt;br&gt;</bpt>do<ept i="1">&lt;/br&gt;</ept>', "undo"),
        ("漢<ph type='lb'/>字", "漢 字"),
    ],
)
def test_a_code_that_stands_for_a_break_leaves_a_space(tmp_path, text, expected):
    assert read(tmp_path / "x.tmx", document(unit(de=text, en="x"))) == [(expected, "x")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (document(unit(de="a", en="b"))[:-20], r"line 4 is not XML: .*; is the file complete\?"),
        (document(unit(de="a", en="b<x>")), "line 4 is not XML: mismatched tag"),
        (document(unit(de="a\x00", en="b")), "line 4 is not XML"),
        (document(unit(de="a&#x1F;", en="b")), r"line 4 is not XML: .*: XML allows no control characters|; XML allows"),
        (document(unit(de="a & b", en="b")), "line 4 is not XML: .*bare &"),
        (document(unit(de="&foo;", en="b")), "line 4: the entity &foo; is not known"),
        (document(unit(fr="a", en="b")), r"none of its translation units has both de and en; .* are 'fr', 'en'"),
        (document(), "has no translation units"),
        (b'<!DOCTYPE t [<!ENTITY a "b"><!ENTITY c "&a;&a;">]><tmx>&c;</tmx>', "it declares the entity 'a'"),
        (b'<!DOCTYPE t [<!ENTITY a SYSTEM "file:///etc/passwd">]><tmx>&a;</tmx>', "it declares the entity 'a'"),
        (b"", "line 1 is not XML: no element found"),
    ],
)
def test_damaged_files_are_refused_with_their_line(tmp_path, content, message):
    with pytest.raises(ValueError, match=message) as told:
        read(tmp_path / "x.tmx", content)
    assert "\n" not in str(told.value)


def test_a_file_of_other_languages_is_not_read_to_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(tmx, "_SEARCHED", 10)
    with pytest.raises(ValueError, match="none of its first 10 translation units"):
        read(tmp_path / "x.tmx", document(*[unit(fr="a", en="b")] * 20, unit(de="a", en="b")))
