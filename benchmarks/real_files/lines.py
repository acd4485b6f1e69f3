"""Files of lines: line ends, marks, encodings, compression, markup, blank and long lines."""

from __future__ import annotations

import bz2
import functools
import gzip
import io
import lzma
import random
import tarfile
import unicodedata
import zipfile
from collections.abc import Callable, Sequence
from xml.sax.saxutils import escape

import pyarrow as pa

from benchmarks.real_files.places import CODES, PLACES, LineFile, LineKind, plain, read_lines
from benchmarks.real_files.sentences import LANGUAGES

KINDS: dict[str, Callable[..., object]] = {}
# Patterns of messages by fault.
ENCODING = r"utf-?8|encod|code ?page|U\+FFFD"
WIDE = r"utf-?(8|16|32)|encod"
PACKED = r"compress|gzip|bzip|zip|archive|damaged|incomplete"
MARKUP = r"xml|sgml?|markup|html|<seg|xliff|<\?|\btags?\b"
NAMED = [code for code in CODES if LANGUAGES[code].pages]
PACKERS = {
    ".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress,
    ".zst": lambda data: bytes(pa.compress(data, codec="zstd", asbytes=True)),
}  # fmt: skip


def kind(
    name: str, *, places: Sequence[str] = PLACES, codes: Sequence[str] = CODES, both: float = 0.3
) -> Callable[[LineKind], LineKind]:
    """Register a kind of file by the places where it is read.

    Args:
        both: Probability that both sides of a corpus are such files.
    """

    def register(function: LineKind) -> LineKind:
        KINDS[name] = functools.partial(read_lines, kind=function, places=places, codes=codes, both=both)
        return function

    return register


@kind("plain", places=(*PLACES, "prefixes", "phrases"))
def _plain(rng: random.Random, lines: list[str], code: str) -> LineFile:
    return plain("UTF-8", lines)


@kind("line ends", places=(*PLACES, "prefixes", "phrases"))
def _ends(rng: random.Random, lines: list[str], code: str) -> LineFile:
    what = rng.choice(("CRLF", "some CRLF", "no last line end", "CRLF, no last line end"))
    ends = [
        "\n" if what == "no last line end" or (what == "some CRLF" and i % 2) else "\r\n" for i in range(len(lines))
    ]
    data = "".join(line + end for line, end in zip(lines, ends, strict=True)).encode()
    # A blank last line needs its line end
    return LineFile(what, data.rstrip() if "no last" in what and lines[-1] else data, lines)


@kind("lines end at CR", both=1)
def _returns(rng: random.Random, lines: list[str], code: str) -> LineFile:
    says = r"line ends?|CR\b|carriage|\\r|has 1\b"
    return LineFile("CR alone", "\r".join([*lines, ""]).encode(), lines, allowed="right refused warned", says=says)


@kind("breaks inside lines")
def _inner(rng: random.Random, lines: list[str], code: str) -> LineFile:
    mark = rng.choice(("\r", "\u2028", "\u2029", "\x85", "\f", "\v", "\x1c", "\x1e"))
    cut = [f"{line[: len(line) // 2]}{mark}{line[len(line) // 2 :]}" if rng.random() < 0.4 else line for line in lines]
    return plain(f"{mark!r} inside", cut)


@kind("byte order mark", places=(*PLACES, "prefixes", "phrases"))
def _mark(rng: random.Random, lines: list[str], code: str) -> LineFile:
    return LineFile("BOM", "\n".join(["\ufeff" + lines[0], *lines[1:], ""]).encode(), lines)


@kind("marks inside")
def _marks(rng: random.Random, lines: list[str], code: str) -> LineFile:
    marked = ["\ufeff" + line if rng.random() < 0.4 or i in (0, 5) else line for i, line in enumerate(lines)]
    return plain("BOM at other lines", marked, lines=lines, allowed="right warned", says="byte order|BOM|FEFF")


@kind("UTF-16 and UTF-32", places=(*PLACES, "prefixes", "phrases"), both=0.7)
def _wide(rng: random.Random, lines: list[str], code: str) -> LineFile:
    page = rng.choice(("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"))
    data = "".join(f"{line}\n" for line in lines).encode(page)
    return LineFile(page, data, lines, allowed="right refused warned", says=WIDE)


@kind("code page", places=(*PLACES, "prefixes", "phrases"), codes=NAMED)
def _page(rng: random.Random, lines: list[str], code: str) -> LineFile:
    if code == "en":
        return plain("ASCII", lines)
    page = rng.choice(LANGUAGES[code].pages)
    # Old files mix both line ends
    data = "".join(line + rng.choice(("\n", "\r\n")) for line in lines).encode(page)
    return LineFile(page, data, lines, allowed="right refused warned", says=ENCODING)


@kind("invalid bytes", places=(*PLACES, "prefixes", "phrases"), both=0)
def _invalid(rng: random.Random, lines: list[str], code: str) -> LineFile:
    place = rng.randrange(len(lines) // 2, len(lines))
    bad = rng.choice((b"\xff", b"\xe4\xf6", b"\xc3", b"\xed\xa0\x80", b"\xf0\x9f\x98"))
    rows = [line.encode() for line in lines]
    rows[place] = lines[place][:1].encode() + bad + lines[place][1:].encode()
    data = b"".join(row + b"\n" for row in rows)
    return LineFile(f"{bad!r} in line {place + 1}", data, None, allowed="warned refused", says=ENCODING)


def _pack(rng: random.Random, lines: list[str]) -> tuple[str, bytes]:
    suffix = rng.choice(list(PACKERS))
    return suffix, PACKERS[suffix]("".join(f"{line}\n" for line in lines).encode())


@kind("compressed", places=(*PLACES, "prefixes", "phrases"), both=0.5)
def _packed(rng: random.Random, lines: list[str], code: str) -> LineFile:
    suffix, data = _pack(rng, lines)
    return LineFile(f"{suffix}", data, lines, suffix, "right refused" if suffix == ".bz2" else "right", PACKED)


@kind("compressed, capital suffix", places=[place for place in PLACES if place != "stdin"], both=0.7)
def _capital(rng: random.Random, lines: list[str], code: str) -> LineFile:
    suffix, data = _pack(rng, lines)
    suffix = rng.choice((suffix.upper(), suffix.title()))
    return LineFile(f"{suffix}", data, lines, suffix, "right refused", PACKED)


@kind("compressed, no suffix", places=(*PLACES, "prefixes", "phrases"), both=0.7)
def _magic(rng: random.Random, lines: list[str], code: str) -> LineFile:
    suffix, data = _pack(rng, lines)
    return LineFile(f"{suffix[1:]} without suffix", data, lines, "", "right refused", PACKED)


@kind("wrong suffix", places=[place for place in PLACES if place != "stdin"])
def _misnamed(rng: random.Random, lines: list[str], code: str) -> LineFile:
    suffix, data = _pack(rng, lines)
    if rng.random() < 0.6:
        data = "".join(f"{line}\n" for line in lines).encode()
        return LineFile(f"plain text called {suffix}", data, lines, suffix, "right refused", PACKED)
    other = rng.choice([each for each in PACKERS if each != suffix])
    return LineFile(f"{suffix} called {other}", data, lines, other, "right refused", PACKED)


@kind("truncated", both=0.7)
def _truncated(rng: random.Random, lines: list[str], code: str) -> LineFile:
    suffix, data = _pack(rng, lines)
    lost = rng.choice((1, 4, 8, len(data) // 3, len(data) // 2))
    return LineFile(f"{suffix} without its last {lost} bytes", data[:-lost], None, suffix, "refused", PACKED)


@kind("concatenated members")
def _members(rng: random.Random, lines: list[str], code: str) -> LineFile:
    suffix = rng.choice(list(PACKERS))
    middle = rng.randrange(1, len(lines) - 1)
    parts = ("".join(f"{line}\n" for line in part).encode() for part in (lines[:middle], lines[middle:]))
    data = b"".join(map(PACKERS[suffix], parts))
    return LineFile(
        f"two members of {suffix}", data, lines, suffix, "right refused" if suffix == ".bz2" else "right", PACKED
    )


@kind("archive", both=0.7)
def _archive(rng: random.Random, lines: list[str], code: str) -> LineFile:
    text = "".join(f"{line}\n" for line in lines).encode()
    suffix = rng.choice((".zip", ".ZIP", "", ".tar", ".tar.gz", ".tgz"))
    store = io.BytesIO()
    if "tar" in suffix or "tgz" in suffix:
        with tarfile.open(fileobj=store, mode="w:gz" if "gz" in suffix else "w") as tar:
            entry = tarfile.TarInfo("corpus/text")
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text))
    else:
        with zipfile.ZipFile(store, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("text", text)
    says = f"{PACKED}|\\btar\\b|zero byte|NUL|binary|not text"
    return LineFile(
        f"archive {suffix or 'zip without suffix'}", store.getvalue(), lines, suffix, "right refused warned", says
    )


@kind("not text", both=0.7)
def _binary(rng: random.Random, lines: list[str], code: str) -> LineFile:
    store = io.BytesIO()
    with zipfile.ZipFile(store, "w") as archive:
        archive.writestr("word/document.xml", "<w:document>" + "".join(f"<w:p>{line}</w:p>" for line in lines))
    pdf = (
        b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj\n<< /Length 200 >>\nstream\n"
        + rng.randbytes(200)
        + b"\nendstream\n%%EOF\n"
    )
    png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + rng.randbytes(300)
    files = {"docx": store.getvalue(), "pdf": pdf, "png": png, "random bytes": rng.randbytes(400)}
    what = rng.choice(list(files))
    suffix = rng.choice((f".{what}", "")) if " " not in what else ""
    says = f"{PACKED}|{ENCODING}|binary|not text|pdf"
    return LineFile(f"{what} {suffix}", files[what], None, suffix, "refused warned", says)


@kind("SGM set", both=1)
def _sgm(rng: random.Random, lines: list[str], code: str) -> LineFile:
    tag, pad = rng.choice(("srcset", "refset", "tstset")), rng.choice(("", " "))
    rows = [f'<seg id="{i}">{pad}{escape(line)}{pad}</seg>' for i, line in enumerate(lines, 1)]
    head = [f'<{tag} setid="set" srclang="de" trglang="any">', '<doc docid="doc" genre="news" origlang="de">', "<p>"]
    head = rng.choice(([], ['<?xml version="1.0" encoding="UTF-8"?>', "<mteval>"], ["<!DOCTYPE mteval>"])) + head
    rows = [*head, *rows, "</p>", "</doc>", f"</{tag}>", *(["</mteval>"] if "<mteval>" in head else [])]
    return plain(
        tag,
        rows,
        lines=lines,
        suffix=rng.choice((".sgm", ".sgm", ".xml", "")),
        allowed="right refused warned",
        says=MARKUP,
    )


@kind("XML test set", both=1)
def _xml(rng: random.Random, lines: list[str], code: str) -> LineFile:
    side = "ref" if code == "en" else "src"
    rows = [f'        <seg id="{i}">{escape(line)}</seg>' for i, line in enumerate(lines, 1)]
    head = ['<?xml version="1.0" encoding="UTF-8"?>', '<dataset id="set">', f'  <doc origlang="{code}" id="doc">']
    rows = [
        *head,
        f'    <{side} lang="{code}">',
        "      <p>",
        *rows,
        "      </p>",
        f"    </{side}>",
        "  </doc>",
        "</dataset>",
    ]
    suffix = rng.choice((".xml", ""))
    return plain("WMT XML", rows, lines=lines, suffix=suffix, allowed="right refused warned", says=MARKUP)


@kind("XLIFF or HTML", both=1)
def _page_of_markup(rng: random.Random, lines: list[str], code: str) -> LineFile:
    if rng.random() < 0.5:
        head = ['<?xml version="1.0"?>', '<xliff version="1.2"><file source-language="de"><body>']
        rows = [f'<trans-unit id="{i}"><source>{escape(line)}</source></trans-unit>' for i, line in enumerate(lines)]
        rows, what, suffix = [*head, *rows, "</body></file></xliff>"], "XLIFF", rng.choice((".xlf", ".xliff", ""))
    else:
        head = [
            rng.choice(("<!DOCTYPE html>", "<!doctype html>", "<HTML>")),
            "<html><head><title>News</title></head><body>",
        ]
        rows, what = [*head, *(f"<p>{escape(line)}</p>" for line in lines), "</body></html>"], "HTML"
        suffix = rng.choice((".html", ""))
    return plain(what, rows, lines=None, suffix=suffix, allowed="refused warned", says=MARKUP)


@kind("IWSLT tags", both=1)
def _tags(rng: random.Random, lines: list[str], code: str) -> LineFile:
    rows: list[str] = []
    for start in range(0, len(lines), 6):
        rows += [f"<url>http://www.example.org/{start}</url>", "<keywords>talks, science</keywords>"]
        rows += [
            f"<speaker>Speaker {start}</speaker>",
            f"<talkid>{start}</talkid>",
            f"<title>Talk {start} ({code})</title>",
        ]
        rows += [f"<description>About {start} ({code}).</description>", *lines[start : start + 6]]
    says = MARKUP + "|<url>|<title>"
    return plain("train.tags", rows, lines=lines, allowed="right refused warned", says=says)


@kind("blank lines", both=0)
def _blank(rng: random.Random, lines: list[str], code: str) -> LineFile:
    blank = rng.choice(("", " ", "\t", "\u00a0", "\u3000"))
    return plain(
        f"lines of {blank!r}", [blank if i in (0, 4, 5, len(lines) - 1) else line for i, line in enumerate(lines)]
    )


@kind("invisible lines", both=0)
def _invisible(rng: random.Random, lines: list[str], code: str) -> LineFile:
    mark = rng.choice(("\u200b", "\u200e", "\u200f", "\u2060", "\u00ad", "\ufeff", "\u200b \u200d"))
    return plain(f"lines of {mark!r}", [mark if i in (1, 5) else line for i, line in enumerate(lines)])


@kind("long line", both=0)
def _long(rng: random.Random, lines: list[str], code: str) -> LineFile:
    long = (lines[2] + " ") * (100_000 // len(lines[2].encode()))
    rows = [*lines[:2], long.strip(), *lines[3:]]
    return plain("a line of 100 kB", rows, allowed="right warned", says="long|split|cut|pieces|max_")


@kind("zero bytes")
def _zero(rng: random.Random, lines: list[str], code: str) -> LineFile:
    zeros = "\0" * rng.choice((1, 3, 512))
    rows = [line[:4] + zeros + line[4:] if i in (1, 6) else line for i, line in enumerate(lines)]
    return plain(
        f"{len(zeros)} zero bytes", rows, allowed="right refused warned", says=r"zero|NUL|U\+0000|binary|control|utf-16"
    )


@kind("odd characters")
def _odd(rng: random.Random, lines: list[str], code: str) -> LineFile:
    changes: dict[str, Callable[[str], str]] = {
        "no-break spaces": lambda line: line.replace(" ", "\u00a0", 2),
        "narrow spaces": lambda line: line.replace(" ", "\u202f", 1),
        "NFD": lambda line: unicodedata.normalize("NFD", line),
        "emoji": lambda line: f"{line} \U0001f469\u200d\U0001f680",
        "direction marks": lambda line: f"\u200f{line}\u200e",
        "tabs": lambda line: line.replace(" ", "\t", 1),
        "quotes": lambda line: f'"{line}',
        "pieces": lambda line: f"{line} </s> <unk> <s>",
    }
    what, change = rng.choice(list(changes.items()))
    return plain(what, [change(line) if i % 3 == 0 else line for i, line in enumerate(lines)])
