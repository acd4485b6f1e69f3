"""Kept runs with their test set again: what compare needs for p values, and scores that follow from it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from benchmarks import restore_runs
from seq2seq.metrics import scorers
from seq2seq.runs.folder import RunFolder
from seq2seq.runs.results import collect

REFERENCES = ["the cat sat on the mat today", "a dog runs through the wet grass", "two men are talking"]
TRANSLATIONS = ["the cat sat on a mat today", "a dog runs through the grass", "two men talk"]


@pytest.fixture
def corpus(tmp_path) -> tuple[Path, Path]:
    """Files of the sources and references."""
    paths = (tmp_path / "test.de", tmp_path / "test.en")
    for path, lines in zip(paths, (["eins", "zwei", "drei"], REFERENCES), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return paths


def kept(tmp_path: Path, name: str, bleu: float, translations: list[str] | None = TRANSLATIONS) -> None:
    run = RunFolder(tmp_path / "kept" / name)
    run.create(yaml.safe_dump({"seed": 1, "data": {"name": "toy"}, "mixer": {}}))
    chrf = scorers.chrf(TRANSLATIONS, [REFERENCES]).value
    test = {"bleu": bleu, "chrf": chrf, "signatures": ["nrefs:1|case:mixed|tok:13a|version:2.6.0"]}
    run.results.write_text(json.dumps({"mixer": name, "test": test, "valid": {"bleu": 1.0, "chrf": 1.0}}))
    if translations is not None:
        run.test_file("hyp").write_text("".join(f"{line}\n" for line in translations), "utf-8")


def restored(tmp_path: Path, corpus: tuple[Path, Path]) -> int:
    source, references = corpus
    words = ["--source", str(source), "--references", str(references), "--out", str(tmp_path / "out")]
    return restore_runs.main([str(tmp_path / "kept"), *words])


def test_restored_runs_have_p_values(tmp_path, corpus):
    bleu = scorers.bleu(TRANSLATIONS, [REFERENCES]).value
    kept(tmp_path, "gru", bleu)
    assert restored(tmp_path, corpus) == 0
    (run,) = collect([str(tmp_path / "out")], "test").runs
    assert run.translated
    assert run.test_digest() is not None
    assert run.test_lines("ref") == REFERENCES
    assert run.test_lines("src") == ["eins", "zwei", "drei"]
    assert run.score("test", "bleu") == bleu
    # A second call leaves existing files alone
    assert restored(tmp_path, corpus) == 1


def test_runs_whose_scores_do_not_follow_are_left_out(tmp_path, corpus, capsys):
    bleu = scorers.bleu(TRANSLATIONS, [REFERENCES]).value
    kept(tmp_path, "other", bleu + 0.01)
    kept(tmp_path, "short", bleu, TRANSLATIONS[:2])
    kept(tmp_path, "none", bleu, None)
    assert restored(tmp_path, corpus) == 1
    printed = capsys.readouterr().out
    assert f"other: test.hyp has {bleu:.2f} BLEU, and results.json says {bleu + 0.01:.2f}" in printed
    assert "short: test.ref has 3 lines, test.hyp has 2 lines" in printed
    assert "none: it has no translations" in printed
    assert not (tmp_path / "out").exists()
