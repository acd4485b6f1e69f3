"""The benchmark of training: contestants take turns, and a peer that is not installed is named."""

from __future__ import annotations

import importlib.util
import json

import pytest
import torch

from benchmarks import train

EXHAUSTIVE = {"test_every_contestant_gets_a_row_and_a_ratio"}

TINY = ("mixer=transformer", "model.dim=16", "model.ffn_dim=32", "model.encoder_layers=1", "model.decoder_layers=1")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setitem(train.MODELS, "base", (TINY, (40, 40), "transformer", {}))
    monkeypatch.setattr(train, "matrix_gflops", lambda: 1.0)


# CPU seconds of a step
SECONDS = {"here": 1.0, "fairseq, autocast": 4.0, "fairseq, bf16 weights": 3.0}


class Entrant:
    """A contestant whose steps take the CPU seconds of `SECONDS`."""

    parameters = 7

    def __init__(self, model, way, *, memory):
        self.way, self.memory = way, memory
        started.append(self)

    def step(self):
        turns.append(self.way)
        return SECONDS[self.way]

    def close(self):
        self.way = "closed"


started: list[Entrant] = []
turns: list[str] = []


def test_every_contestant_gets_a_row_and_a_ratio(tmp_path, monkeypatch, capsys):
    started.clear()
    turns.clear()
    monkeypatch.setattr(train, "Entrant", Entrant)
    monkeypatch.setitem(train.PEERS, "fairseq", "json")
    monkeypatch.setattr("sys.argv", ["train", "--only=base", "--steps=3", "--peers=fairseq", f"--out={tmp_path}"])
    assert train.main() == 0
    here, autocast, weights = json.loads((tmp_path / "train.json").read_text())["results"]
    tokens = train.ROWS * train.LENGTH
    assert (here["tokens_per_cpu_second"], here["ratio"]) == (tokens, 1.0)
    assert (autocast["tokens_per_cpu_second"], autocast["ratio"]) == (tokens / 4, 4.0)
    assert (weights["way"], weights["ratio"]) == ("fairseq, bf16 weights", 3.0)
    assert "fairseq, autocast" in capsys.readouterr().out
    # Contestants take turns, with two warm-up steps; the memory settings apply only to this project
    assert turns == list(SECONDS) * 5
    assert [each.memory for each in started] == [True, False, False]
    assert {each.way for each in started} == {"closed"}


def test_peers_may_have_the_same_settings_of_memory(monkeypatch):
    started.clear()
    monkeypatch.setattr(train, "Entrant", Entrant)
    rows = train.measure("base", ["fairseq"], steps=1, same_memory=True)
    assert [each.memory for each in started] == [True, True, True]
    assert all(row["same_memory"] for row in rows)


@pytest.mark.slow
def test_a_contestant_runs_in_a_separate_process():
    entrant = train.Entrant((TINY, (40, 40), "transformer", {}), "here", memory=True)
    assert entrant.parameters == sum(p.numel() for p in here().model.parameters())
    assert entrant.step() > 0
    entrant.close()


def here() -> train.Contestant:
    return train.contestant((TINY, (40, 40), "transformer", {}), "here")


def test_a_step_reaches_every_parameter(monkeypatch):
    contestant = here()
    monkeypatch.setattr(contestant.model, "zero_grad", lambda set_to_none: None)
    contestant()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in contestant.model.parameters())


def test_bf16_weights_have_float32_copies():
    model = torch.nn.Linear(4, 3)
    before = model.weight.detach().clone()
    entrant = train.Contestant(model, lambda: model(torch.ones(2, 4, dtype=torch.bfloat16)).sum(), autocast=False)
    entrant()
    (weight, gradient), *_ = entrant._masters
    assert model.weight.dtype == torch.bfloat16
    assert torch.equal(weight, before)
    assert torch.equal(model.weight, before.bfloat16())
    assert torch.equal(gradient, torch.full((3, 4), 2.0))
    assert not train.Contestant(torch.nn.Linear(4, 3), torch.ones, autocast=True)._masters


def test_a_peer_that_is_not_installed_is_named(monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr("sys.argv", ["train", "--peers", "fairseq"])
    with pytest.raises(SystemExit):
        train.main()
    assert "fairseq cannot be imported" in capsys.readouterr().err
