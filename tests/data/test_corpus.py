"""Corpora from files and from the hub's layout: line ends, formats, columns, cleaning, settings."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import toycorpus
import yaml
from composed import resolved
from hypothesis import given, settings
from hypothesis import strategies as st

from seq2seq.data import corpus, hub
from seq2seq.data.cleaning import Cleaner, cleaning_table, length_rules
from seq2seq.data.corpus import load_corpus
from seq2seq.data.fingerprints import corpus_fingerprint, file_fingerprint
from seq2seq.data.preflight import validate_corpus
from seq2seq.data.text_checks import looks_swapped
from seq2seq.data.text_files import read_lines, warn_once
from seq2seq.settings.data import CleanSettings, CorpusSettings
from seq2seq.settings.declare import read_section
from seq2seq.system.packages import MissingPackageError
from seq2seq.system.resources import conf_dir, data_dir

OFF = CleanSettings(invalid_utf8=False, empty=False, same=False, duplicates=False, max_length=None, length_ratio=None)
PAIRS = [(f"Das ist der Satz {i} und nicht mehr.", f"This is the sentence {i} and no more.") for i in range(60)]


def write_text(folder: Path, split: str, pairs=PAIRS, ending: str = "") -> None:
    opener = {"": open, ".gz": gzip.open, ".xz": lzma.open}[ending]
    for side, language in enumerate(("de", "en")):
        with opener(folder / f"{split}.{language}{ending}", "wb") as file:
            for pair in pairs:
                file.write(pair[side].encode() + b"\n")


def write_splits(folder: Path) -> None:
    for split in ("train", "valid", "test"):
        write_text(folder, split)


def options(folder: Path, **changes) -> CorpusSettings:
    places = {split: str(folder / split) for split in ("train", "valid", "test")}
    return replace(CorpusSettings(src="de", tgt="en", clean=OFF, **places), **changes)


def load(chosen: CorpusSettings, cache: Path, split: str = "train") -> list[tuple[str, str]]:
    rows = load_corpus(chosen, cache_dir=cache).splits[split][:]
    return list(zip(rows["src"], rows["tgt"], strict=True))


# ---- files


@pytest.mark.parametrize("ending", ["", ".gz", ".xz"])
def test_text_prefix_finds_both_languages(tmp_path, ending):
    for split in ("train", "valid", "test"):
        write_text(tmp_path, split, ending=ending)
    assert load(options(tmp_path), tmp_path / "c") == PAIRS
    turned = options(tmp_path, src="en", tgt="de")
    assert load(turned, tmp_path / "c", "test") == [(tgt, src) for src, tgt in PAIRS]


def test_explicit_files_and_mapping(tmp_path):
    for name, side in (("one", 0), ("two", 1)):
        (tmp_path / name).write_text("".join(pair[side] + "\n" for pair in PAIRS))
    pair = [str(tmp_path / "one"), str(tmp_path / "two")]
    assert load(options(tmp_path, train=pair, valid=pair, test=pair), tmp_path / "c") == PAIRS
    named = {"en": pair[1], "de": pair[0]}
    assert load(options(tmp_path, train=named, valid=named, test=named), tmp_path / "c") == PAIRS


@settings(max_examples=40, deadline=None)
@given(st.lists(st.binary(max_size=12).filter(lambda b: b"\n" not in b and not b.endswith(b"\r")), max_size=30))
def test_read_lines_agrees_with_the_definition(tmp_path_factory, lines):
    path = tmp_path_factory.mktemp("lines") / "x"
    # So that neither the first bytes nor many zeros look like UTF-16
    lines = [b"plain text " * 60, *lines]
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    text = [line.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace") for line in lines]
    assert list(read_lines(path)) == text
    path.write_bytes(b"".join(line + b"\r\n" for line in lines) + b"last")
    assert list(read_lines(path)) == [*text, "last"]


def wmt(pairs=PAIRS):
    return [{"translation": {"de": src, "en": tgt}} for src, tgt in pairs]


def write_jsonl(path: Path, rows) -> str:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return str(path)


def write_parquet(path: Path, rows) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)
    return str(path)


@pytest.mark.parametrize("write", [write_jsonl, write_parquet])
@pytest.mark.parametrize("flat", [False, True])
def test_tables_with_both_sides(tmp_path, write, flat):
    rows = [row["translation"] for row in wmt()] if flat else wmt()
    file = write(tmp_path / ("x.jsonl" if write is write_jsonl else "x.parquet"), rows)
    chosen = options(tmp_path, train=file, valid=file, test=file)
    validate_corpus(chosen, cache_dir=tmp_path / "c")
    assert load(chosen, tmp_path / "c") == PAIRS


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".json", ".csv.gz", ".tsv.xz", ".json.zst"])
def test_one_file_of_both_sides_by_its_suffix(tmp_path, ending):
    format_, _, packed = ending[1:].partition(".")
    content = {
        "csv": "en,de\n" + "".join(f'"{tgt}","{src}"\n' for src, tgt in PAIRS),
        "tsv": "de\ten\n" + "".join(f"{src}\t{tgt}\n" for src, tgt in PAIRS),
        "json": json.dumps([{"de": src, "en": tgt} for src, tgt in PAIRS]),
    }[format_].encode()
    compress = {
        "": bytes,
        "gz": gzip.compress,
        "xz": lzma.compress,
        "zst": lambda data: pa.compress(data, "zstd", asbytes=True),
    }
    file = tmp_path / f"train{ending}"
    file.write_bytes(compress[packed](content))
    chosen = options(tmp_path, train=str(file), valid=str(file), test=str(file))
    validate_corpus(chosen, cache_dir=tmp_path / "c")
    assert load(chosen, tmp_path / "c") == PAIRS
    # The setting decides the format, not the suffix
    other = tmp_path / "corpus.txt"
    other.write_bytes(content)
    chosen = options(tmp_path, train=str(other), valid=str(other), test=str(other), format=format_)
    assert load(chosen, tmp_path / "c") == PAIRS


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("language", ["de", "en"])
def test_one_of_two_files_finds_the_other(tmp_path, ending, language):
    for split in ("train", "valid", "test"):
        write_text(tmp_path, split, ending=ending)
    chosen = options(tmp_path, train=str(tmp_path / f"train.{language}{ending}"))
    assert load(chosen, tmp_path / "c") == PAIRS
    (tmp_path / f"train.en{ending}").unlink()
    (tmp_path / f"train.de{ending}").rename(tmp_path / f"train.de{ending}.kept")
    (tmp_path / f"train.{language}{ending}").write_bytes(b"")
    with pytest.raises(ValueError, match=r"the file .*train\.(de|en) .* does not exist; there are"):
        load(chosen, tmp_path / "c")


def test_one_file_of_unknown_kind_says_what_to_type(tmp_path):
    (tmp_path / "corpus.txt").write_text("a\n")
    with pytest.raises(ValueError, match=r"neither \.de nor \.en.*'data\.train=\[.*corpus\.txt,<target file>\]'"):
        validate_corpus(options(tmp_path, train=str(tmp_path / "corpus.txt")), cache_dir=tmp_path / "c")
    (tmp_path / "corpus.tar.gz").write_text("a\n")
    with pytest.raises(ValueError, match=r"^data\.train=.*corpus\.tar\.gz is an archive"):
        validate_corpus(options(tmp_path, train=str(tmp_path / "corpus.tar.gz")), cache_dir=tmp_path / "c")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(ValueError, match=r"folder\.csv is a folder"):
        validate_corpus(options(tmp_path, train=str(tmp_path / "folder.csv")), cache_dir=tmp_path / "c")


def test_sides_are_no_languages(tmp_path):
    file = write_jsonl(tmp_path / "x.jsonl", [{"src": src, "tgt": tgt} for src, tgt in PAIRS])
    chosen = options(tmp_path, train=file, valid=file, test=file)
    with pytest.raises(ValueError, match=r"say which column is which language.*'data\.columns=\{de: src, en: tgt\}'"):
        validate_corpus(chosen, cache_dir=tmp_path / "c")
    with pytest.raises(ValueError, match=r"data\.src=src is not a language: .*'data\.columns=\{de: src, en: tgt\}'"):
        validate_corpus(replace(chosen, src="src", tgt="tgt"), cache_dir=tmp_path / "c")
    assert load(replace(chosen, columns={"de": "src", "en": "tgt"}), tmp_path / "c") == PAIRS


def test_columns_of_other_types_are_refused(tmp_path):
    for value, kind in ((1.5, "double"), (b"x", "binary"), ([1], "list"), (True, "bool")):
        file = write_parquet(tmp_path / "x.parquet", [{"de": value, "en": "b"}])
        with pytest.raises(ValueError, match=f"the column 'de' holds values of type {kind}.*, not text"):
            validate_corpus(options(tmp_path, train=file, valid=file, test=file), cache_dir=tmp_path / "c")


def test_patterns_and_addresses(tmp_path):
    write_parquet(tmp_path / "train-00000-of-00002.parquet", wmt(PAIRS[:30]))
    write_parquet(tmp_path / "train-00001-of-00002.parquet", wmt(PAIRS[30:]))
    pattern = str(tmp_path / "train-*.parquet")
    assert load(options(tmp_path, train=pattern, valid=pattern, test=pattern), tmp_path / "c") == PAIRS
    with pytest.raises(ValueError, match="a pattern is for files that hold both sides"):
        load(options(tmp_path, train=str(tmp_path / "train*.de"), valid=pattern, test=pattern), tmp_path / "c")
    address = f"file://{pattern}"  # as hf://datasets/wmt/wmt19@<revision>/de-en/train-*.parquet
    assert load(options(tmp_path, train=address, valid=address, test=address), tmp_path / "c2") == PAIRS


def test_parts_of_parquet_may_be_empty_and_differ_in_other_columns(tmp_path):
    folder = tmp_path / "corpus[1]"
    empty = pa.schema([("de", pa.string()), ("en", pa.string())]).empty_table()
    write_parquet(folder / "1.parquet", wmt(PAIRS[:30]))
    pq.write_table(empty, folder / "0.parquet")
    pq.ParquetWriter(folder / "2.parquet", empty.schema).close()  # no rows and no group of rows
    write_parquet(folder / "3.parquet", [{"id": 1, "en": en, "de": de} for de, en in PAIRS[30:]])
    pattern = str(folder / "*.parquet")
    chosen = options(tmp_path, train=pattern, valid=pattern, test=pattern)
    validate_corpus(chosen, cache_dir=tmp_path / "c")
    assert load(chosen, tmp_path / "c") == PAIRS
    packed = folder / "4.parquet.gz"
    packed.write_bytes(gzip.compress((folder / "1.parquet").read_bytes()))
    with pytest.raises(ValueError, match=r"4\.parquet\.gz is not a whole parquet file.*decompress it"):
        load(options(tmp_path, train=str(packed), valid=pattern, test=pattern), tmp_path / "c")


def rewrite_within_its_time(path: Path, content: bytes) -> None:
    """Write other content with the same modification time, as cp -p, rsync -a or tar do."""
    before = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("kind", ["json", "gz", "parquet", "hub", "part"])
def test_a_file_changed_within_its_time_is_read_anew_and_no_copy_stays(tmp_path, kind):
    other = [(src.replace("Satz", "Text"), tgt) for src, tgt in PAIRS]
    made = {}
    for name, pairs in (("one", PAIRS), ("two", other)):
        (tmp_path / name).mkdir()
        path = tmp_path / name / {"json": "train.jsonl", "gz": "train.jsonl.gz"}.get(kind, "train.parquet")
        if kind == "gz":
            path.write_bytes(gzip.compress(Path(write_jsonl(tmp_path / "plain.jsonl", wmt(pairs))).read_bytes()))
        else:
            (write_jsonl if kind == "json" else write_parquet)(path, wmt(pairs))
        made[name] = path
    places = dict.fromkeys(("train", "valid", "test"), str(made["one"]))
    if kind in ("hub", "part"):
        places = dict.fromkeys(places, "train[:50]" if kind == "part" else "train") | {"path": str(tmp_path / "one")}
    chosen, size = options(tmp_path, **places), 50 if kind == "part" else 60
    validate_corpus(chosen, cache_dir=tmp_path / "c")
    assert load(chosen, tmp_path / "c") == PAIRS[:size]
    rewrite_within_its_time(made["one"], made["two"].read_bytes())
    assert load(chosen, tmp_path / "c") == other[:size]
    assert {path.name.split("-")[0] for path in (tmp_path / "c").iterdir()} == {"text"}


def test_a_huge_file_changed_in_its_middle_within_its_time(tmp_path):
    path = tmp_path / "huge"
    with path.open("wb") as file:
        file.truncate((1 << 28) + 9)  # a hole: it fills no disk
    before = file_fingerprint(path)
    assert file_fingerprint(path) == before
    times = path.stat()
    with path.open("r+b") as file:
        file.seek(1 << 27)
        file.write(b"x")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert file_fingerprint(path) != before


# ---- the hub's layout


def hub_folder(root: Path, name: str, *, configs: bool) -> Path:
    """Write <config>/<split>-00000-of-0000n.parquet, as on the hub, with the configs in a card or without a card."""
    splits = {"train": PAIRS, "validation": PAIRS[:7], "test": PAIRS[7:12]}
    for split, pairs in splits.items():
        for shard in (0, 1):
            write_parquet(root / name / f"{split}-0000{shard}-of-00002.parquet", wmt(pairs[shard::2]))
    if configs:
        files = [{"split": split, "path": f"{name}/{split}-*"} for split in splits]
        card = yaml.safe_dump({"configs": [{"config_name": name, "data_files": files}]})
        (root / "README.md").write_text(f"---\n{card}---\n# card\n")
    return root


@pytest.mark.parametrize("configs", [True, False])
def test_hub_layout_in_a_local_folder(tmp_path, configs):
    root = hub_folder(tmp_path / "wmt", "de-en", configs=configs)
    chosen = options(tmp_path, path=str(root), train="train", valid="validation", test="test")
    chosen = replace(chosen, config="de-en") if configs else replace(chosen, data_dir="de-en")
    validate_corpus(chosen, cache_dir=tmp_path / "c")
    assert sorted(load(chosen, tmp_path / "c")) == sorted(PAIRS)
    assert sorted(load(chosen, tmp_path / "c", "test")) == sorted(PAIRS[7:12])


def test_the_embedded_corpus_goes_the_way_of_the_hub(tmp_path):
    data = resolved(["data=phrasebook"])["data"]
    chosen = toycorpus.corpus_settings(data)
    validate_corpus(chosen, cache_dir=tmp_path)
    loaded = load_corpus(chosen, cache_dir=tmp_path)
    assert {split: len(rows) for split, rows in loaded.splits.items()} == {"train": 20_000, "valid": 500, "test": 500}
    assert loaded.read == 20_000


def test_missing_split_and_missing_hub_are_explained(tmp_path, monkeypatch):
    root = hub_folder(tmp_path / "wmt", "de-en", configs=True)
    with pytest.raises(ValueError, match="could not be loaded"):
        load(options(tmp_path, path=str(root), config="de-en", train="training"), tmp_path / "c")
    import datasets

    def offline(*args, **values):
        raise ConnectionError("Couldn't reach the hub")

    monkeypatch.setattr(datasets, "load_dataset_builder", offline)
    monkeypatch.setattr(hub.Repository, "unreachable", lambda _: None)
    with pytest.raises(ValueError, match=r"wmt/wmt14 could not be loaded: Couldn't reach the hub.*data\.path"):
        load(options(tmp_path, path="wmt/wmt14", train="train"), tmp_path / "c")

    def full(*args, **values):
        raise datasets.exceptions.DatasetGenerationError("An error occurred") from MemoryError()

    monkeypatch.setattr(datasets, "load_dataset_builder", full)
    with pytest.raises(MemoryError):
        load(options(tmp_path, path="wmt/wmt14", train="train"), tmp_path / "c")


def hub_settings() -> list[str]:
    """Names of data settings that are on the hub; phrasebook is embedded, and the others need files."""
    found = {path.stem: yaml.safe_load(path.read_text()) for path in (conf_dir() / "data").glob("*.yaml")}
    named = {name for name, data in found.items() if data.get("path") or "://" in str(data.get("train"))}
    return sorted(named - {"phrasebook"})


REPRESENTATIVE = {"test_shipped_settings_are_passed_to_the_hub_as_written": {"wmt14_de_en"}}
EXHAUSTIVE = {"test_the_embedded_corpus_goes_the_way_of_the_hub"}


@pytest.mark.parametrize("name", hub_settings())
def test_shipped_settings_are_passed_to_the_hub_as_written(tmp_path, monkeypatch, name):
    data = resolved([f"data={name}"])["data"]
    assert data["name"] == name
    pinned = data["revision"] or data["train"].split("@")[1].split("/")[0]
    assert pinned == "refs/convert/parquet" or len(pinned) == 40
    calls = []
    monkeypatch.setattr(hub.Repository, "unreachable", lambda _: None)

    def served(path, name=None, **values):
        calls.append((path, name, values))
        rows = [{"translation": {data["src"]: f"s{i}", data["tgt"]: f"t{i}"}} for i in range(9000)]
        return datasets.Dataset.from_list(rows)

    import datasets

    monkeypatch.setattr(datasets, "load_dataset", served)
    monkeypatch.setattr(datasets, "load_dataset_builder", lambda *_, **__: SimpleNamespace(config=None))
    chosen = toycorpus.corpus_settings(data)
    validate_corpus(chosen, cache_dir=tmp_path)
    assert not calls  # nothing is fetched to check settings
    assert load(chosen, tmp_path)[0][0].startswith("s")
    path, config, values = calls[0]
    if data["path"]:
        assert (path, config, values["split"]) == (data["path"], data["config"], data["train"])
        assert (values["revision"], values["data_dir"]) == (data["revision"], data["data_dir"])
    else:
        assert (path, values["data_files"]) == ("parquet", {"train": [data["train"]]})


# ---- cleaning


def test_cleaning_drops_counts_and_shows_one_example(tmp_path):
    good = [(f"gut {i}", f"good {i}") for i in range(5)]
    bad = [
        ("", "no source"), ("kein Ziel", " \t"), ("same", "same "), good[0], good[3], good[0],
        ("kaputt \udcff", "broken"),
    ]  # fmt: skip
    for side, language in ((0, "de"), (1, "en")):
        lines = [pair[side].encode("utf-8", "surrogateescape") + b"\n" for pair in good + bad]
        (tmp_path / f"train.{language}").write_bytes(b"".join(lines))
    for split in ("valid", "test"):
        write_text(tmp_path, split, [("", "kept"), ("kept", "kept")])
    chosen = options(tmp_path, clean=CleanSettings())
    loaded = load_corpus(chosen, cache_dir=tmp_path / "c")
    counts = {row.rule: row.pairs for row in loaded.dropped}
    assert counts == {"invalid_utf8": 1, "empty": 2, "same": 1, "duplicates": 3}
    assert loaded.read == len(good + bad)
    assert load(chosen, tmp_path / "c") == good
    assert load(chosen, tmp_path / "c", "valid") == [("", "kept"), ("kept", "kept")]
    table = cleaning_table(loaded.dropped, read=loaded.read)
    assert "12 pairs read, 5 kept" in table
    assert "kaputt \ufffd | broken" in table


@pytest.mark.parametrize("kind", ["text", "tsv", "jsonl"])
def test_evaluation_text_that_is_not_utf8_is_told_or_refused(tmp_path, caplog, kind):
    """A few lines that are not UTF-8 give a warning in every run, even if cached; another encoding is refused."""
    write_splits(tmp_path)
    place = tmp_path / ("test" if kind == "text" else f"test.{kind}")
    bad, row = {
        "text": (tmp_path / "test.de", b"%s\n"),
        "tsv": (place, b"%s\tx\n"),
        "jsonl": (place, b'{"de": "%s", "en": "x"}\n'),
    }[kind]
    chosen = options(tmp_path, test=str(place))
    for many in (False, True):
        lines = [row % (b"W\xe4nde" if i == 7 or (many and i % 2) else b"Wand") for i in range(60)]
        bad.write_bytes(b"de\ten\n" * (kind == "tsv") + b"".join(lines))
        if many:
            with pytest.raises(ValueError, match=r"test.*: (line|row) 2 is not UTF-8.* 30 of 60 do.*iconv"):
                validate_corpus(chosen, cache_dir=tmp_path / "c")
            continue
        for _ in range(2):
            warn_once.cache_clear()
            caplog.clear()
            validate_corpus(chosen, cache_dir=tmp_path / "c")
            assert load(chosen, tmp_path / "c", "test")[7][0] == "W\ufffdnde"
            assert caplog.text.count("8 is not UTF-8, or has U+FFFD, as 1 of 60 do") == 1


def test_warnings_about_training_text_come_again_with_the_cached_text(tmp_path, caplog):
    write_splits(tmp_path)
    lines = (tmp_path / "train.de").read_bytes().splitlines()
    (tmp_path / "train.de").write_bytes(b"".join(b"%s \xe4\n" % line for line in lines[:-1]) + lines[-1] + b"\n")
    for _ in range(2):
        warn_once.cache_clear()
        caplog.clear()
        load(options(tmp_path), tmp_path / "c")
        assert caplog.text.count("train.de: line 1 is not UTF-8") == 1


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=80), st.integers(1, 17))
def test_duplicates_are_found_across_blocks(numbers, size):
    pairs = [(f"s{a}", f"t{b}") for a, b in numbers]
    cleaner = Cleaner(CleanSettings(), languages=("de", "en"))
    kept = []
    for start in range(0, len(pairs), size):
        block = pairs[start : start + size]
        kept += zip(*cleaner(([src for src, _ in block], [tgt for _, tgt in block])), strict=True)
    assert kept == list(dict.fromkeys(pairs))
    assert cleaner.dropped["duplicates"].pairs == len(pairs) - len(kept)


def test_pairs_that_are_cut_at_another_place_are_no_duplicates():
    block = ["ab", "a"], ["c", "bc"]
    assert Cleaner(CleanSettings(), languages=("de", "en"))(block) == block


@pytest.mark.parametrize("off", [None, False])
def test_null_and_false_turn_every_rule_off(off):
    rules = read_section(
        CleanSettings, dict.fromkeys(("invalid_utf8", "empty", "same", "duplicates"), off), "data.clean"
    )
    cleaner = Cleaner(rules, languages=("de", "en"))
    block = (["", "x", "x"], ["", "x", "x"])
    assert cleaner(block) == block
    lengths = np.array([1, 9])
    rules = read_section(CleanSettings, {"max_length": off, "length_ratio": off}, "data.clean")
    assert not any(mask.any() for mask in length_rules(lengths, lengths[::-1], settings=rules, max_tokens=9).values())


def test_length_rules_count_each_pair_once():
    src, tgt = np.array([5, 300, 2, 90, 10, 8]), np.array([5, 5, 9, 90, 41, 2])
    clean = CleanSettings(max_length=250, length_ratio=4.0)
    masks = length_rules(src, tgt, settings=clean, max_tokens=80)
    assert masks["max_length"].tolist() == [False, True, False, True, False, False]  # 90 alone exceeds max_tokens=80
    assert masks["length_ratio"].tolist() == [False, False, True, False, True, False]  # 8 to 2 is 4 and no more
    free = replace(clean, max_length=None, length_ratio=None)
    assert length_rules(src, tgt, settings=free, max_tokens=500)["max_length"].sum() == 0


# ---- splits, fingerprints


def test_a_language_is_compared_on_both_sides(monkeypatch):
    """Both sides are checked, at the probability of the setting, and the table names the rule."""
    asked = []

    def other(text, expected, *, least):
        asked.append((text, expected, least))
        return "en" if expected == "de" and "the" in text.split() else None

    monkeypatch.setattr("seq2seq.data.cleaning.other_language", other)
    monkeypatch.setattr("seq2seq.data.cleaning.require_installed", lambda *args, **values: None)
    cleaner = Cleaner(CleanSettings(language=0.7), languages=("en", "de"))
    kept = cleaner((["the dog", "the cat", "a cat"], ["der Hund", "see the cat", "eine Katze"]))
    assert kept == (["the dog", "a cat"], ["der Hund", "eine Katze"])
    assert cleaner.dropped["language"] == ("language", 1, "the cat | see the cat")
    assert asked[:2] == [("the dog", "en", 0.7), ("der Hund", "de", 0.7)]
    assert "language" not in Cleaner(CleanSettings(), languages=("en", "de")).tests


@pytest.mark.slow
def test_a_real_language_is_recognized():
    pytest.importorskip("py3langid")
    cleaner = Cleaner(CleanSettings(language=0.8), languages=("en", "de"))
    english = "Two young men are standing in front of a house."
    german = "Zwei junge Männer stehen vor einem Haus."
    assert cleaner(([english, german, english], [german, english, english[:-1]])) == ([english], [german])


def test_an_absent_package_is_reported_before_any_text(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match=r"data\.clean\.language=0\.8 .*py3langid"):
        Cleaner(CleanSettings(language=0.8), languages=("en", "de"))


def test_unusual_ratios_by_hand():
    """Ten pairs of ratio 1, ten of ratio 2 and one of 8: their logs in units of log 2 are 0, 1 and 3.

    mean = 13 / 21, variance = 19 / 21 - mean^2 = 0.5215, deviation = 0.7222: the last is 3.30 deviations away.
    """
    src = np.array([4] * 20 + [4, 4, 500])
    tgt = np.array([4] * 10 + [8] * 10 + [32, 40, 4000])
    rules = CleanSettings(max_length=39, length_ratio=None, length_deviation=3.2)
    masks = length_rules(src, tgt, settings=rules, max_tokens=1000)
    # Pairs that another rule drops count neither in the mean nor twice
    assert np.flatnonzero(masks["max_length"]).tolist() == [21, 22]
    assert np.flatnonzero(masks["length_deviation"]).tolist() == [20]
    assert not length_rules(src, tgt, settings=replace(rules, length_deviation=3.4), max_tokens=1000)[
        "length_deviation"
    ].any()
    # Equal ratios have no deviation, and nothing is unusual
    same = length_rules(src, 2 * src, settings=replace(rules, max_length=None), max_tokens=9999)
    assert not same["length_deviation"].any()


def test_held_out_pairs_leave_training_with_all_their_translations(tmp_path):
    pairs = [(f"Quelle {i // 3}", f"target {i}") for i in range(900)]
    write_text(tmp_path, "train", pairs)
    chosen = options(tmp_path, valid=None, test=None, holdout=50)
    train, valid, test = (load(chosen, tmp_path / "c", split) for split in ("train", "valid", "test"))
    assert sorted(train + valid + test) == sorted(pairs)
    assert 50 <= len(valid) <= 52
    assert 50 <= len(test) <= 52
    sources = [{src for src, _ in part} for part in (train, valid, test)]
    assert not sources[0] & sources[1]
    assert not sources[0] & sources[2]
    assert not sources[1] & sources[2]
    with pytest.raises(ValueError, match=r"data\.holdout=500 .* set data\.holdout=45$"):
        load(replace(chosen, holdout=500), tmp_path / "c")
    held = load_corpus(chosen, cache_dir=tmp_path / "c")
    assert held.fingerprint == corpus_fingerprint(chosen)
    assert f"900 pairs read, {len(train)} kept" in cleaning_table(held.dropped, read=held.read)


def test_sources_that_differ_in_spaces_alone_are_held_out_together(tmp_path):
    spaced = ("Quelle {}", "Quelle  {}", "Quelle {} ")
    write_text(tmp_path, "train", [(spaced[i % 3].format(i // 3), f"target {i}") for i in range(300)])
    chosen = options(tmp_path, valid=None, test=None, holdout=20)
    train, valid, test = (
        {" ".join(src.split()) for src, _ in load(chosen, tmp_path / "c", split)}
        for split in ("train", "valid", "test")
    )
    assert len(train) + len(valid) + len(test) == 100
    assert not train & valid
    assert not (train | valid) & test


@pytest.mark.parametrize("sources", [1, 2, 3])
def test_pairs_of_few_sources_cannot_be_held_out(tmp_path, sources):
    write_text(tmp_path, "train", [(f"Quelle {i % sources}", f"target {i}") for i in range(100)])
    with pytest.raises(ValueError, match=rf"data\.holdout=10 pairs .* 100 training pairs have {sources} different"):
        load(options(tmp_path, valid=None, test=None, holdout=10), tmp_path / "c")


def test_a_table_that_gets_another_suffix_is_read_anew(tmp_path):
    for split in ("valid", "test"):
        write_text(tmp_path, split)
    cells = 'de\ten\n"Er sagt Hallo"\tHe says hello\n'
    found = []
    for suffix in ("tsv", "csv"):
        (tmp_path / f"x.{suffix}").write_text(cells, encoding="utf-8")
        found += load(options(tmp_path, train=str(tmp_path / f"x.{suffix}")), tmp_path / "c")
    assert [src for src, _ in found] == ['"Er sagt Hallo"', "Er sagt Hallo"]


def test_fingerprint_follows_data_and_settings_only(tmp_path):
    write_splits(tmp_path)
    base = options(tmp_path, clean=CleanSettings())
    fingerprint = corpus_fingerprint(base)
    assert fingerprint == corpus_fingerprint(replace(base, clean=CleanSettings(max_length=9)))
    changed = [
        replace(base, src="en", tgt="de"),
        replace(base, clean=CleanSettings(duplicates=False)),
        replace(base, valid=None),
    ]
    assert len({fingerprint, *map(corpus_fingerprint, changed)}) == 4
    with (tmp_path / "test.de").open("a") as file:
        file.write("x")
    assert corpus_fingerprint(base) != fingerprint
    # `datasets` reads archives in a folder
    of_folder = CorpusSettings(src="de", tgt="en", path=str(tmp_path), train="train")
    before = corpus_fingerprint(of_folder)
    (tmp_path / "train.zip").write_bytes(b"PK")
    assert corpus_fingerprint(of_folder) != before


def test_second_load_reads_no_raw_data(tmp_path, monkeypatch):
    write_splits(tmp_path)
    first = load(options(tmp_path), tmp_path / "c")
    monkeypatch.setattr(corpus, "open_split", None)
    assert load(options(tmp_path), tmp_path / "c") == first


def test_the_iwslt_steps_of_the_readme_work(tmp_path):
    script = re.search(r"```bash\n(for language.*?)```", (data_dir() / "README.md").read_text(), re.DOTALL)
    assert script
    for language in ("de", "en"):
        lines = [
            "<url>http://x</url>",
            "<title>T</title>",
            f" {language} one ",
            "<keywords>k</keywords>",
            f"{language} <b>",
        ]
        (tmp_path / f"train.tags.de-en.{language}").write_text("\n".join(lines) + "\n")
        for year in ("dev2010", "tst2010", "tst2011", "tst2012", "tst2013", "tst2014", "tst2015"):
            segments = f'<seg id="1"> {language} {year} &amp; a\u2028b </seg>\n<seg id="2">z</seg>'
            xml = f'<?xml version="1.0"?>\n<mteval>\n<refset>\n<doc>\n{segments}\n</doc>\n</refset>\n</mteval>\n'
            (tmp_path / f"IWSLT17.TED.{year}.de-en.{language}.xml").write_text(xml)
    subprocess.run(["sh", "-c", script[1]], cwd=tmp_path, check=True)
    chosen = options(tmp_path)
    assert load(chosen, tmp_path / "c") == [("de one", "en one"), ("de <b>", "en <b>")]
    assert load(chosen, tmp_path / "c", "valid")[0] == ("de dev2010 & a\u2028b", "en dev2010 & a\u2028b")
    assert len(load(chosen, tmp_path / "c", "test")) == 12


# ---- wrong settings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tgt": "de"}, "both 'de'"),
        ({"train": None}, r"data\.train is not set"),
        ({"languages": ("fr", "en")}, "no language column 'de'; it has fr, en"),
        ({"train": "nowhere/train"}, r"nowhere/train\.de.*does not exist"),
        ({"train": ["nowhere/a", "nowhere/b"]}, r"nowhere/a does not exist"),
        ({"train": ["a", "b", "c"]}, "lists 3 files"),
        ({"train": {"en": "x"}}, "no language column 'de'; it has 'en'"),
        ({"train": "nowhere/x.jsonl"}, r"x\.jsonl does not exist"),
        ({"train": "nowhere/x-*.parquet"}, "no file matches"),
        ({"path": "package://no-such-corpus"}, "no-such-corpus does not exist"),
        ({"format": "xls"}, "choose text, json, parquet, csv, tsv, tmx"),
        ({"src": "fr"}, r"train\.fr.*there are train\.de, train\.en"),
        ({"train": "tests/data"}, r"data\.train=tests/data is a folder \(.*test_"),
    ],
)
def test_wrong_places_are_refused_before_any_work(tmp_path, changes, message):
    write_splits(tmp_path)
    with pytest.raises(ValueError, match=message):
        validate_corpus(options(tmp_path, **changes), cache_dir=tmp_path / "c")
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("write", [write_jsonl, write_parquet])
def test_missing_language_column_names_those_present(tmp_path, write):
    good = write(tmp_path / ("x.jsonl" if write is write_jsonl else "x.parquet"), wmt())
    other = write(tmp_path / ("y.jsonl" if write is write_jsonl else "y.parquet"), [{"fr": "a", "en": "b"}])
    with pytest.raises(ValueError, match="no language column 'ro'; it has 'de', 'en'"):
        validate_corpus(options(tmp_path, train=good, valid=good, test=good, src="ro"), cache_dir=tmp_path / "c")
    with pytest.raises(ValueError, match=r"y\.[a-z]+ has no language column 'de'; it has 'fr', 'en'"):
        validate_corpus(options(tmp_path, train=good, valid=good, test=other), cache_dir=tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_swapped_files_are_refused(tmp_path):
    write_splits(tmp_path)
    names = [str(tmp_path / f"train.{language}") for language in ("en", "de")]
    with pytest.raises(ValueError, match="looks swapped"):  # by name
        validate_corpus(options(tmp_path, train=names), cache_dir=tmp_path / "c")
    for name, language in (("a", "en"), ("b", "de")):
        (tmp_path / name).write_bytes((tmp_path / f"train.{language}").read_bytes())
    anonymous = [str(tmp_path / "a"), str(tmp_path / "b")]
    with pytest.raises(ValueError, match="reads like en"):  # by function words
        validate_corpus(options(tmp_path, train=anonymous), cache_dir=tmp_path / "c")
    validate_corpus(options(tmp_path, train=anonymous[::-1]), cache_dir=tmp_path / "c")


def test_a_set_that_is_the_training_text_is_warned_of(tmp_path, caplog):
    write_splits(tmp_path)
    validate_corpus(options(tmp_path), cache_dir=tmp_path / "c")
    assert not caplog.text
    # Twice, as in a run
    for _ in range(2):
        validate_corpus(options(tmp_path, valid=str(tmp_path / "train")), cache_dir=tmp_path / "c")
    assert caplog.text.count("data.valid is data.train itself") == 1


def test_an_unknown_language_is_warned_of_not_refused(tmp_path, caplog):
    """Labels of texts, for example, are in no language."""
    for split in ("train", "valid", "test"):
        texts = [("the film is not what you and I like", "bad")] * 40
        for side, name in enumerate(("review", "en")):
            (tmp_path / f"{split}.{name}").write_text("".join(f"{pair[side]}\n" for pair in texts))
    warn_once.cache_clear()
    for _ in range(2):
        validate_corpus(options(tmp_path, src="review"), cache_dir=tmp_path / "c")
    assert caplog.text.count("source and target look swapped") == 1
    assert "unless this is intended" in caplog.text


def test_the_compression_that_is_named_is_read(tmp_path):
    for split in ("train", "valid", "test"):
        write_text(tmp_path, split, PAIRS[:5])
    write_text(tmp_path, "train", PAIRS, ".gz")
    assert load(options(tmp_path, train=str(tmp_path / "train.de.gz")), tmp_path / "c") == PAIRS
    assert load(options(tmp_path), tmp_path / "c") == PAIRS[:5]


@pytest.mark.parametrize("place", [["a.jsonl", "b.jsonl"], {"de": "a.jsonl", "en": "b.en"}])
def test_tables_are_no_files_of_lines(tmp_path, place):
    for split in ("valid", "test"):
        write_text(tmp_path, split)
    with pytest.raises(ValueError, match=r"data\.train names two files .* a\.jsonl is a table \(json\): name one file"):
        load(options(tmp_path, train=place), tmp_path / "c")


@pytest.mark.parametrize("further", ["", "LICENSE.txt", "dataset_infos.json"])
@pytest.mark.parametrize("suffix", ["csv", "tsv", "csv.gz"])
def test_a_folder_of_tables_is_text(tmp_path, suffix, further):
    """Numbers, missing values and quotes are words, as if the files were named, with any other file in the folder."""
    cells = [("007", "012"), ("null", "None"), ("NA", ""), ("one\rline", "1")]
    cells += [('"Er kam', "he came"), ('noch"', "more")] if suffix == "tsv" else []
    separator = "\t" if suffix == "tsv" else ","
    compress = gzip.compress if suffix == "csv.gz" else bytes
    folder = tmp_path / "data"
    folder.mkdir()
    if further:
        (folder / further).write_text("{}")
    for split in ("train", "validation", "test"):
        rows = [("de", "en"), *cells]
        text = "".join(separator.join(row) + "\r\n" for row in rows)
        (folder / f"{split}.{suffix}").write_bytes(compress(text.encode()))
    places = {"train": "train", "valid": "validation", "test": "test"}
    assert load(options(tmp_path, path=str(folder), **places), tmp_path / "c") == cells
    assert (
        load(options(tmp_path, **{k: str(folder / f"{v}.{suffix}") for k, v in places.items()}), tmp_path / "d")
        == cells
    )


def test_looks_swapped_by_script_and_leaves_the_unknown_alone():
    zh, en = ["我们 1979 年去了北京。", "他不在家。"] * 20, ["We went to Beijing in 1979.", "He is not at home."] * 20
    assert looks_swapped(en, zh, src="zh", tgt="en")
    assert looks_swapped(zh, en, src="en", tgt="zh")
    assert not looks_swapped(zh, en, src="zh", tgt="en")
    ru = ["Он не дома и не на работе."] * 20
    assert looks_swapped(en, ru, src="ru", tgt="en")
    assert not looks_swapped(en, en, src="de", tgt="en")  # a copy is not an exchange
    assert not looks_swapped(["abc"], ["xyz"], src="xx", tgt="yy")
    assert not looks_swapped([], [], src="de", tgt="en")


def test_a_cache_is_no_part_of_the_data_set(tmp_path):
    """If the cache counted, it would change the fingerprint, and a second preparation would read everything again."""
    write_parquet(tmp_path / "train.parquet", wmt())
    chosen = options(tmp_path, path=str(tmp_path), train="train", valid="train", test="train")
    for cache in (tmp_path, tmp_path / "cache"):
        with pytest.raises(ValueError, match=r"^cache=.* is in data\.path=.*: set cache="):
            validate_corpus(chosen, cache_dir=cache)
    validate_corpus(chosen, cache_dir=tmp_path / ".cache")


def test_suffixes_are_known_in_capitals(tmp_path):
    for split in ("valid", "test"):
        write_text(tmp_path, split)
    rows = "de\ten\n" + "".join(f"{src}\t{tgt}\n" for src, tgt in PAIRS)
    (tmp_path / "x.TSV.GZ").write_bytes(gzip.compress(rows.encode()))
    assert load(options(tmp_path, train=str(tmp_path / "x.TSV.GZ")), tmp_path / "c") == PAIRS
    units = "".join(
        f'<tu><tuv xml:lang="de"><seg>{src}</seg></tuv><tuv xml:lang="en"><seg>{tgt}</seg></tuv></tu>'
        for src, tgt in PAIRS
    )
    (tmp_path / "x.TMX").write_text(f"<tmx><body>{units}</body></tmx>")
    assert load(options(tmp_path, train=str(tmp_path / "x.TMX")), tmp_path / "c") == PAIRS
    for side, language in enumerate(("de", "en")):
        (tmp_path / f"y.{language}.XZ").write_bytes(
            lzma.compress("".join(f"{pair[side]}\n" for pair in PAIRS).encode())
        )
    for place in ("y", "y.de.XZ"):
        assert load(options(tmp_path, train=str(tmp_path / place)), tmp_path / "c") == PAIRS


def test_what_does_not_exist_names_the_setting_that_helps(tmp_path):
    for split in ("train", "more", "valid", "test"):
        write_text(tmp_path, split)
    prefixes = [str(tmp_path / "train"), str(tmp_path / "more")]
    with pytest.raises(ValueError, match=r"train does not exist; it is a prefix: give it alone, .*data\.corpora"):
        validate_corpus(options(tmp_path, train=prefixes), cache_dir=tmp_path / "c")
    (tmp_path / "x.tmx").write_text("<tmx/>")
    with pytest.raises(ValueError, match=r"valid does not exist; data\.format=tmx applies to every split"):
        validate_corpus(
            options(tmp_path, train=str(tmp_path / "x.tmx"), format="tmx", splits=("valid",)), cache_dir=tmp_path / "c"
        )


def test_markup_is_read_in_lists_and_by_language(tmp_path):
    for split in ("train", "valid"):
        write_text(tmp_path, split)
    for side, kind, language in ((0, "srcset", "de"), (1, "refset", "en")):
        segments = "".join(f'<seg id="{i}"> {pair[side]} </seg>\n' for i, pair in enumerate(PAIRS))
        for name in (f"{language}.sgm", f"test.{language}"):
            (tmp_path / name).write_text(f"<{kind} setid='s'>\n<doc>\n{segments}</doc>\n</{kind}>\n")
    files = {language: str(tmp_path / f"{language}.sgm") for language in ("de", "en")}
    for place in (files, list(files.values()), str(tmp_path / "test")):
        chosen = options(tmp_path, test=place)
        validate_corpus(chosen, cache_dir=tmp_path / "c")
        assert load(chosen, tmp_path / "c", "test") == PAIRS


def test_lines_that_show_nothing_are_empty(tmp_path):
    """Lines of format characters, or of the byte order marks of joined files, are empty."""
    blank = ["\u200b", "\ufeff", " \u200e\u00a0", "\ufeff\ufeff", "\u3000", "\u2060\x00"]
    cleaner = Cleaner(CleanSettings(), languages=("de", "en"))
    kept, _ = cleaner(([*blank, "x", "fa\u200cna"], ["y"] * (len(blank) + 2)))
    assert kept == ["x", "fa\u200cna"]
    assert cleaner.dropped["empty"].pairs == len(blank)


@pytest.mark.parametrize("suffix", ["csv", "tsv"])
def test_rows_of_tables_in_a_folder_are_those_of_the_files(tmp_path, suffix):
    """Test rows of other widths, which `datasets` shifts or fills, repeated headers, and parts of a split."""
    folder = tmp_path / "data"
    folder.mkdir()
    places = {"path": str(folder), "train": "train", "valid": "validation", "test": "test"}
    good = [("de", "en"), *PAIRS, ("de", "en"), ("eins", "one")]
    for rows in ([("de", "en"), ("a", "b", "c")], [("de", "en"), ("a",)], good):
        for split in ("train", "validation", "test"):
            lines = ("\t,"[suffix == "csv"].join(row) + "\n" for row in rows)
            (folder / f"{split}.{suffix}").write_text("".join(lines))
        if rows is not good:
            with pytest.raises(ValueError, match=r"train\.[ct]sv: line 2 has \d fields where the first row has 2"):
                load(options(tmp_path, **places), tmp_path / "c")
    assert load(options(tmp_path, **places), tmp_path / "c") == [*PAIRS, ("eins", "one")]
    parts = places | {"train": "train[:10]", "valid": "train[10:20]", "test": "train[-1:]"}
    chosen = options(tmp_path, **parts)
    found = [load(chosen, tmp_path / "c", split) for split in ("train", "valid", "test")]
    assert found == [PAIRS[:10], PAIRS[10:20], [("eins", "one")]]
    several = options(tmp_path, **places | {"train": "train[:10]+validation[-1:]", "test": "train+test"})
    assert load(several, tmp_path / "c") == [*PAIRS[:10], ("eins", "one")]
    assert len(load(several, tmp_path / "c", "test")) == 2 * len(good) - 4
    # Parts of two splits are read by `datasets`
    mark = '"' if suffix == "tsv" else ""
    odd = [("NA", "null"), (f"{mark}None", f"{mark}nan")]
    for split in ("train", "validation"):
        (folder / f"{split}.{suffix}").write_text(
            "".join("\t,"[suffix == "csv"].join(row) + "\n" for row in [good[0], *odd])
        )
    assert load(options(tmp_path, **places | {"train": "train[:2]+validation[:1]"}), tmp_path / "c") == [*odd, odd[0]]
    with pytest.raises(ValueError, match=r"dev\b.*train.*validation"):
        load(options(tmp_path, **places | {"valid": "dev"}), tmp_path / "c")
