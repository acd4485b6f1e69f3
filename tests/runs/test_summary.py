"""The last lines of a run: scores, training, time, model, next commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from seq2seq.runs.folder import RunFolder
from seq2seq.runs.summary import summary

RESULTS = {
    "mixer": "gru", "best_step": 4000, "steps": 6000,
    "valid": {"bleu": 31.254, "chrf": 50.0}, "test": {"bleu": 30.5, "chrf": 49.999},
    "epochs": 2.5, "ended_by": "max_steps", "seconds": 3700.2, "test_seconds": 65.0, "parameters": 1234567,
    "target_tokens_per_second": 4321.6, "accelerator": "cpu", "precision": "32",
}  # fmt: skip


def test_lines_of_a_finished_run():
    lines = summary(RunFolder(Path("runs/a b")), RESULTS, trust=["seq2seq", "mine"]).splitlines()
    assert lines == [
        "results: runs/a b/results.json",
        "  scores    test BLEU 30.50 chrF 50.00, valid BLEU 31.25 chrF 50.00 "
        "(checkpoints/best.safetensors of update 4,000)",
        "  training  6,000 updates, 2.50 epochs, ended by trainer.max_steps",
        "  time      1:01:40 of training and validation, 0:01:05 for the test; 4,322 target tokens/s on cpu (32)",
        "  model     1,234,567 parameters, gru",
        "  next      python -m seq2seq.translate --ckpt 'runs/a b' --trust mine",
        "            python -m seq2seq.score --ckpt 'runs/a b' --trust mine",
        "            python -m seq2seq.compare runs",
    ]


@pytest.mark.parametrize(("bound", "said"), [("callbacks", "ended by callbacks"), ("patience", "by trainer.patience")])
def test_a_run_without_a_test_names_its_end(bound, said):
    results = {key: value for key, value in RESULTS.items() if not key.startswith("test")} | {"ended_by": bound}
    text = summary(RunFolder(Path("runs/a")), results)
    assert said in text
    assert "test" not in text


def test_a_stream_has_no_epochs():
    assert "6,000 updates, ended by" in summary(RunFolder(Path("runs/a")), RESULTS | {"epochs": 0.0})
