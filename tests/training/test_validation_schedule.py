"""Validations by updates, epochs and the clock, and omitted ones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from seq2seq.settings.trainer import TrainerSettings
from seq2seq.training.bounds.budget import Budget
from seq2seq.training.callbacks.validation import ValidationSchedule


def trainer(step: int, *, batches: int = 10, window: int = 1) -> Any:
    """Lightning's trainer after update `step`."""
    epoch, batch = divmod(step * window - 1, batches)
    return SimpleNamespace(
        global_step=step,
        current_epoch=epoch,
        num_training_batches=batches,
        accumulate_grad_batches=window,
        is_last_batch=batch + 1 == batches,
        fit_loop=SimpleNamespace(epoch_loop=SimpleNamespace(batch_idx=batch)),
    )


class Clocked:
    """A schedule whose clock is set by hand."""

    def __init__(self, **settings: Any) -> None:
        given = TrainerSettings(**settings)
        self.budget = Budget(given)
        self.schedule = ValidationSchedule(given, self.budget)

    def validate(self, *, at: float, took: float) -> None:
        self.budget.clock.load(at)
        self.budget.begin_validation()
        self.budget.clock.load(at + took)
        self.schedule.end()

    def due(self, step: int, *, at: float) -> bool:
        # All time is training, but for validations
        self.budget.clock.load(at)
        self.budget._begun = at - self.budget.validations_spent
        return self.schedule.is_due(trainer(step))


@pytest.mark.parametrize("bound", [{"max_steps": 45}, {"max_epochs": 4}, {"max_steps": 1000, "max_epochs": 4}])
def test_counted_validations_do_not_ask_the_clock(bound):
    schedule = Clocked(val_steps=8, max_time=100.0, **bound)
    schedule.validate(at=0, took=99)
    due = [step for step in range(1, 40) if schedule.due(step, at=99.9)]
    assert due == [8, 16, 24, 32]


def test_no_validation_comes_right_before_the_last():
    for last, expected in ((1003, [250, 500, 750]), (1050, [250, 500, 750, 1000])):
        schedule = Clocked(val_steps=250, max_steps=last)
        assert [step for step in range(1, last) if schedule.due(step, at=0)] == expected
    # 5 updates an epoch: the run ends at update 11
    schedule = Clocked(val_steps=20, max_epochs=11)
    given = [schedule.schedule.is_due(trainer(step, batches=10, window=2)) for step in range(1, 56)]
    assert [step for step, due in enumerate(given, 1) if due] == [20, 40]


def test_a_run_without_an_interval_is_validated_every_epoch():
    schedule = Clocked(max_epochs=4)
    assert [step for step in range(1, 40) if schedule.due(step, at=0)] == [10, 20, 30]


def test_the_clock_bounds_the_share_of_validations(caplog):
    caplog.set_level("INFO")
    schedule = Clocked(max_time=360.0, val_time=30.0)
    assert not schedule.due(1, at=29)
    assert schedule.due(2, at=30)
    schedule.validate(at=30, took=4)
    assert not schedule.due(3, at=70)
    assert "a validation takes 4 s: the next one waits" in caplog.text
    # 8 of 160 seconds are a twentieth
    assert not schedule.due(4, at=155)
    assert schedule.due(5, at=156)
    schedule.validate(at=156, took=4)
    assert not schedule.due(6, at=235)
    assert schedule.due(7, at=236)
    assert not schedule.due(8, at=335)  # no twentieth of the run would be left
    assert schedule.schedule.state_dict() == {"validated": 160.0, "waiting": False}
    assert schedule.budget.validations_spent == 8


def test_a_share_of_one_is_no_limit():
    schedule = Clocked(max_time=360.0, val_steps=5, val_share=1.0)
    schedule.validate(at=10, took=100)
    assert schedule.due(5, at=111)
    # A run that the clock alone ends: epochs and updates wait as well
    schedule = Clocked(max_time=360.0, val_steps=5)
    schedule.validate(at=10, took=100)
    assert not schedule.due(5, at=111)


def test_a_resumed_run_knows_its_validations():
    first, second = (Clocked(max_time=360.0, val_time=30.0) for _ in range(2))
    first.validate(at=100, took=4)
    second.schedule.load_state_dict(first.schedule.state_dict())
    second.budget.load_state_dict(first.budget.state_dict())
    assert second.schedule.state_dict() == {"validated": 104.0, "waiting": False}
    assert second.budget.validations_spent == 4


def test_a_postponed_validation_is_made_once_there_is_time():
    """It does not wait for the next interval, not even in a resumed run."""
    for interval, due in ((5, 5), (None, 10)):
        schedule = Clocked(max_time=1000.0, val_steps=interval)
        schedule.validate(at=10, took=10)
        assert not schedule.due(due - 1, at=99)
        assert not schedule.due(due, at=100)
        resumed = Clocked(max_time=1000.0, val_steps=interval)
        resumed.validate(at=10, took=10)
        resumed.schedule.load_state_dict(schedule.schedule.state_dict())
        for each in (schedule, resumed):
            # 20 of 400 seconds are a twentieth
            assert not each.due(due + 1, at=389)
            assert each.due(due + 2, at=390)
            each.validate(at=390, took=10)
            assert not each.due(due + 3, at=999)
