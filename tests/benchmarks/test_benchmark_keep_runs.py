"""Kept runs: compared as the runs themselves, without the machine's paths and the corpus."""

from __future__ import annotations

import json

import pytest
import yaml

from benchmarks import keep_runs
from seq2seq.runs.folder import RunFolder
from seq2seq.runs.results import collect

METRICS = """\
step,train/loss,train/seconds,train/cpu_seconds,val/bleu,val/perplexity
50,6.1,10,9,,
100,5.1,20,18,,
100,,,,12.5,20.1
200,4.1,40,36,,
200,,,,25.0,9.5
"""


@pytest.fixture
def run(tmp_path) -> RunFolder:
    """A finished run of a corpus at an absolute path."""
    folder = RunFolder(tmp_path / "runs" / "toy-gru-1")
    toy = str(tmp_path / "toy")
    data = {"name": "toy", "train": f"{toy}/train", "test": [f"{toy}/test.de", f"{toy}/test.en"]}
    places = {"runs": str(tmp_path / "runs"), "cache": str(tmp_path / "cache")}
    folder.create(yaml.safe_dump({"seed": 1, **places, "data": data, "mixer": {}}))
    command = f"python -m seq2seq.train runs={places['runs']} data.train={toy}/train 'mixer=glob(*)' seed=1"
    score = {"bleu": 20.5, "chrf": 40.0}
    folder.results.write_text(json.dumps({"mixer": "gru", "command": command, "test": score, "valid": score}))
    (folder.path / "metrics.csv").write_text(METRICS)
    for side in ("src", "ref", "hyp"):
        folder.test_file(side).write_text(f"{side} of a line\n")
    return folder


def test_a_kept_run_has_its_scores_curves_and_translations(run, tmp_path):
    out = tmp_path / "kept"
    assert keep_runs.main([str(run.path), "--out", str(out)]) == 0
    (before,), (after,) = (collect([str(path)], "test").runs for path in (run.path, out))
    assert (after.name, after.mixer, after.seed) == (before.name, before.mixer, before.seed)
    assert after.score("test", "bleu") == before.score("test", "bleu")
    for axis, points in (("cpu", [(18.0, 12.5), (36.0, 25.0)]), ("updates", [(100.0, 12.5), (200.0, 25.0)])):
        assert after.curve(axis) == before.curve(axis) == points
    assert after.test_lines("hyp") == ["hyp of a line"]


def test_translations_of_further_sets_are_kept(run, tmp_path):
    (run.path / "test2017.hyp").write_text("hyp of another set\n")
    (run.path / "test2017.ref").write_text("ref of another set\n")
    assert keep_runs.main([str(run.path), "--out", str(tmp_path / "kept")]) == 0
    kept = tmp_path / "kept" / run.path.name
    assert (kept / "test2017.hyp").read_text() == "hyp of another set\n"
    assert sorted(path.name for path in kept.glob("test*")) == ["test.hyp", "test2017.hyp"]


def test_neither_the_corpus_nor_a_path_of_the_machine_is_kept(run, tmp_path):
    keep_runs.main([str(run.path), "--out", str(tmp_path / "kept")])
    kept = tmp_path / "kept" / run.path.name
    assert sorted(path.name for path in kept.iterdir()) == ["config.yaml", "metrics.csv", "results.json", "test.hyp"]
    config = yaml.safe_load((kept / "config.yaml").read_text())
    assert config["data"] == {"name": "toy", "train": "toy/train", "test": ["toy/test.de", "toy/test.en"]}
    assert (config["runs"], config["cache"]) == ("runs", ".cache")
    command = json.loads((kept / "results.json").read_text())["command"]
    assert command == "python -m seq2seq.train data.train=toy/train 'mixer=glob(*)' seed=1"
    assert not any(str(tmp_path) in path.read_text() for path in kept.iterdir())


def test_runs_that_cannot_be_kept_are_named(run, tmp_path, capsys):
    out = tmp_path / "kept"
    assert keep_runs.main([str(run.path), "--out", str(out)]) == 0
    # A second call leaves existing files alone
    (out / run.path.name / "test.hyp").write_text("mine\n")
    assert keep_runs.main([str(run.path), "--out", str(out)]) == 1
    assert "exists: remove it" in capsys.readouterr().out
    assert (out / run.path.name / "test.hyp").read_text() == "mine\n"
    run.results.unlink()
    assert keep_runs.main([str(run.path), "--out", str(tmp_path / "other")]) == 1
    assert "unfinished" in capsys.readouterr().out
    assert not (tmp_path / "other").exists()
