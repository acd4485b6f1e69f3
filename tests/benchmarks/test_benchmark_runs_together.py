"""Run several runs at a time, tell them to save when the budget ends, and keep them when they have ended.

Small programs stand for the runs.
"""

from __future__ import annotations

import json
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import PATIENCE

from benchmarks import runs_together

# Waits until two have run side by side, notes how many there are, and has results.
ENDS = """
import pathlib, sys, time
name, out = sys.argv[1], pathlib.Path(sys.argv[2])
mine = out / "active" / name
mine.mkdir(parents=True)
while not (out / "two").exists() and name.startswith("ends"):
    count = len(list(mine.parent.iterdir()))
    if count > 1:
        (out / "two").touch()
    time.sleep(0.01)
print("active:", len(list(mine.parent.iterdir())), flush=True)
mine.rmdir()
run = out / "runs" / name
run.mkdir(parents=True)
(run / "config.yaml").write_text("{seed: 1, data: {name: toy}, mixer: {}}")
(run / "metrics.csv").write_text("step,val/bleu\\n100,12.5\\n")
score = '{"bleu": 12.5, "chrf": 40.0}'
(run / "results.json").write_text(f'{{"mixer": "gru", "command": "train", "test": {score}, "valid": {score}}}')
"""
# Saves when it is told to; otherwise it would run for a long time.
LASTS = """
import pathlib, signal, sys, time
def save(*_):
    (pathlib.Path(sys.argv[2]) / "saved").write_text(sys.argv[1])
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
(pathlib.Path(sys.argv[2]) / "ready").touch()
time.sleep(600)
"""
FAILS = "import sys; print('no such mixer'); sys.exit(2)"
PROGRAMS = {"ends": ENDS, "alone": ENDS, "lasts": LASTS, "fails": FAILS, "breaks": LASTS.replace("143", "1")}


@pytest.fixture(autouse=True)
def programs(monkeypatch):
    """Let the first word of a line choose a program."""

    def command(line: str, out: Path) -> list[str]:
        return [sys.executable, "-c", PROGRAMS[line.split("-")[0]], line, str(out)]

    monkeypatch.setattr(runs_together, "command", command)


def kept(tmp_path: Path) -> list[str]:
    """Names of the kept runs."""
    return sorted(path.name for path in (tmp_path / "out" / "kept").glob("*"))


def together(tmp_path: Path, *lines: str, budget: float = PATIENCE, slots: int = 2) -> tuple[int, dict[str, Any]]:
    runs = tmp_path / "runs.txt"
    runs.write_text("# settings\n\n" + "\n".join(lines) + "\n")
    given = [str(runs), f"--out={tmp_path / 'out'}", f"--budget={budget}", f"--slots={slots}"]
    status = runs_together.main(given)
    return status, json.loads((tmp_path / "out" / "runs_together.json").read_text())


def test_no_more_than_the_slots_run_at_a_time_and_all_are_kept(tmp_path):
    lines = [f"ends-{number}" for number in range(5)]
    status, report = together(tmp_path, *lines)
    assert status == 0
    assert [record["status"] for record in report["records"]] == [0] * 5
    assert sorted(one["bleu"] for one in report["runs"]) == [12.5] * 5
    assert kept(tmp_path) == lines
    logs = [path.read_text() for path in (tmp_path / "out" / "logs").iterdir()]
    assert len(logs) == 5
    assert {line.split()[1] for line in logs} <= {"1", "2"}
    assert (tmp_path / "out" / "two").exists()
    with tarfile.open(tmp_path / "out" / "runs_together.tar.gz") as file:
        assert "runs_together.json" in file.getnames()
        assert not [name for name in file.getnames() if name.startswith("runs/")]


def test_a_second_command_adds_to_the_records(tmp_path):
    together(tmp_path, "alone-1")
    status, report = together(tmp_path, "alone-2")
    assert status == 0
    assert [(record["settings"], record["log"]) for record in report["records"]] == [
        ("alone-1", "000.log"),
        ("alone-2", "001.log"),
    ]


def test_no_run_is_started_that_would_not_end(tmp_path):
    some = runs_together.Together(["next"], tmp_path, slots=2, deadline=time.monotonic() + 1000)
    some.records = [{"seconds": 900.0, "status": 0}, {"seconds": 2000.0, "status": 1}]
    assert some._time_for_another()
    some.records.append({"seconds": 1100.0, "status": 0})
    assert not some._time_for_another()


@pytest.mark.parametrize(("program", "exit_status"), [("lasts", runs_together.LEFT), ("breaks", 1)])
def test_at_the_end_of_the_budget_runs_save_and_others_do_not_start(tmp_path, monkeypatch, program, exit_status):
    monkeypatch.setattr(runs_together, "_GRACE", PATIENCE)
    ready = tmp_path / "out" / "ready"
    # The deadline comes as soon as the first run can save
    monkeypatch.setattr(runs_together.Together, "deadline", Deadline(ready), raising=False)
    status, report = together(tmp_path, f"{program}-1", "alone-1", budget=2 * PATIENCE, slots=1)
    assert status == exit_status
    assert (tmp_path / "out" / "saved").read_text() == f"{program}-1"
    (record,) = report["records"]
    assert (record["settings"], record["asked to save"]) == (f"{program}-1", True)
    assert record["status"] == (143 if program == "lasts" else 1)
    assert report["not started"] == ["alone-1"]
    assert kept(tmp_path) == []


class Deadline:
    """A deadline that has passed once a file exists; assigning another deadline has no effect."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __get__(self, *_: Any) -> float:
        return 0.0 if self.path.exists() else float("inf")

    def __set__(self, *_: Any) -> None:
        pass


def test_a_failed_run_is_shown_and_the_others_continue(tmp_path, capsys):
    status, report = together(tmp_path, "fails-1", "alone-1", slots=1)
    assert status == 1
    assert [record["status"] for record in report["records"]] == [2, 0]
    assert "no such mixer" in capsys.readouterr().out
    assert kept(tmp_path) == ["alone-1"]


def test_lines_that_cannot_be_run_are_refused(tmp_path, capsys, monkeypatch):
    with pytest.raises(SystemExit):
        together(tmp_path, "ends-1", "ends-1")
    assert "a line twice: ends-1" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        together(tmp_path)
    assert "has no line of settings" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        together(tmp_path, "ends-1", budget=1)
    assert "--budget of more than" in capsys.readouterr().err
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(SystemExit):
        runs_together.main([str(tmp_path / "runs.txt"), f"--out={tmp_path / 'out'}", "--mps"])
    assert "nvidia-cuda-mps-control is not on the PATH" in capsys.readouterr().err
