"""Compressions, encodings and markup of text files: read alike everywhere, or refused in one line."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pyarrow as pa
import pytest

from seq2seq.data import text_files
from seq2seq.data.text_files import count_lines, name_of, read_lines, split_lines, warn_once
from seq2seq.system import files
from seq2seq.system.files import COMPRESSIONS, atomic_text

TEXT = "".join(f"Zeile {i} mit Wörtern\n" for i in range(2000)).encode()
LINES = TEXT.decode().splitlines()
PACK = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda data: pa.compress(data, codec="zstd", asbytes=True),
}


def archive(kind: str, data: bytes) -> bytes:
    made = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr("x", data)
    else:
        with tarfile.open(fileobj=made, mode=f"w:{kind}") as file:  # type: ignore[call-overload]
            entry = tarfile.TarInfo("x")
            entry.size = len(data)
            file.addfile(entry, io.BytesIO(data))
    return made.getvalue()


@pytest.mark.parametrize("suffix", COMPRESSIONS)
def test_a_compression_is_known_by_its_bytes(tmp_path, suffix):
    packed = PACK[suffix](TEXT)
    assert set(PACK) == set(COMPRESSIONS)
    for name in (f"x.de{suffix}", f"x.de{suffix.upper()}", "x.de"):
        (tmp_path / name).write_bytes(packed)
        assert list(read_lines(tmp_path / name)) == LINES
        with open(tmp_path / name, "rb") as file:
            assert count_lines(file) == len(LINES)
            assert file.tell() == 0
    # Two joined files, and a stream that cannot seek
    assert list(read_lines(io.BytesIO(packed * 2))) == LINES * 2
    with subprocess.Popen(["cat", str(tmp_path / "x.de")], stdout=subprocess.PIPE) as process:
        assert list(read_lines(process.stdout)) == LINES  # type: ignore[arg-type]
    for damaged in (packed[:-9], packed[: len(packed) // 2], b"", TEXT):
        (tmp_path / f"x{suffix}").write_bytes(damaged)
        with pytest.raises(ValueError, match=rf"x\{suffix} cannot be decompressed"):
            list(read_lines(tmp_path / f"x{suffix}"))


@pytest.mark.parametrize("suffix", COMPRESSIONS)
def test_what_is_written_is_compressed_as_its_name_says(tmp_path, suffix):
    path = tmp_path / f"x{suffix}"
    for _ in range(2):
        with atomic_text(path) as file:
            file.write(TEXT[:1000])
            file.flush()
            file.write(TEXT[1000:])
        before = path.read_bytes()
    assert list(read_lines(path)) == LINES
    files.write_lines(path, LINES)
    assert list(read_lines(path)) == LINES
    with pytest.raises(TypeError), atomic_text(path) as file:
        file.write(None)  # type: ignore[arg-type]
    assert list(read_lines(path)) == LINES
    assert len(before) < len(TEXT) / 2
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (archive("zip", TEXT), "is a zip archive, not text: unpack it"),
        (archive("", TEXT), "is a tar archive"),
        (archive("gz", TEXT), "is a tar archive"),
        (b"7z\xbc\xaf\x27\x1c" + TEXT, "is a 7z archive"),
        (b"%PDF-1.7\n", "is a PDF"),
        (b"PAR1" + bytes(20), "is a parquet file"),
        (TEXT.decode().encode("utf-16-le"), "UTF-16 or UTF-32"),
        (gzip.compress(TEXT.decode().encode("utf-32")), "UTF-16 or UTF-32"),
        (gzip.compress(gzip.compress(TEXT)), "compressed twice"),
    ],
)
def test_other_files_than_text_are_named(tmp_path, content, message):
    (tmp_path / "x.de").write_bytes(content)
    for place in (tmp_path / "x.de", io.BytesIO(content)):
        with pytest.raises(ValueError, match=message):
            list(read_lines(place))


def test_byte_order_marks_of_joined_files_are_no_text(tmp_path):
    (tmp_path / "x").write_bytes(b"\xef\xbb\xbfa\r\n\xef\xbb\xbfb\n\xef\xbb\xbf\nc\xef\xbb\xbf\n")
    assert list(read_lines(tmp_path / "x")) == ["a", "b", "", "c\ufeff"]


def test_a_line_without_end_is_cut_or_refused():
    blocks = [b"x" * 10] * 10
    (line,) = split_lines(iter(blocks), 15)
    assert line
    assert (line.data, line.size) == (b"x" * 15, 100)
    read = iter(blocks)
    with pytest.raises(ValueError, match="data: line 1 has more than"):
        list(split_lines(read, 15, refused_as="data"))
    assert len(list(read)) == 8
    # Also if it ends in the block in which it becomes too long
    with pytest.raises(ValueError, match="data: line 3 has more than"):
        list(split_lines([b"a\n\nx" + b"x" * 9, b"x" * 6 + b"\n"], 15, refused_as="data"))
    assert len(list(split_lines([b"a\n\nx" + b"x" * 9, b"x" * 5 + b"\n"], 15, refused_as="data"))) == 3


def test_a_descriptor_has_a_name(tmp_path):
    """A file that is opened by its descriptor, as standard input is, has a number as its name."""
    (tmp_path / "x").write_bytes(b"")
    file = (tmp_path / "x").open("rb")
    assert [name_of(each) for each in (file, tmp_path / "x", io.BytesIO())] == [*[str(tmp_path / "x")] * 2, "the text"]
    with io.FileIO(0, closefd=False) as stdin:
        assert name_of(stdin) == "standard input"


SGM = """<{0} setid="s" srclang="en" trglang="de">
<doc docid="d">
<hl>
<SEG id="1">Ein Hund &amp; mehr, AT&T &quot;so&quot;.</SEG>
</hl>
<p>
<seg id="2"> Zwei
  Zeilen </seg><seg id="3"></seg>
<seg id="4"/>
<seg id="5">&lt;b&gt;&#10;a&nbsp;b&#13;</seg>
</p>
</doc>
</{0}>
"""
XML = '<?xml version="1.0"?>\n'
SEGMENTS = ['Ein Hund & mehr, AT&T "so".', "Zwei Zeilen", "", "", "<b> a\xa0b"]


@pytest.mark.parametrize("kind", ["srcset", "refset", "tstset"])
@pytest.mark.parametrize("head", ["", "\ufeff", '<?xml version="1.0"?>\n<!DOCTYPE mteval SYSTEM "x.dtd">\n<mteval>\n'])
def test_the_segments_of_a_test_set_are_its_lines(tmp_path, caplog, kind, head):
    warn_once.cache_clear()
    text = head + SGM.format(kind)
    for name, content in (("x.sgm", text.encode()), ("x.de", text.encode()), ("x.gz", gzip.compress(text.encode()))):
        (tmp_path / name).write_bytes(content)
        assert list(read_lines(tmp_path / name)) == SEGMENTS
        with open(tmp_path / name, "rb") as file:
            assert count_lines(file) == len(SEGMENTS)
    assert caplog.text.count("5 lines of text") == 3


def test_the_tags_of_talks_are_no_sentences(tmp_path, caplog):
    warn_once.cache_clear()
    head = "<url>http://x</url>\n<speaker>A B</speaker>\n<title>A: B</title>\n<description>C</description>\n"
    body = "Eins &amp; zwei\n\nDrei\n"
    for text in (f"{head}{body}{head}Vier\n", f'<doc docid="1">\n{head} {body}</doc>\nVier'):
        (tmp_path / "train.tags.de-en.de").write_text(text)
        assert list(read_lines(tmp_path / "train.tags.de-en.de")) == ["Eins & zwei", "", "Drei", "Vier"]
    assert "4 lines of text" in caplog.text


@pytest.mark.parametrize(
    "text",
    [
        "<description> is a tag.\n" + "Zwei Hunde.\n" * 20,
        "<title>Der Hund</title>\n" + "Ein Hund.\n" * 20,
        "<title>Der Hund</title>\n<url> und <speaker>A</speaker> sind\nEin Hund.\n" + "Text\n" * 30,
    ],
)
def test_text_that_begins_with_the_tag_of_a_talk_is_text(tmp_path, text):
    """Only a talk, with several kinds of one-line elements, loses lines."""
    (tmp_path / "x.de").write_text(text)
    assert list(read_lines(tmp_path / "x.de")) == text.splitlines()


@pytest.mark.parametrize("text", ["en\thi\nA dog\tएक कुत्ता\n", "Ein Hund\n", "собака и кошка\n", "كلب وقطة\n"])
@pytest.mark.parametrize("code", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-16"])
def test_wide_characters_are_known_without_a_mark(tmp_path, text, code):
    (tmp_path / "x").write_bytes((text * 20).encode(code))
    with pytest.raises(ValueError, match="UTF-16"):
        list(read_lines(tmp_path / "x"))


def test_bytes_that_are_a_mark_of_utf_16_alone_are_a_line(tmp_path):
    (tmp_path / "x").write_bytes(b"\xff\xfe\nEin Hund\n")
    assert len(list(read_lines(tmp_path / "x"))) == 2
    (tmp_path / "y").write_bytes(b"1\t2\t" * 50 + b"\n")
    assert len(list(read_lines(tmp_path / "y"))) == 1


@pytest.mark.parametrize(
    "text",
    [
        f"{XML}<xliff><file><trans-unit><source>a</source></trans-unit></file></xliff>\n",
        f'{XML}<tmx><tu><tuv lang="de"><seg>a</seg></tuv><tuv lang="en"><seg>b</seg></tuv></tu></tmx>\n',
        '<dataset id="w">\n<doc id="a">\n<src lang="en"><p>\n<seg id="1">a</seg>\n</p></src>\n<ref lang="de"><p>\n'
        '<seg id="1">b</seg>\n</p></ref>\n</doc>\n</dataset>\n',
        SGM.format("srcset") + SGM.format("refset"),
        "<!-- a comment -->\n<refset></refset>\n",
        "<!DOCTYPE html>\n<html><body>404</body></html>\n",
    ],
)
def test_other_markup_is_refused(tmp_path, text):
    """The segments of other markup may be of both sides, which would pair a text with itself."""
    for name in ("x.xml", "x.de"):
        (tmp_path / name).write_text(text)
        with pytest.raises(ValueError, match=r"markup is not read.*write its sentences to a file"):
            list(read_lines(tmp_path / name))


def test_text_about_markup_is_text(tmp_path):
    for first in ("<?xml version='1.0'?> begins a file", "<b>Bold</b>", "<seg> is a tag"):
        lines = [first, *LINES[:200], "<title>", "<b>"]
        (tmp_path / "x.de").write_text("".join(f"{line}\n" for line in lines))
        assert list(read_lines(tmp_path / "x.de")) == lines


def test_a_large_corpus_that_begins_with_markup_is_text(tmp_path, monkeypatch):
    """Its beginning decides, and all of it is read."""
    monkeypatch.setattr(text_files, "_LARGEST_MARKUP", 1000)
    lines = ["<title> is a tag", *LINES[:200]]
    (tmp_path / "x.de").write_text("".join(f"{line}\n" for line in lines))
    assert (tmp_path / "x.de").stat().st_size > 2000
    assert list(read_lines(tmp_path / "x.de")) == lines
    (tmp_path / "x.de").write_text(SGM.format("srcset") * 50)
    with pytest.raises(ValueError, match="markup is not read"):
        list(read_lines(tmp_path / "x.de"))


def test_reading_text_needs_neither_torch_nor_arrow():
    code = "import sys, seq2seq.data.text_files; assert not {'torch', 'pyarrow', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(files.__file__).parents[2])
