"""The shared parts of the benchmarks: times, the machine, and results in files."""

from __future__ import annotations

import importlib
import json

import pytest
import torch

from benchmarks import harness


def test_median_leaves_out_the_warm_up():
    times = iter([0, 100, 100, 200, 200, 203, 203, 204, 204, 206])
    assert harness.median_seconds(lambda: None, repeat=3, warm_up=2, clock=lambda: next(times)) == 2


def test_results_are_written_as_json_and_table(tmp_path):
    result = {"machine": harness.machine(), "rows": [1, "ü"]}
    harness.write(tmp_path / "new" / "folder", "speed", result, "| a |\n")
    assert json.loads((tmp_path / "new" / "folder" / "speed.json").read_text(encoding="utf-8")) == result
    assert (tmp_path / "new" / "folder" / "speed.md").read_text() == "| a |\n"
    assert result["machine"]["torch"] == torch.__version__
    harness.write(None, "speed", result)


@pytest.mark.parametrize("name", ["images", "mixers", "service"])
def test_every_benchmark_takes_out(name, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", [name, "--help"])
    with pytest.raises(SystemExit) as end:
        importlib.import_module(f"benchmarks.{name}").main()
    assert end.value.code == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"usage: python -m benchmarks.{name}")
    assert "--out DIR" in printed
