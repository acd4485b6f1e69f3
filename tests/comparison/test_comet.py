"""Test scores by COMET, with a stand-in for its package, in a separate environment."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest
import yaml

from seq2seq.comparison.comet import with_comet
from seq2seq.runs.folder import RunFolder
from seq2seq.runs.results import RunResult

# Prints like the real package; the score of a translation is its length relative to the reference.
PACKAGE = """
from types import SimpleNamespace

def download_model(name):
    print("downloading", name)
    if name == "unknown":
        raise KeyError("Model 'unknown' not supported by COMET.")
    return "/models/" + name

class Model:
    def predict(self, rows, batch_size, gpus, progress_bar):
        print("predicting", len(rows))
        assert len({tuple(row.items()) for row in rows}) == len(rows)
        assert all(row["src"] == row["ref"].upper() for row in rows)
        return SimpleNamespace(scores=[len(row["mt"]) / len(row["ref"]) for row in rows])

def load_from_checkpoint(path):
    assert path == "/models/tiny"
    return Model()
"""
TORCH = "class cuda:\n    is_available = staticmethod(lambda: False)\n"


@pytest.fixture
def python(tmp_path) -> Path:
    """An interpreter that has the stand-in."""
    for name, text in (("comet", PACKAGE), ("torch", TORCH)):
        (tmp_path / "site" / name).mkdir(parents=True)
        (tmp_path / "site" / name / "__init__.py").write_text(text)
    # Replaces -I, with which Python would not find the stand-in
    code = f"import runpy, sys; sys.path.insert(0, {str(tmp_path / 'site')!r}); "
    code += "runpy.run_path(sys.argv[2], run_name='__main__')"
    path = tmp_path / "python"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{code}" "$@"\n')
    path.chmod(path.stat().st_mode | stat.S_IEXEC)
    return path


def saved(path: Path, translations: list[str] | None) -> RunResult:
    folder = RunFolder(path)
    folder.create(yaml.safe_dump({"seed": 1}))
    refs = ["ab", "äöüß"]
    if translations is not None:
        folder.save_test(src=[line.upper() for line in refs], ref=refs, hyp=translations)
    return RunResult(folder, "gru", {}, {"test": {"bleu": 1.0}})


def test_scores_are_means_of_the_sentences(tmp_path, python):
    """Equal sentences of two runs are scored once; a run without translations stays as it is."""
    texts = {"a": ["a", "äöüß"], "b": ["ab", "äöüß"], "c": None}
    runs = with_comet([saved(tmp_path / name, text) for name, text in texts.items()], str(python), "tiny")
    assert [run.results["test"] for run in runs] == [
        {"bleu": 1.0, "comet": 75},
        {"bleu": 1.0, "comet": 100},
        {"bleu": 1.0},
    ]


def test_errors_are_one_line(tmp_path, python):
    run = saved(tmp_path / "run", ["a", "b"])
    with pytest.raises(ValueError, match=r"has no COMET .*pip install unbabel-comet") as error:
        with_comet([run], sys.executable, "tiny")
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="cannot be run: No such file"):
        with_comet([run], str(tmp_path / "none"), "tiny")
    with pytest.raises(ValueError, match="exit status 1: KeyError: \"Model 'unknown' not supported"):
        with_comet([run], str(python), "unknown")
