"""Damaged and odd corpora in every format: they are read, or refused quickly with one line."""

from __future__ import annotations

import csv
import gzip
import io
import json
import lzma
import random
import time
from collections.abc import Callable
from pathlib import Path
from xml.sax.saxutils import escape

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seq2seq.data.corpus import load_corpus
from seq2seq.data.preflight import validate_corpus
from seq2seq.data.tokenizer import train_tokenizer
from seq2seq.settings.data import CleanSettings, CorpusSettings
from seq2seq.settings.tokenizer import TokenizerSettings

REPRESENTATIVE = {"test_odd_text": {"jsonl", "tmx"}}
Pairs = list[tuple[str, str]]
GOOD: Pairs = [(f"Das ist der Satz {i}.", f"This is the sentence {i}.") for i in range(40)]
SECONDS = 30.0  # of CPU, for one corpus: ten times what any takes


def to_csv(pairs: Pairs, dialect: str = "excel") -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, dialect).writerows([("de", "en"), *pairs])
    return text.getvalue().encode("utf-8", "surrogatepass")


def to_tsv(pairs: Pairs) -> bytes:
    return "".join(f"{src}\t{tgt}\n" for src, tgt in [("de", "en"), *pairs]).encode("utf-8", "surrogatepass")


def to_jsonl(pairs: Pairs) -> bytes:
    return "".join(json.dumps({"de": src, "en": tgt}) + "\n" for src, tgt in pairs).encode()


def to_json(pairs: Pairs) -> bytes:
    return json.dumps([{"de": src, "en": tgt} for src, tgt in pairs], indent=1).encode()


def to_tmx(pairs: Pairs) -> bytes:
    variant = '<tuv xml:lang="{}"><seg>{}</seg></tuv>'.format
    units = "".join(f"<tu>{variant('en-GB', escape(tgt))}{variant('de', escape(src))}</tu>\n" for src, tgt in pairs)
    text = f'<?xml version="1.0"?>\n<tmx version="1.4"><header srclang="en"/><body>\n{units}</body></tmx>\n'
    return text.encode("utf-8", "surrogatepass")


def to_parquet(pairs: Pairs) -> bytes:
    sink = io.BytesIO()
    columns = [[pair[side].encode("utf-8", "replace").decode() for pair in pairs] for side in (0, 1)]
    pq.write_table(pa.table({"de": pa.array(columns[0], pa.string()), "en": pa.array(columns[1], pa.string())}), sink)
    return sink.getvalue()


TABLES: dict[str, Callable[[Pairs], bytes]] = {
    "csv": to_csv,
    "tsv": to_tsv,
    "jsonl": to_jsonl,
    "json": to_json,
    "tmx": to_tmx,
    "parquet": to_parquet,
}

# Corpora that are odd in their text.
TEXTS: dict[str, Pairs] = {
    "no pair": [],
    "one pair": GOOD[:1],
    "blank": [("", ""), (" ", "\u3000")] * 20,
    "blank source": [("", tgt) for _, tgt in GOOD],
    "copies": [(src, src) for src, _ in GOOD],
    "duplicates": GOOD[:1] * 400,
    "a megabyte": [*GOOD, ("ä b " * 250_000, "c d " * 250_000)],
    "line separators": [(f"x\u2028y\x85z\x0b {i}", f"u\x1cv {i}") for i in range(30)],
    "returns": [(f"x\ry {i}", f"z\r {i}") for i in range(30)],
    "newlines": [(f"x\ny {i}", f"u\r\nv {i}") for i in range(30)],
    "quotes": [(f'"x" "" {i}', f"'y,\"; {i}") for i in range(30)],
    "NUL": [(f"x\0y {i}", f"z\0 {i}") for i in range(30)],
    "surrogates": [(f"x\ud800 {i}", f"y\udfff {i}") for i in range(30)],
    "markup": [(f"x <b>&amp;</b> ]]> {i}", f"&lt; <ph/> {i}") for i in range(30)],
    "replacement": [(f"x\ufffd {i}", f"y {i}") for i in range(30)],
    "emoji": [(f"👩‍👩‍👧 \u202ex {i}", f"e\u0301 {i}") for i in range(30)],
}


def garbage(content: bytes) -> bytes:
    return random.Random(1).randbytes(max(400, len(content)))


# Files whose bytes are damaged.
BYTES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "newlines alone": lambda content: b"\n" * 500,
    "first half": lambda content: content[: len(content) // 2],
    "second half": lambda content: content[len(content) // 2 :],
    "last byte": lambda content: content[:-1],
    "twice": lambda content: content * 2,
    "invalid byte": lambda content: content[:200] + b"\xff\xfe\xe2\x82" + content[200:],
    "mark": lambda content: b"\xef\xbb\xbf" + content,
    "CRLF": lambda content: content.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n"),
    "CR": lambda content: content.replace(b"\r\n", b"\r").replace(b"\n", b"\r"),
    "zeros": lambda content: b"\0" * 4000,
    "zeros between": lambda content: content[:300] + b"\0" * 50 + content[300:],
    "UTF-16": lambda content: content.decode("utf-8", "replace").encode("utf-16"),
    "UTF-16 unmarked": lambda content: content.decode("utf-8", "replace").encode("utf-16-le"),
    "UTF-32": lambda content: content.decode("utf-8", "replace").encode("utf-32"),
    "Latin-1": lambda content: content.replace(b"Das", b"D\xe4s"),
    "garbage": garbage,
    "JSON": lambda content: b'{"x": 1}\n' * 30,
    "deep JSON": lambda content: b'{"de":' * 200_000,
    "deep array": lambda content: b"[" * 200_000,
    "huge number": lambda content: b'{"de": ' + b"1" * 100_000 + b', "en": "a"}\n',
    "not a number": lambda content: b'{"de": NaN, "en": "a"}\n' * 30,
    "values": lambda content: b'{"de": [1], "en": {"a": 2}}\n' * 30,
    "open quote": lambda content: b'de,en\n"' + b"a,b\n" * 30_000,
    "bomb": lambda content: b'<!DOCTYPE a [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><tmx>&b;</tmx>',
    "deep XML": lambda content: b"<a>" * 200_000,
    "page": lambda content: b"<html><body>404 Not Found</body></html>",
}


def damaged_tail(content: bytes) -> bytes:
    return content[:-6] + bytes(255 - each for each in content[-6:-4]) + content[-4:]


# Compressed files that are damaged: suffix, and what is done.
PACKED: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gz": (".gz", gzip.compress),
    "xz": (".xz", lzma.compress),
    "zst": (".zst", lambda content: pa.compress(content, codec="zstd", asbytes=True)),
    "gz cut": (".gz", lambda content: gzip.compress(content)[:-20]),
    "xz cut": (".xz", lambda content: lzma.compress(content)[:-20]),
    "zst cut": (".zst", lambda content: pa.compress(content, codec="zstd", asbytes=True)[:-5]),
    "gz of another sum": (".gz", lambda content: damaged_tail(gzip.compress(content))),
    "no gz": (".gz", lambda content: content),
    "no xz": (".xz", lambda content: content),
    "empty gz": (".gz", lambda content: b""),
}


def attempt(folder: Path, train: object, **changes) -> str:
    """Load a corpus; return "read", or the message of the refusal."""
    for side, language in ((0, "de"), (1, "en")):
        for split in ("valid", "test"):
            (folder / f"{split}.{language}").write_text("".join(pair[side] + "\n" for pair in GOOD))
    chosen = CorpusSettings(
        src="de", tgt="en", train=train, valid=str(folder / "valid"), test=str(folder / "test"), **changes
    )
    start = time.process_time()
    try:
        validate_corpus(chosen, cache_dir=folder / "c")
        splits = load_corpus(chosen, cache_dir=folder / "c").splits
    except ValueError as error:
        assert time.process_time() - start < SECONDS
        assert not list((folder / "c").glob("text-*"))
        message = str(error)
        assert 0 < len(message.encode("utf-8")) < 900, message
        assert "\n" not in message
        return message
    assert time.process_time() - start < SECONDS
    assert len(splits["train"]) > 0
    assert not any("\n" in line for side in ("src", "tgt") for line in splits["train"][side])
    return "read"


def write_text(folder: Path, sides: tuple[bytes, bytes], suffix: str = "") -> str:
    for language, content in zip(("de", "en"), sides, strict=True):
        (folder / f"train.{language}{suffix}").write_bytes(content)
    return str(folder / "train")


def as_lines(pairs: Pairs) -> tuple[bytes, bytes]:
    src, tgt = ("".join(pair[side] + "\n" for pair in pairs).encode("utf-8", "surrogatepass") for side in (0, 1))
    return src, tgt


@pytest.mark.parametrize("kind", ["text", *TABLES])
def test_odd_text(tmp_path, kind):
    for name, pairs in TEXTS.items():
        folder = tmp_path / name
        folder.mkdir()
        if kind == "text":
            outcome = attempt(folder, write_text(folder, as_lines(pairs)))
        else:
            file = folder / f"train.{kind}"
            file.write_bytes(TABLES[kind](pairs))
            outcome = attempt(folder, str(file))
        if name in ("no pair", "blank", "blank source", "copies", "replacement"):
            assert outcome != "read", name
        elif kind in ("jsonl", "json", "parquet") or (kind == "csv" and name != "surrogates"):
            # These formats can hold it
            assert outcome == "read", (name, outcome)


@pytest.mark.parametrize("kind", ["text", *TABLES])
def test_damaged_files(tmp_path, kind):
    for name, damage in BYTES.items():
        folder = tmp_path / name
        folder.mkdir()
        if kind == "text":
            src, tgt = as_lines(GOOD)
            attempt(folder, write_text(folder, (damage(src), tgt)))
            outcome = attempt(folder, write_text(folder, (damage(src), damage(tgt))))
        else:
            file = folder / f"train.{kind}"
            file.write_bytes(damage(TABLES[kind](GOOD)))
            outcome = attempt(folder, str(file))
        if name in ("empty", "newlines alone", "garbage", "deep JSON", "bomb", "zeros"):
            assert outcome != "read", name
        if name.startswith("UTF-") and kind not in ("tmx", "parquet"):
            assert "is in UTF-16 or UTF-32" in outcome, name
        if name in ("mark", "CRLF") and kind != "parquet":
            assert outcome == "read", (name, outcome)


@pytest.mark.parametrize("kind", ["text", *(kind for kind in TABLES if kind != "parquet")])
def test_damaged_compression(tmp_path, kind):
    for name, (suffix, pack) in PACKED.items():
        folder = tmp_path / name
        folder.mkdir()
        if kind == "text":
            src, tgt = as_lines(GOOD)
            outcome = attempt(folder, write_text(folder, (pack(src), pack(tgt)), suffix))
        else:
            file = folder / f"train.{kind}{suffix}"
            file.write_bytes(pack(TABLES[kind](GOOD)))
            outcome = attempt(folder, str(file))
        assert (outcome == "read") == (name in ("gz", "xz", "zst")), (name, outcome)
        if outcome != "read" and name != "empty gz":
            assert "cannot be decompressed" in outcome, name


def test_files_that_do_not_fit_each_other(tmp_path):
    src, tgt = as_lines(GOOD)
    assert "has 40 lines and" in attempt(tmp_path, write_text(tmp_path, (src, tgt + b"more\n")))
    assert "has 40 lines and" in attempt(tmp_path, write_text(tmp_path, (src, b"")))
    both = tmp_path / "both.jsonl"
    both.write_bytes(to_jsonl(GOOD))
    for columns, message in (
        ({"de": "x", "en": "x"}, "are the same column"),
        ({"de": 0, "en": "en"}, "give two names"),
        ({"de": -1, "en": 1}, "counted from 0"),
        ({"de": "fr", "en": "en"}, "no language column 'fr'; it has 'de', 'en'"),
    ):
        assert message in attempt(tmp_path, str(both), columns=columns)


@pytest.mark.parametrize(
    ("rule", "pairs"),
    [
        ("same 40", [(src, src) for src, _ in GOOD]),
        ("empty 40", [("", tgt) for _, tgt in GOOD]),
        ("invalid_utf8 40", [("\ufffd", tgt) for _, tgt in GOOD]),
    ],
)
def test_a_corpus_that_cleaning_empties_names_the_rule(tmp_path, rule, pairs):
    told = attempt(tmp_path, write_text(tmp_path, as_lines(pairs)))
    assert f"cleaning dropped all 40 pairs ({rule})" in told
    assert f"data.clean.{rule.split()[0]}=false" in told
    assert attempt(tmp_path, str(tmp_path / "train"), clean=CleanSettings(**{rule.split()[0]: False})) == "read"


def test_lines_too_long_for_a_tokenizer_are_said():
    lines = ["wort " * 4000] * 20
    with pytest.raises(ValueError, match=r"longer than 16,384 bytes.*split the text into sentences.*tokenizer\.model"):
        train_tokenizer(src_lines=lines, tgt_lines=lines, settings=TokenizerSettings(vocab_size=300))
