"""Test the reading of runs whose files anything may have happened to: one line each, and never a hang."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from seq2seq.experiments.folder import RunFolder
from seq2seq.experiments.results import Unusable, collect, read_run
from seq2seq.settings.dicts import read_yaml

SCORES = {"bleu": 1.5, "chrf": 2.5, "signatures": ["nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.4"]}
CONFIG = {"seed": 1, "data": {"name": "toy"}, "mixer": {}, "model": {}, "trainer": {"max_steps": 1}}


def write(path: Path, results: Any = None, config: Any = None) -> Path:
    """Write a finished run; text is written as it is."""
    folder = RunFolder(path)
    config = {**CONFIG, **config} if isinstance(config, dict) else config or CONFIG
    folder.create(config if isinstance(config, str) else yaml.safe_dump(config))
    whole = {"mixer": "gru", "test": SCORES, "valid": SCORES, "steps": 9}
    results = {**whole, **results} if isinstance(results, dict) else results or whole
    folder.results.write_text(results if isinstance(results, str) else json.dumps(results))
    return path


def reason(path: Path) -> str:
    found = read_run(path, "test")
    assert isinstance(found, Unusable)
    assert "\n" not in found.reason
    assert len(found.reason) < 250
    return found.reason


def test_an_older_run_is_labeled_by_its_mixers(tmp_path):
    """It does not say which preset it had."""
    conv, attention = ({"_target_": f"seq2seq.mixers.x.{name}"} for name in ("Conv", "Attention"))
    mixer = {
        "encoder": {"kinds": {"a": conv, "b": attention}, "pattern": ["a", "b"]},
        "decoder": {},
        "cross": attention,
    }
    run = read_run(write(tmp_path / "run", {"mixer": "", "run": "mine"}, {"mixer": mixer}), "test")
    assert not isinstance(run, Unusable)
    assert run.mixer == "Conv+Attention/none/Attention"


@pytest.mark.parametrize(
    "results",
    [
        '{"test": {"bl',
        "[]",
        "null",
        "[" * 100_000,
        "9" * 5000,
        "\x00",
        " " * (1 << 22) + "{}",
        {"test": 5},
        {"test": {}},
        {"test": {**SCORES, "bleu": "many"}},
        {"test": {**SCORES, "bleu": None}},
        {"test": {**SCORES, "bleu": [1]}},
        {"test": {**SCORES, "chrf": float("nan")}},
        {"test": {**SCORES, "bleu": float("inf")}},
        {"test": {**SCORES, "signatures": 5}},
        {"test": {**SCORES, "signatures": [5]}},
        {"mixer": {"encoder": 1}},
        {"parameters": "many"},
        {"seconds": {}},
        {"seconds": float("inf")},
        {"steps": 10**400},
        {"command": "python 'unbalanced"},
    ],
)  # fmt: skip
def test_damaged_results_are_one_line(tmp_path, results):
    write(tmp_path / "bad", results)
    write(tmp_path / "good")
    assert reason(tmp_path / "bad").startswith("results.json ")
    found = collect([str(tmp_path)], "test")
    assert [run.name for run in found.runs] == ["good"]
    assert [each.name for each in found.unusable] == [str(tmp_path / "bad")]


def bomb(levels: int) -> str:
    """Lists of nine times the list before: 9^levels values in some hundred bytes."""
    lines = ["a0: &a0 [x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, levels)]
    return "\n".join([*lines, "data: *a0", "mixer: {}", "seed: 1"])


def merge_bomb(levels: int) -> str:
    """Mappings that merge the one before twice, which the parser itself would unfold."""
    lines = ["a0: &a0 {x: 1}"] + [f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}" for n in range(1, levels)]
    return "\n".join([*lines, "data: *a0", "mixer: {}", "seed: 1"])


@pytest.mark.parametrize(
    "config",
    [
        "a: [",
        "- 1",
        " ",
        "\x00",
        "[" * 10_000,
        bomb(40),
        merge_bomb(60),
        "a: &a [*a]\ndata: 1\nmixer: 1\nseed: 1",
        "#" * (1 << 19),
        "when: 2001-99-99",
        "n: " + "9" * 5000,
        "site_name: docs",
        {"seed": "one"},
        {"seed": None},
        {"seed": [1]},
        {"data": 5},
        {"data": {}},
        {"data": None},
        {"data": {"name": "toy", "corpora": 5}},
        {"data": {"name": "toy", "corpora": {"bt": 5}}},
        {"data": {"name": "toy", "corpora": {"bt": {"train": "x", "clean": 5}}}},
        {"data": {"name": "toy", "clean": 5}},
        {"mixer": None},
        {"mixer": [1]},
        {"trainer": {"accumulate": [1], "devices": [2]}},
        {"trainer": [1]},
    ],
)  # fmt: skip
def test_a_damaged_config_is_one_line(tmp_path, config):
    write(tmp_path / "bad", config=config)
    assert reason(tmp_path / "bad").startswith("config.yaml ")


def test_a_setting_that_is_no_mapping_is_named_with_its_value(tmp_path):
    run = write(tmp_path / "bad", config={"data": {"name": "toy", "clean": 5}})
    assert reason(run) == "config.yaml is damaged: data.clean=5 is not a mapping; correct it there"


def test_aliases_are_read_where_they_are_few(tmp_path):
    (tmp_path / "x.yaml").write_text("a: &a {x: 1}\nb: {<<: *a, y: 2}\nc: [*a, *a]\n")
    assert read_yaml(tmp_path / "x.yaml") == {"a": {"x": 1}, "b": {"x": 1, "y": 2}, "c": [{"x": 1}, {"x": 1}]}


def test_what_holds_no_run_says_what_it_is(tmp_path):
    assert reason(tmp_path / "nowhere") == "no such folder"
    run = write(tmp_path / "run")
    assert reason(run / "results.json") == "is a file; name the run's folder"
    (tmp_path / "empty").mkdir()
    assert reason(tmp_path / "empty") == "holds no run"
    assert [each.reason for each in collect([str(tmp_path / "empty")], "test").unusable] == ["holds no run"]
    (run / "config.yaml").unlink()
    assert reason(run) == "has lost its config.yaml"
    os.mkfifo(run / "config.yaml")
    assert reason(run) == "has lost its config.yaml"
    piped = write(tmp_path / "piped")
    (piped / "results.json").unlink()
    os.mkfifo(piped / "results.json")
    assert reason(piped).startswith("unfinished")


def test_a_run_whose_checkpoints_were_deleted_still_counts(tmp_path):
    run = write(tmp_path / "run")
    (run / "checkpoints").rmdir()
    assert [each.name for each in collect([str(tmp_path)], "test").runs] == ["run"]


def test_a_run_that_was_not_tested_says_how_to(tmp_path):
    run = write(tmp_path / "run", config={"trainer": {"max_steps": 1, "test": False}})
    results = json.loads((run / "results.json").read_text())
    del results["test"]
    (run / "results.json").write_text(json.dumps(results))
    assert reason(run) == (
        "was not tested (trainer.test=false): repeat its command with trainer.test=true resume=auto "
        "(--split valid compares its other scores)"
    )
    assert not isinstance(read_run(run, "valid"), Unusable)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"src": b"a\nb\n", "ref": b"a\nb\n", "hyp": b"a\n"}, "lines of test.src 2, test.ref 2, test.hyp 1"),
        ({"hyp": b"\xff\n"}, "is not in UTF-8"),
    ],
)
def test_a_damaged_test_set_is_one_line(tmp_path, texts, message):
    run = write(tmp_path / "run")
    for side, text in texts.items():
        (run / f"test.{side}").write_bytes(text)
    assert message in reason(run)
