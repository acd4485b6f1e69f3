"""Data sets of the hub without a network: copies in its cache, and messages without a copy."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import toycorpus
import yaml
from composed import resolved
from huggingface_hub import HfApi, constants

from seq2seq.data import hub
from seq2seq.data.corpus import load_corpus
from seq2seq.data.hub import Repository, missing_files
from seq2seq.data.preflight import validate_corpus
from seq2seq.data.raw_pairs import open_split
from seq2seq.settings.data import CorpusSettings

EXHAUSTIVE = {"test_no_copy_and_no_network_is_known_before_any_work"}
REPRESENTATIVE = {
    "test_a_snapshot_is_read_offline": {"True"},
    "test_an_incomplete_copy_is_never_read_as_the_whole": {"wmt16_newstest2014"},
}
SIZES = {"train": 6400, "validation": 7, "test": 5}
WMT14 = "b199e406369ec1b7634206d3ded5ba45de2fe696"
WMT16 = "41d8a4013aa1489f28fea60ec0932af246086482"
WMT19 = "798d1043ae8e3a6b7d201b462cc181d3d13b0955"
IWSLT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """An empty cache of the hub, and a network that may not be used."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    # A separate folder of converted data, so that the data of other tests or users is not found
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "datasets"))
    return tmp_path / "hub"


def download(cache: Path, name: str, revision: str, subset: str, *, reference: str | None = None, card: bool = True):
    """Lay a data set out as `hf download` does: blobs, and snapshots of links to them."""
    root = cache / f"datasets--{name.replace('/', '--')}"
    for folder in ("blobs", "refs", f"snapshots/{revision}/{subset}"):
        (root / folder).mkdir(parents=True)
    if reference:
        (root / "refs" / reference).parent.mkdir(parents=True, exist_ok=True)
        (root / "refs" / reference).write_text(revision)
    languages = subset.removeprefix("iwslt2017-").split("-")
    for split, size in SIZES.items():
        rows = [{"translation": {each: f"{each} {split} {i}" for each in languages}} for i in range(size)]
        for shard in (0, 1):
            table = pa.Table.from_pylist(rows[shard * size // 2 : (shard + 1) * size // 2])
            file = f"{subset}/{split}-0000{shard}-of-00002.parquet"
            pq.write_table(table, root / "blobs" / file.replace("/", "-"))
            add_link(root, revision, file)
    files = [{"split": split, "path": f"{subset}/{split}-*"} for split in SIZES]
    text = yaml.safe_dump({"configs": [{"config_name": subset, "data_files": files}]})
    if card:
        (root / "blobs" / "README.md").write_text(f"---\n{text}---\n")
        add_link(root, revision, "README.md")
    return root / "snapshots" / revision


def add_link(root: Path, revision: str, file: str) -> None:
    link = root / "snapshots" / revision / file
    link.symlink_to(Path(*[".."] * (file.count("/") + 2)) / "blobs" / file.replace("/", "-"))


def settings(name: str, *changes: str) -> CorpusSettings:
    return toycorpus.corpus_settings(resolved([f"data={name}", *changes])["data"])


def sizes(chosen: CorpusSettings, folder: Path) -> dict[str, int]:
    return {split: len(rows) for split, rows in load_corpus(chosen, cache_dir=folder).splits.items()}


@pytest.mark.parametrize("card", [True, False])
def test_a_snapshot_is_read_offline(cache, tmp_path, card):
    download(cache, "wmt/wmt14", WMT14, "de-en", card=card)
    loaded = load_corpus(settings("wmt14_de_en"), cache_dir=tmp_path / "c")
    assert {split: len(rows) for split, rows in loaded.splits.items()} == {"train": 6400, "valid": 7, "test": 5}
    # In the order of the shards
    assert loaded.splits["train"][3300] == {"src": "en train 3300", "tgt": "de train 3300"}
    assert sizes(settings("wmt14_de_en", 'data.train="train[:50]"'), tmp_path / "c")["train"] == 50


def test_patterns_of_two_data_sets_are_read_offline(cache, tmp_path):
    download(cache, "wmt/wmt16", WMT16, "de-en")
    wmt14 = download(cache, "wmt/wmt14", WMT14, "de-en", card=False)
    for file in wmt14.glob("de-en/train-*"):  # downloaded without the training text, which is not needed
        file.unlink()
    assert sizes(settings("wmt16_newstest2014"), tmp_path / "c") == {"train": 6400, "valid": 7, "test": 5}


def test_a_moving_reference_is_followed(cache, tmp_path):
    download(cache, "IWSLT/iwslt2017", IWSLT, "iwslt2017-de-en", reference="refs/convert/parquet", card=False)
    assert sizes(settings("iwslt2017_de_en"), tmp_path / "c") == {"train": 6400, "valid": 7, "test": 5}


@pytest.mark.parametrize("subset", ["de-en", "zh-en"])
def test_wmt19_is_read_offline(cache, tmp_path, subset):
    folder = download(cache, "wmt/wmt19", WMT19, subset)
    (folder / "wmt19.py").write_text("raise AssertionError('the loading script of this revision')")
    found = sizes(settings(f"wmt19_{subset.replace('-', '_')}"), tmp_path / "c")
    assert found == {"train": 3400, "valid": 3000, "test": 7}


@pytest.mark.parametrize("name", ["wmt14_de_en", "wmt16_newstest2014"])
def test_an_incomplete_copy_is_never_read_as_the_whole(cache, tmp_path, name):
    repository, revision = ("wmt/wmt14", WMT14) if name == "wmt14_de_en" else ("wmt/wmt16", WMT16)
    folder = download(cache, repository, revision, "de-en")
    shard = folder / "de-en" / "train-00001-of-00002.parquet"
    shard.resolve().unlink()  # its content; the link stays
    with pytest.raises(ValueError, match=r"lacks train-00001-of-00002\.parquet; .* run: hf download wmt/wmt1\d --rep"):
        sizes(settings(name), tmp_path / "c")
    shard.unlink()
    with pytest.raises(ValueError, match=r"HF_HUB_OFFLINE is set, and the copy in .* lacks train-00001-of-00002"):
        sizes(settings(name), tmp_path / "c")
    assert not list((tmp_path / "c").glob("text-*"))


def test_a_copy_of_another_split_is_not_the_training_split(cache):
    folder = download(cache, "wmt/wmt14", WMT14, "de-en")
    for file in folder.glob("de-en/train-*"):
        file.unlink()
    repository = Repository("wmt/wmt14", WMT14, "de-en")
    assert repository.copy_of("train") is None
    assert repository.copy_of("validation") == repository.copy_of("test") == folder
    assert Repository("wmt/wmt14", WMT16, "de-en").copy_of("test") is None


def test_no_copy_and_no_network_is_one_line(cache, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"HF_HUB_OFFLINE is set, and no copy is in .*hub; .*hf download wmt/wmt14"):
        sizes(settings("wmt14_de_en"), tmp_path / "c")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)

    def refused(*args, **values):
        raise ConnectionError("[Errno -2] Name or service not known")

    monkeypatch.setattr(HfApi, "dataset_info", refused)
    for name in ("wmt14_de_en", "wmt16_newstest2014", "iwslt2017_de_en"):
        with pytest.raises(ValueError, match=r"cannot be reached \(\[Errno -2\].*--include '[a-z0-9-]+/") as told:
            sizes(settings(name), tmp_path / "c")
        assert "\n" not in str(told.value)


def test_no_copy_and_no_network_is_known_before_any_work(cache, tmp_path):
    for name in ("wmt14_de_en", "wmt16_newstest2014"):
        with pytest.raises(ValueError, match="HF_HUB_OFFLINE is set, and no copy is in"):
            validate_corpus(settings(name), cache_dir=tmp_path / "c")
    download(cache, "wmt/wmt14", WMT14, "de-en")
    validate_corpus(settings("wmt14_de_en"), cache_dir=tmp_path / "c")
    with pytest.raises(ValueError, match=r"wmt/wmt16: .*hf download wmt/wmt16"):
        validate_corpus(settings("wmt16_newstest2014"), cache_dir=tmp_path / "c")
    assert not (tmp_path / "c").exists()
    # Text that was prepared before needs no copy
    chosen = settings("wmt14_de_en")
    load_corpus(chosen, cache_dir=tmp_path / "c")
    cache.rename(tmp_path / "away")
    validate_corpus(chosen, cache_dir=tmp_path / "c")


def test_a_network_that_swallows_packets_is_told(cache, tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "PATIENCE", 0.05)
    end = threading.Event()
    monkeypatch.setattr(HfApi, "dataset_info", lambda *args, **values: end.wait())
    with pytest.raises(ValueError, match="did not answer within"):
        sizes(settings("wmt14_de_en"), tmp_path / "c")
    end.set()


def test_what_the_hub_refuses_is_said(cache, tmp_path, monkeypatch):
    from huggingface_hub.errors import RepositoryNotFoundError

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    answer: Any = SimpleNamespace(headers={}, request=None, status_code=401)

    def refused(*args, **values):
        raise RepositoryNotFoundError("401 Client Error.\nRepository Not Found", response=answer)

    monkeypatch.setattr(HfApi, "dataset_info", refused)
    with pytest.raises(ValueError, match="wmt/wmt14: the hub answers: 401 Client Error"):
        sizes(settings("wmt14_de_en"), tmp_path / "c")


def test_shards_and_addresses(tmp_path):
    files = [tmp_path / f"x-0000{i}-of-00003.parquet" for i in (0, 2)]
    for file in files:
        file.touch()
    assert missing_files(files) == ["x-00001-of-00003.parquet"]
    assert missing_files([]) == []
    address = "hf://datasets/IWSLT/iwslt2017@refs%2Fconvert%2Fparquet/a/*.parquet"
    assert Repository.of_address(address) == ("IWSLT/iwslt2017", "refs/convert/parquet", "a/*.parquet")
    assert Repository.of_address("hf://datasets/a/b/c.parquet") == ("a/b", None, "c.parquet")
    assert Repository.of_address("https://a/b.parquet") is None


@pytest.mark.parametrize("file", ["README.md", ".huggingface.yaml"])
@pytest.mark.parametrize("address", ["http://127.0.0.1:9/x.jsonl", "zip://x.jsonl::http://127.0.0.1:9/x.zip"])
def test_a_folder_names_no_address(cache, tmp_path, file, address, monkeypatch):
    """A folder is refused if its own settings contain addresses, which the user did not name."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "train.jsonl").write_text('{"de": "a", "en": "b"}\n')
    files = [{"split": "train", "path": ["train.jsonl", address]}]
    text = yaml.safe_dump(
        {"license_link": "https://some.where", "configs": [{"config_name": "c", "data_files": files}]}
    )
    (folder / file).write_text(f"---\n{text}---\n" if file == "README.md" else text)
    monkeypatch.setattr("datasets.load_dataset_builder", lambda *_, **__: pytest.fail("it was opened"))
    settings = toycorpus.corpus_settings({"src": "de", "tgt": "en", "path": str(folder), "train": "train"})
    with pytest.raises(ValueError, match=r"corpus could not be loaded: its settings name the address .*127\.0\.0\.1"):
        next(open_split("train", settings, cache_dir=tmp_path / "cache"))
