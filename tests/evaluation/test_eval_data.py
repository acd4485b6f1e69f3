"""The data of `score --ckpt` for a run with several corpora: the data of the run's own test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import toycorpus
from composed import resolved

from seq2seq.data.preparation import prepare_corpora
from seq2seq.evaluation import eval_data
from seq2seq.evaluation.eval_data import data_files, data_settings, load_pairs, require_same_test
from seq2seq.runs.folder import RunFolder


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    """The toy corpus, a further corpus with a test set, and one with French, made by replacing English words."""
    root = toycorpus.write(tmp_path_factory.mktemp("toy"))
    for split in ("train", "test"):
        german, english = ((root / f"{split}.{language}").read_text() for language in ("de", "en"))
        (root / f"{split}-fr.de").write_text(german)
        (root / f"{split}-fr.fr").write_text(english.replace("the", "la").replace("dog", "chien"))
    for language in ("de", "en"):
        (root / f"more.{language}").write_text("".join((root / f"valid.{language}").read_text().splitlines(True)[:7]))
    return root


def section(corpus: Path, **changes: Any) -> dict[str, Any]:
    files = {split: str(corpus / split) for split in ("train", "valid", "test")}
    return {"name": "toy", "src": "de", "tgt": "en", "max_tokens": 300, "corpora": None, **files, **changes}


def found(corpus: Path, data: dict[str, Any], *words: str, tgt: str = "en") -> tuple[dict[str, Any], tuple[str, str]]:
    """The section for scoring a checkpoint of a run with `data`, and the languages of the translation."""
    run = corpus / "run"
    run.mkdir(exist_ok=True)
    (run / "config.yaml").write_text(json.dumps({"data": data}))
    meta = {"src_lang": "de", "tgt_lang": "en", "tgt_langs": ["en", "fr"], "data": "toy"}
    ckpt = str(run / "checkpoints" / "best.safetensors")
    languages = ("de", tgt)
    return data_settings(words, ckpt=ckpt, meta=meta, languages=languages, cache=corpus / "cache"), languages


def scored(corpus: Path, data: dict[str, Any], *words: str, tgt: str = "en", **more: Any) -> tuple[list[str], ...]:
    settings, languages = found(corpus, data, *words, tgt=tgt)
    return load_pairs(settings, "test", languages=languages, cache=corpus / "cache", words=words, **more)


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def of_run(corpus: Path, data: dict[str, Any]) -> tuple[list[str], list[str]]:
    """The test set of a run with these settings."""
    tokenizer = {"vocab_size": 60, "byte_fallback": False}
    plan = toycorpus.data_plan(data, tokenizer=tokenizer, seed=1, cache_dir=corpus / "cache")
    prepared = prepare_corpora(plan)
    return prepared.sources("test"), prepared.references("test")


def test_a_further_corpus_with_a_test_set_is_scored_too(corpus):
    data = section(corpus, corpora={"more": {"train": str(corpus / "train"), "test": str(corpus / "more")}})
    assert scored(corpus, data) == of_run(corpus, data)
    assert len(scored(corpus, data)[0]) == 15 + 7
    assert scored(corpus, data, limit=17)[0] == [*lines(corpus / "test.de"), *lines(corpus / "more.de")[:2]]
    # If the command names text, only this text is scored
    assert scored(corpus, data, f"test={corpus / 'more'}")[0] == lines(corpus / "more.de")
    # Settings of the command line apply, and the files of all corpora are known
    assert len(scored(corpus, data, "corpora=null")[0]) == 15
    assert str(corpus / "more.en") in data_files(found(corpus, data)[0])


def test_held_out_text_is_cleaned_by_the_rules_of_the_run(corpus, tmp_path):
    """The rules of the entry for data.train decide from which pairs the split is chosen."""
    for language in ("de", "en"):
        text = (corpus / f"train.{language}").read_text()
        (tmp_path / f"all.{language}").write_text(text + "".join(f"Nr. {i}\n" for i in range(200)))
    held = {"train": str(tmp_path / "all"), "valid": None, "test": None, "holdout": 40}
    data = section(corpus, **held, corpora={"train": {"clean": {"same": False}}})
    assert scored(corpus, data) == of_run(corpus, data)
    assert scored(corpus, data) != scored(corpus, data, "corpora=null")


def test_a_test_set_held_out_of_changed_text_is_refused(corpus, tmp_path):
    for language in ("de", "en"):
        (tmp_path / f"all.{language}").write_text((corpus / f"train.{language}").read_text())
    data = section(corpus, train=str(tmp_path / "all"), valid=None, test=None, holdout=10)
    pairs = list(zip(*scored(corpus, data), strict=True))
    run = RunFolder(corpus / "run")
    read = toycorpus.data_settings(data)
    require_same_test(str(run.best), read, pairs)  # not tested
    run.save_test(src=[src for src, _ in pairs], ref=[tgt for _, tgt in pairs], hyp=["x"] * len(pairs))
    require_same_test(str(run.best), read, pairs[:3])
    for language in ("de", "en"):
        with (tmp_path / f"all.{language}").open("a") as file:
            file.writelines(f"{language} {i}\n" for i in range(200))
    changed = list(zip(*scored(corpus, data), strict=True))
    message = rf"{len(set(changed) - set(pairs))} pairs of the held-out test split.*changed since.*--data test=<path>"
    with pytest.raises(ValueError, match=message):
        require_same_test(str(run.best), read, changed)
    # A test set with its own file may change
    require_same_test(str(run.best), toycorpus.data_settings(section(corpus)), changed)


def test_each_target_language_has_the_references_of_its_corpora(corpus):
    french = {"train": str(corpus / "train-fr"), "test": str(corpus / "test-fr"), "tgt": "fr"}
    # Files by position: only the settings say their languages
    english = [str(corpus / "test.de"), str(corpus / "test.en")]
    data = section(corpus, test=english, tag_target=True, corpora={"french": french})
    assert scored(corpus, data)[1] == lines(corpus / "test.en")
    assert scored(corpus, data, tgt="fr")[1] == lines(corpus / "test-fr.fr")
    # A file that the command names takes precedence
    assert scored(corpus, data, f"test={corpus / 'train-fr'}", tgt="fr")[1] == lines(corpus / "train-fr.fr")
    del french["test"]
    message = r"no corpus of de-fr has a test split; .* --data src=de tgt=fr test=<path>"
    with pytest.raises(ValueError, match=message):
        scored(corpus, data, tgt="fr")
    words = ("src=de", "tgt=fr", f"test={corpus / 'test-fr'}")
    assert scored(corpus, data, *words, tgt="fr")[1] == lines(corpus / "test-fr.fr")


def test_an_error_names_the_corpus(corpus):
    data = section(corpus, corpora={"more": {"train": str(corpus / "train"), "test": str(corpus / "nowhere")}})
    with pytest.raises(ValueError, match=r"^data\.corpora\.more\.test=.*nowhere"):
        scored(corpus, data)


def test_a_file_of_settings_takes_all_settings_and_no_others(corpus, tmp_path):
    own = tmp_path / "own.yaml"
    settings = {"name": "own", "src": "de", "tgt": "en", "test": str(corpus / "test")}
    own.write_text(json.dumps(settings))
    assert found(corpus, {}, str(own), "columns={de: a, en: b}")[0].columns == {"de": "a", "en": "b"}
    own.write_text(json.dumps({**settings, "tset": "x"}))
    with pytest.raises(ValueError, match=r"own\.yaml: tset: there is no such setting; known are src, tgt, train"):
        found(corpus, {}, str(own))


ADDRESS = "http://127.0.0.1:9/${oc.env:SECRET}.json"


@pytest.mark.parametrize(
    "changes",
    [
        {"test": ADDRESS},
        {"test": ["${oc.env:SECRET}", "x"]},
        {"name": "${oc.env:SECRET}"},
        {"corpora": {"more": {"train": "x", "test": ADDRESS}}},
        {"clean": "${oc.env:SECRET}"},
        # 400 interpolations within each other
        {"test": "${a:" * 400},
    ],
)
def test_a_file_of_settings_cannot_read_the_environment(corpus, changes, monkeypatch):
    monkeypatch.setenv("SECRET", "hunter2")
    key = next(iter(changes))
    with pytest.raises(ValueError, match=rf"data\.{key}.*interpolations are not resolved.*--data {key}=") as refused:
        found(corpus, section(corpus, **changes))
    assert "hunter2" not in str(refused.value)
    # The remedy of the message
    remedy = "corpora=null" if key == "corpora" else "clean={}" if key == "clean" else f"{key}={corpus / 'test'}"
    assert scored(corpus, section(corpus, **changes), remedy)[0] == lines(corpus / "test.de")
    # The user's own words may read an environment variable
    monkeypatch.setenv("SECRET", str(corpus / "test"))
    assert scored(corpus, section(corpus), "test=${oc.env:SECRET}")[0] == lines(corpus / "test.de")


@pytest.mark.parametrize(
    "changes",
    [
        {"test": "http://127.0.0.1:9/x.json"},
        {"test": "hf://datasets/some/one@main/test.parquet"},
        {"test": "simplecache::http://127.0.0.1:9/x.jsonl"},
        {"path": "some/one", "test": "test"},
        # Held out of training text
        {"train": "s3://some/one.parquet", "test": None},
        {"corpora": {"more": {"train": "x", "test": "ftp://some/one.json"}}},
        # The name of one of our data sets with another address
        {"name": "multi30k", "path": "some/one", "test": "test"},
    ],
)
def test_an_address_in_a_file_is_opened_only_if_the_command_names_it(corpus, changes, monkeypatch):
    opened = []
    monkeypatch.setattr(eval_data, "open_split", lambda split, settings, **_: opened.append(settings) or iter(()))
    monkeypatch.setattr(eval_data, "load_corpus", lambda settings, **_: opened.append(settings))
    data = section(corpus, **changes)
    with pytest.raises(ValueError, match=r"is not on this machine, and the command does not name it: .*--data "):
        scored(corpus, data)
    own = corpus / "own.yaml"
    own.write_text(json.dumps(data))
    with pytest.raises(ValueError, match="the command does not name it"):
        scored(corpus, {}, str(own))
    assert not opened
    if "corpora" not in changes and changes["test"]:
        key = "path" if "path" in changes else "test"
        with pytest.raises(ValueError, match="its test split is empty"):
            scored(corpus, data, f"{key}={changes[key]}")
        assert opened


def test_addresses_of_our_own_data_sets_are_trusted(corpus, monkeypatch):
    monkeypatch.setattr(eval_data, "open_split", lambda split, settings, **_: iter([(["a"], ["b"])]))
    for name in ("multi30k", "wmt16_newstest2014"):
        data = resolved([f"data={name}", "data.src=de", "data.tgt=en"])["data"]
        assert scored(corpus, data) == (["a"], ["b"])


def test_a_checkpoint_names_no_file_of_settings(corpus, tmp_path):
    own = tmp_path / "own.yaml"
    own.write_text(json.dumps(section(corpus)))
    meta = {"src_lang": "de", "tgt_lang": "en", "data": str(own)}
    with pytest.raises(ValueError, match=r"there is no data set '.*own\.yaml' \(what the checkpoint was trained on\)"):
        data_settings([], ckpt="x.safetensors", meta=meta, languages=("de", "en"), cache=tmp_path)
