"""Runs side by side: so many at a time, told to save when the budget ends, and kept when they have ended.

Small programs stand for the runs.
"""

from __future__ import annotations

import json
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from conftest import PATIENCE

from benchmarks import runs_together

# Notes how many there are, and has results after a moment.
ENDS = """
import pathlib, sys, time
name, out = sys.argv[1], pathlib.Path(sys.argv[2])
mine = out / "active" / name
mine.mkdir(parents=True)
print("active:", len(list(mine.parent.iterdir())), flush=True)
time.sleep(0.2)
mine.rmdir()
(out / "runs" / name).mkdir(parents=True)
(out / "runs" / name / "results.json").write_text('{"test": {"bleu": 12.5}, "command": "train"}')
"""
# Saves when it is told to, and would go on for long.
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
PROGRAMS = {"ends": ENDS, "lasts": LASTS, "fails": FAILS}


@pytest.fixture
def kept(monkeypatch) -> list[str]:
    """Let the first word of a line choose a program, and note what would be kept."""
    found: list[str] = []

    def command(line: str, out: Path) -> list[str]:
        return [sys.executable, "-c", PROGRAMS[line.split("-")[0]], line, str(out)]

    def keep(words: list[str]) -> int:
        found.extend(Path(word).name for word in words[: words.index("--out")])
        return 0

    monkeypatch.setattr(runs_together, "command", command)
    monkeypatch.setattr(runs_together.keep_runs, "main", keep)
    return found


def together(tmp_path: Path, *lines: str, budget: float = PATIENCE, slots: int = 2) -> tuple[int, dict[str, Any]]:
    runs = tmp_path / "runs.txt"
    runs.write_text("# settings\n\n" + "\n".join(lines) + "\n")
    given = [str(runs), f"--out={tmp_path / 'out'}", f"--budget={budget}", f"--slots={slots}"]
    status = runs_together.main(given)
    return status, json.loads((tmp_path / "out" / "runs_together.json").read_text())


def test_no_more_than_the_slots_run_at_a_time_and_all_are_kept(tmp_path, kept):
    lines = [f"ends-{number}" for number in range(5)]
    status, report = together(tmp_path, *lines)
    assert status == 0
    assert [record["status"] for record in report["records"]] == [0] * 5
    assert sorted(one["bleu"] for one in report["runs"]) == [12.5] * 5
    assert sorted(kept) == lines
    logs = [path.read_text() for path in (tmp_path / "out" / "logs").iterdir()]
    assert len(logs) == 5
    assert {line.split()[1] for line in logs} <= {"1", "2"}
    with tarfile.open(tmp_path / "out" / "runs_together.tar.gz") as file:
        assert "runs_together.json" in file.getnames()
        assert not [name for name in file.getnames() if name.startswith("runs/")]


def test_at_the_end_of_the_budget_runs_save_and_others_do_not_start(tmp_path, kept, monkeypatch):
    monkeypatch.setattr(runs_together, "_GRACE", PATIENCE)
    ready = tmp_path / "out" / "ready"
    # The deadline comes as soon as the first run can save
    monkeypatch.setattr(runs_together.Together, "deadline", Deadline(ready), raising=False)
    status, report = together(tmp_path, "lasts-1", "ends-1", budget=2 * PATIENCE, slots=1)
    assert status == runs_together.LEFT
    assert (tmp_path / "out" / "saved").read_text() == "lasts-1"
    assert [(record["settings"], record["status"]) for record in report["records"]] == [("lasts-1", None)]
    assert report["not started"] == ["ends-1"]
    assert kept == []


class Deadline:
    """A deadline that has come once a file is there; what is assigned to it has no effect."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __get__(self, *_: Any) -> float:
        return 0.0 if self.path.exists() else float("inf")

    def __set__(self, *_: Any) -> None:
        pass


def test_a_run_that_fails_is_shown_and_the_others_go_on(tmp_path, kept, capsys):
    status, report = together(tmp_path, "fails-1", "ends-1", slots=1)
    assert status == 1
    assert [record["status"] for record in report["records"]] == [2, 0]
    assert "no such mixer" in capsys.readouterr().out
    assert kept == ["ends-1"]


def test_lines_that_cannot_be_run_are_refused(tmp_path, kept, capsys, monkeypatch):
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
