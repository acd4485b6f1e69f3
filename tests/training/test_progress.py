"""Progress of a run: averages since the last row, the best validation, and what a resumed run knows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

from seq2seq.settings.trainer import TrainerSettings
from seq2seq.training.bounds.budget import Budget
from seq2seq.training.callbacks.progress import IntervalAverages, ProgressLog, TimeLeft
from seq2seq.training.lightning_parts.run_state import BestScore, RunState


def test_averages_are_of_what_came_since_the_last_ones():
    """Sums of loss, nll and tokens, and another that it does not read."""
    averages = IntervalAverages()
    task: Any = SimpleNamespace(train_sums=torch.tensor([6.0, 3.0, 2.0, 1.0]))
    assert averages.take(task, 4.0) == pytest.approx({"loss": 3.0, "nll": 1.5, "tokens_per_second": 0.5})
    task.train_sums = torch.tensor([10.0, 5.0, 6.0, 2.0])
    assert averages.take(task, 6.0) == pytest.approx({"loss": 1.0, "nll": 0.5, "tokens_per_second": 2.0})


def test_a_resumed_log_goes_on_from_its_last_row():
    settings = TrainerSettings(max_steps=9)
    log = ProgressLog(state=RunState(settings), settings=settings, console=Console(quiet=True))
    state = log.state_dict() | {"seconds": 70.0, "cpu_seconds": 60.0, "logged": [8.0, 6.0, 4.0, 2.0]}
    log.load_state_dict(state)
    assert log.state_dict() == state
    assert log.watch.seconds == 70


def test_cpu_seconds_of_several_processes_stay_unknown():
    """A run that two processes have begun and one ends: the other's seconds are not in the file."""
    two, one = TrainerSettings(max_steps=9, devices=2, accelerator="cpu"), TrainerSettings(max_steps=9)
    logs = [ProgressLog(state=RunState(each), settings=each, console=Console(quiet=True)) for each in (two, one)]
    logs[0].watch.load(70.0, 60.0)
    logs[1].load_state_dict(logs[0].state_dict())
    assert logs[1].watch.seconds == 70
    assert logs[1].state.cpu_seconds is None


def test_one_epoch_is_announced_as_one(monkeypatch):
    settings = TrainerSettings(max_epochs=1, max_steps=2)
    left = TimeLeft(Budget(settings))
    trainer: Any = None
    monkeypatch.setattr(left, "shown", lambda _: "0:01:00")
    assert left.announcement(trainer) == "about 0:01:00 left of 1 epoch, 2 updates"


def test_of_validations_with_equal_bleu_the_likelier_is_the_best():
    best, found = BestScore(), []
    for step, (bleu, nll) in enumerate([(0.0, 5.0), (0.0, 4.0), (0.0, 4.5), (1.0, 9.0), (1.0, 9.0)], 1):
        best.add(step, bleu, {"nll": nll})
        found.append(best.improved)
    assert found == [True, True, False, True, False]
    assert (best.step, best.bleu, best.report) == (4, 1.0, {"nll": 9.0})
