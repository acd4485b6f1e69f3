"""The table of all presets: one run of each, its figures, and the growth of its encoder's mixer."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import yaml

from benchmarks import mixers
from seq2seq.analysis.atlas import scaling
from seq2seq.config.compose import presets
from seq2seq.experiments.folder import RunFolder

ROOT = Path(__file__).resolve().parents[2]


def write_runs(folder: Path) -> dict[str, float]:
    """Write a finished run of every preset, and return BLEU by preset."""
    scores = {name: random.uniform(1, 99) for name in presets()}
    for name, bleu in scores.items():
        run = RunFolder(folder / name)
        run.create(yaml.safe_dump({"seed": 1, "data": {"name": "toy"}, "mixer": {}}))
        numbers = {"parameters": 2_345_678, "steps": 1234, "target_tokens_per_second": 5678, "training_seconds": 9}
        score = {"bleu": bleu, "chrf": 50.0}
        run.results.write_text(json.dumps({"mixer": name, "test": score, "valid": score, **numbers}))
    return scores


def test_every_preset_has_its_row(tmp_path, capsys):
    first, second = write_runs(tmp_path / "a"), write_runs(tmp_path / "b")
    lengths = [64, 128, 256]
    curve = {"lengths": lengths, "seconds": [n**1.5 for n in lengths], "peak_bytes": [n**2 for n in lengths]}
    (tmp_path / "atlas.json").write_text(json.dumps([{"name": "bigru", "growth": curve}]))
    out = tmp_path / "out"
    corpora = [f"one={tmp_path / 'a'}", f"two={tmp_path / 'b'}"]
    assert mixers.main([*corpora, "--atlas", str(tmp_path / "atlas.json"), "--out", str(out)]) == 0
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()]
    assert rows[0][:3] == ["mixer", "one", "two"]
    assert [row[0].strip("`") for row in rows[2:]] == sorted(second, key=lambda name: -second[name])
    expected = [f"{first['bahdanau']:.2f}", f"{second['bahdanau']:.2f}", "1,234", "5,678", "2.35M", "1.50", "2.00"]
    assert next(row for row in rows if row[0] == "`bahdanau`")[1:] == expected
    assert json.loads((out / "mixers.json").read_text())["two"]["lstm"]["bleu"] == second["lstm"]


def test_preset_without_its_run_is_named(tmp_path):
    write_runs(tmp_path)
    (tmp_path / "lstm" / "results.json").unlink()
    with pytest.raises(ValueError, match="of lstm: 0"):
        mixers.of_corpus(str(tmp_path))


def test_committed_atlas_has_the_growth_of_every_preset():
    """Growth of every encoder that a preset has, but stacks of several."""
    found = mixers.growth(ROOT / "docs" / "atlas" / "atlas.json")
    assert {mixers.self_mixer(name) for name in presets()} <= set(found)
    assert all(len(each.lengths) >= scaling.FITTED for each in found.values())
