"""Progress of a run: averages since the last row, the best validation, and the state of a resumed run."""

from __future__ import annotations

import math
import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

from seq2seq.settings.trainer import TrainerSettings
from seq2seq.training.bounds.budget import Budget
from seq2seq.training.callbacks.progress import IntervalAverages, Pace, ProgressLog, slow_start
from seq2seq.training.lightning_parts.run_state import BestScore, RunState


def test_averages_begin_with_the_last_row():
    averages = IntervalAverages()
    task: Any = SimpleNamespace(train_sums=torch.tensor([6.0, 3.0, 2.0, 1.0]))
    assert averages.take(task, 4.0) == pytest.approx({"loss": 3.0, "nll": 1.5, "tokens_per_second": 0.5})
    task.train_sums = torch.tensor([10.0, 5.0, 6.0, 2.0])
    assert averages.take(task, 6.0) == pytest.approx({"loss": 1.0, "nll": 0.5, "tokens_per_second": 2.0})
    # All updates were skipped
    assert math.isnan(averages.take(task, 7.0)["loss"])


def test_a_resumed_log_continues_from_its_last_row():
    settings = TrainerSettings(max_steps=9)
    log = ProgressLog(RunState(settings), Console(quiet=True))
    state = log.state_dict() | {"seconds": 70.0, "cpu_seconds": 60.0, "logged": [8.0, 6.0, 4.0, 2.0]}
    log.load_state_dict(state)
    assert log.state_dict() == state
    assert log.watch.seconds == 70


def test_cpu_seconds_of_several_processes_stay_unknown():
    """Two processes begin a run and one ends it: the file has the seconds of only one process."""
    two, one = TrainerSettings(max_steps=9, devices=2, accelerator="cpu"), TrainerSettings(max_steps=9)
    logs = [ProgressLog(RunState(each), Console(quiet=True)) for each in (two, one)]
    logs[0].watch.load(70.0, 60.0)
    logs[1].load_state_dict(logs[0].state_dict())
    assert logs[1].watch.seconds == 70
    assert logs[1].state.cpu_seconds is None


@pytest.mark.parametrize(
    ("limit", "took", "said"),
    [
        (None, 9.0, None),
        (None, 30.0, "the first update took 30.0 s"),
        (90.0, 8.0, None),
        (90.0, 9.5, "the first update took 9.5 s of trainer.max_time=90 s"),
        (90.0, 95.0, "the first update took 95.0 s of trainer.max_time=90 s: .*raise trainer.max_time"),
    ],
)
def test_a_slow_first_update_is_reported(limit, took, said):
    budget = Budget(TrainerSettings(max_steps=9, max_time=limit))
    budget.begin()
    budget.training.load(took)
    budget.clock.load(took)
    budget.end_update()
    text = slow_start(budget)
    assert text is None if said is None else re.fullmatch(said, text or "")


def test_the_time_left_follows_the_load_of_the_machine():
    """An update of 100 takes 1 s, and 10 s from update 20 on."""
    pace = Pace(0.0, 0.0)
    assert pace.left(0.0, 0.0) is None
    found = []
    for update, seconds in ((10, 10.0), (20, 20.0), (30, 120.0), (40, 220.0), (50, 320.0)):
        found.append(pace.left(seconds, update / 100))
        pace.mark(seconds, update / 100)
    assert found == pytest.approx([90, 80, 70, 600, 500])


def test_likelihood_decides_between_validations_with_equal_bleu():
    best, found = BestScore(), []
    for step, (bleu, nll) in enumerate([(0.0, 5.0), (0.0, 4.0), (0.0, 4.5), (1.0, 9.0), (1.0, 9.0)], 1):
        best.add(step, bleu, {"nll": nll})
        found.append(best.improved)
    assert found == [True, True, False, True, False]
    assert (best.step, best.bleu, best.report) == (4, 1.0, {"nll": 9.0})
