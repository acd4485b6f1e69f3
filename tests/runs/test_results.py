"""Reading runs: each one without a result has a reason of one line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from seq2seq.runs.folder import RunFolder
from seq2seq.runs.results import Unusable, collect, read_run
from seq2seq.runs.resume import is_repeated
from seq2seq.system.yaml_file import read_yaml

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


@pytest.mark.parametrize("results", ['{"test": {"bl', "[]", "\x00"])
def test_damaged_results_are_one_line(tmp_path, results):
    write(tmp_path / "bad", results)
    write(tmp_path / "good")
    assert reason(tmp_path / "bad").startswith("results.json ")
    found = collect([str(tmp_path)], "test")
    assert [run.name for run in found.runs] == ["good"]
    assert [each.name for each in found.unusable] == [str(tmp_path / "bad")]


@pytest.mark.parametrize("config", ["a: [", "- 1", "site_name: docs", {"data": 5}])
def test_a_damaged_config_is_one_line(tmp_path, config):
    write(tmp_path / "bad", config=config)
    assert reason(tmp_path / "bad").startswith("config.yaml ")


def test_a_folder_without_a_run_has_a_reason(tmp_path):
    assert reason(tmp_path / "nowhere") == "no such folder"
    assert reason(write(tmp_path / "run") / "results.json") == "holds no run"
    (tmp_path / "empty").mkdir()
    assert [each.reason for each in collect([str(tmp_path / "empty")], "test").unusable] == ["holds no run"]


def test_aliases_are_read_where_they_are_few(tmp_path):
    (tmp_path / "x.yaml").write_text("a: &a {x: 1}\nb: {<<: *a, y: 2}\nc: [*a, *a]\n")
    assert read_yaml(tmp_path / "x.yaml") == {"a": {"x": 1}, "b": {"x": 1, "y": 2}, "c": [{"x": 1}, {"x": 1}]}


def test_a_run_whose_checkpoints_were_deleted_still_counts(tmp_path):
    run = write(tmp_path / "run")
    (run / "checkpoints").rmdir()
    assert [each.name for each in collect([str(tmp_path)], "test").runs] == ["run"]


def test_the_reason_for_a_missing_test_score_names_the_remedy(tmp_path):
    run = write(tmp_path / "run", config={"trainer": {"max_steps": 1, "test": False}})
    results = json.loads((run / "results.json").read_text())
    del results["test"]
    (run / "results.json").write_text(json.dumps(results))
    assert re.search(r"trainer\.test=true resume=auto .*--split valid", reason(run))
    assert not isinstance(read_run(run, "valid"), Unusable)


def test_a_finished_run_of_the_same_settings_is_a_repetition(tmp_path):
    folder = RunFolder(write(tmp_path / "a", {"ended_by": "max_steps"}))
    assert not is_repeated(folder, CONFIG)  # no state to resume from
    folder.last.touch()
    assert is_repeated(folder, CONFIG)
    assert is_repeated(folder, {**CONFIG, "cache": "elsewhere"})
    for other in ({"seed": 2}, {"trainer": {"max_steps": 2}}):
        assert not is_repeated(folder, {**CONFIG, **other})
    write(folder.path)
    assert not is_repeated(folder, CONFIG)  # unfinished
