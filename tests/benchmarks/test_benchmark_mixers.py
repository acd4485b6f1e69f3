"""The table of all presets: one run of each, its figures, and the growth of its encoder's mixer."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import yaml

from benchmarks import mixers
from seq2seq.analysis.atlas import scaling
from seq2seq.runs.folder import RunFolder
from seq2seq.settings.compose import presets

ROOT = Path(__file__).resolve().parents[2]


def write_runs(folder: Path) -> dict[str, float]:
    """Write a finished run of every preset, and return its BLEU on the validation set."""
    scores = {name: random.uniform(1, 99) for name in presets()}
    for name, bleu in scores.items():
        run = RunFolder(folder / name)
        run.create(yaml.safe_dump({"seed": 1, "data": {"name": "toy"}, "mixer": {}}))
        numbers = {"parameters": 2_345_678, "steps": 1234, "target_tokens_per_second": 5678}
        # An older run has no CPU time
        numbers |= {} if name == "gru" else {"training_cpu_seconds": 1999}
        score = {"bleu": bleu, "chrf": 50.0, "perplexity": 7.125}
        run.results.write_text(json.dumps({"mixer": name, "valid": score, "test": score | {"bleu": 5.0}, **numbers}))
    return scores


def test_every_preset_has_its_row(tmp_path, capsys):
    scores = write_runs(tmp_path / "runs")
    lengths = [64, 128, 256]
    curve = {"lengths": lengths, "seconds": [n**1.5 for n in lengths], "peak_bytes": [n**2 for n in lengths]}
    (tmp_path / "atlas.json").write_text(json.dumps([{"name": "bigru", "growth": curve}]))
    out = tmp_path / "out"
    given = ["--split", "valid", "--atlas", str(tmp_path / "atlas.json"), "--out", str(out)]
    assert mixers.main([str(tmp_path / "runs"), *given]) == 0
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()]
    assert [row[0].strip("`") for row in rows[2:]] == sorted(scores, key=lambda name: -scores[name])
    by_name = {row[0].strip("`"): row[1:] for row in rows}
    expected = [f"{scores['bahdanau']:.2f}", "50.00", "7.12", "2.35M", "1,999", "1.50", "2.00"]
    assert by_name["bahdanau"] == expected
    assert by_name["gru"][4] == by_name["transformer"][5] == ""
    written = json.loads((out / "mixers.json").read_text())
    assert written["lstm"]["bleu"] == scores["lstm"]
    assert written["gru"]["training_cpu_seconds"] is None


def test_preset_without_its_run_is_named(tmp_path):
    write_runs(tmp_path)
    (tmp_path / "lstm" / "results.json").unlink()
    with pytest.raises(ValueError, match="lstm: 0"):
        mixers.read_figures(str(tmp_path), "test")


def test_committed_atlas_has_the_growth_of_every_preset():
    """The atlas has the growth of every preset's encoder mixer, except stacks of several mixers."""
    found = mixers.growth(ROOT / "docs" / "atlas" / "atlas.json")
    assert {mixers.self_mixer(name) for name in presets()} <= set(found)
    assert all(len(each.lengths) >= scaling.FITTED for each in found.values())


def test_runs_of_unlike_budgets_make_no_table(tmp_path):
    write_runs(tmp_path)
    config = tmp_path / "lstm" / "config.yaml"
    config.write_text(config.read_text() + "trainer: {max_steps: 5000}\n")
    with pytest.raises(ValueError, match=r"need one budget, not .*max_steps=5000 .*; .*max_steps=None"):
        mixers.read_figures(str(tmp_path), "valid")
