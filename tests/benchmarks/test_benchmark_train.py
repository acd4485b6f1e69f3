"""The benchmark of training: contestants take turns, and a peer that is not installed is named."""

from __future__ import annotations

import importlib.util
import json

import pytest
import torch

from benchmarks import train

TINY = ("mixer=transformer", "model.dim=16", "model.ffn_dim=32", "model.encoder_layers=1", "model.decoder_layers=1")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setitem(train.MODELS, "base", (TINY, (40, 40), "transformer", {}))
    monkeypatch.setattr(train, "matrix_gflops", lambda: 1.0)


def test_every_contestant_gets_a_row_and_a_ratio(tmp_path, monkeypatch, capsys):
    # CPU seconds of a step: ours and the peer's, in turns
    clock = iter([10 * turn + tick for turn in range(5) for tick in (0, 1, 5, 8)])
    monkeypatch.setattr(train, "contestants", lambda name, peers: dict.fromkeys(("here", "peer"), contestant))
    contestant = train.ours(train.settings(TINY, (40, 40)), train.Batch((40, 40)))
    monkeypatch.setattr(train.time, "process_time", lambda: float(next(clock)))
    monkeypatch.setattr("sys.argv", ["train", "--only", "base", "--steps", "3", "--peers", "--out", str(tmp_path)])
    assert train.main() == 0
    here, peer = json.loads((tmp_path / "train.json").read_text())["results"]
    tokens = train.ROWS * train.LENGTH
    assert (here["tokens_per_cpu_second"], here["ratio"]) == (tokens, 1.0)
    assert (peer["tokens_per_cpu_second"], peer["ratio"]) == (round(tokens / 3, 1), 3.0)
    assert "peer" in capsys.readouterr().out


def test_a_step_reaches_every_parameter(monkeypatch):
    contestant = train.ours(train.settings(TINY, (40, 40)), train.Batch((40, 40)))
    monkeypatch.setattr(contestant.model, "zero_grad", lambda set_to_none: None)
    contestant()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in contestant.model.parameters())


def test_a_peer_that_is_not_installed_is_named(monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr("sys.argv", ["train", "--peers", "fairseq"])
    with pytest.raises(SystemExit):
        train.main()
    assert "fairseq cannot be imported" in capsys.readouterr().err
