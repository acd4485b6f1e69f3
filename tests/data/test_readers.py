"""Bounds of blocks and texts, which hold for every format of a corpus."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seq2seq.data import readers, text_checks
from seq2seq.data.raw_pairs import open_split
from seq2seq.settings.data import CorpusSettings

PAIRS = [(f"Satz {i} x" + "x" * (30 * i % 97), f"line {i}") for i in range(60)]
FORMATS = ["text", "text.gz", "jsonl", "json", "csv", "tsv", "tmx", "parquet", "dictionary", "arrow", "hub", "hub[:60]"]


def write(folder: Path, kind: str, pairs: list[tuple[str, str]]) -> CorpusSettings:
    """Write `pairs` in a format, and return the settings that read them as the training split."""
    objects = [{"de": src, "en": tgt} for src, tgt in pairs]
    place: str | list[str] = str(folder / f"train.{kind}")
    path = Path(place)
    if kind.startswith("text"):
        pack = gzip.compress if kind.endswith("gz") else bytes
        place = [str(folder / f"{name}.{kind}") for name in ("de", "en")]
        for each, side in zip(place, zip(*pairs, strict=True), strict=True):
            Path(each).write_bytes(pack("".join(f"{text}\n" for text in side).encode()))
    elif kind in ("csv", "tsv"):
        with path.open("w", newline="") as file:
            csv.writer(file, delimiter=",\t"[kind == "tsv"]).writerows([("de", "en"), *pairs])
    elif kind == "json":
        path.write_text(json.dumps(objects))
    elif kind == "tmx":
        variants = '<tu><tuv xml:lang="de"><seg>{}</seg></tuv><tuv xml:lang="en"><seg>{}</seg></tuv></tu>'
        path.write_text(f"<tmx>{''.join(variants.format(*pair) for pair in pairs)}</tmx>")
    elif kind in ("parquet", "dictionary"):
        table = pa.Table.from_pylist(objects)
        table = (
            pa.table({n: table[n].dictionary_encode() for n in table.column_names}) if kind == "dictionary" else table
        )
        place = str(folder / "train.parquet")
        pq.write_table(table, place, row_group_size=25)
    elif kind == "arrow":
        table = pa.Table.from_pylist(objects)
        with pa.OSFile(place, "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=25)
    else:
        (folder / "train.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in objects))
        place = f"train{kind.removeprefix('hub')}" if kind != "jsonl" else str(folder / "train.jsonl")
    if kind == "arrow" or kind.startswith("hub"):
        place = "train" if kind == "arrow" else place
        return CorpusSettings(src="de", tgt="en", path=str(folder), train=place)
    return CorpusSettings(src="de", tgt="en", train=place)


@pytest.mark.parametrize("kind", FORMATS)
def test_blocks_are_bounded_by_pairs_and_by_characters(tmp_path, monkeypatch, kind):
    (tmp_path / "data").mkdir()
    chosen = write(tmp_path / "data", kind, PAIRS)
    monkeypatch.setattr(readers, "ROWS", 40)
    for most, sizes in ((1 << 24, {40, 20}), (400, None)):
        monkeypatch.setattr(readers, "_LARGEST_BLOCK", most)
        blocks = list(open_split("train", chosen, cache_dir=tmp_path / "c"))
        assert [pair for block in blocks for pair in zip(*block, strict=True)] == PAIRS
        assert sizes is None or {len(src) for src, _ in blocks} == sizes
        # The last pair may exceed the bound
        longest = max(len(src) + len(tgt) for src, tgt in PAIRS)
        assert all(sum(map(len, [*src, *tgt])) <= most + longest for src, tgt in blocks)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_text_beyond_the_bound_is_refused_with_its_place(tmp_path, monkeypatch, kind):
    (tmp_path / "data").mkdir()
    chosen = write(tmp_path / "data", kind, [*PAIRS[:50], ("y" * 300, "z"), *PAIRS[50:]])
    monkeypatch.setattr(text_checks, "LONGEST_TEXT", 299)
    with pytest.raises(ValueError, match=r"(line|row) 51 has 300 characters, more than 299"):
        list(open_split("train", chosen, cache_dir=tmp_path / "c"))
    monkeypatch.setattr(text_checks, "LONGEST_TEXT", 300)
    assert sum(len(src) for src, _ in open_split("train", chosen, cache_dir=tmp_path / "c")) == 61 - (
        kind == "hub[:60]"
    )


def test_a_part_of_a_table_without_rows_is_no_error_of_its_own(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.csv").write_text("de,en\n")
    chosen = CorpusSettings(src="de", tgt="en", path=str(tmp_path / "data"), train="train[:50%]")
    assert list(open_split("train", chosen, cache_dir=tmp_path / "c")) == []
