"""Learning rates and validations by a simulated clock: slow starts, slow validations, limits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import Mock

import pytest

from seq2seq.settings.declare import read_section
from seq2seq.settings.optim import OptimSettings
from seq2seq.settings.trainer import TrainerSettings
from seq2seq.training.bounds import budget as module
from seq2seq.training.bounds.budget import Budget
from seq2seq.training.callbacks.validation import Validation
from seq2seq.training.lightning_parts.run_state import RunState
from seq2seq.training.objective.optim import learning_rate

ANNEAL = OptimSettings(lr=1.0, schedule="anneal", warmup_share=0.25, decay_share=0.2)


class Case(NamedTuple):
    """Seconds that the parts of a run take, and an estimate of the first validation."""

    first: float = 1.0
    update: float = 1.0
    validation: float = 0.0
    expected: float = 0.0


class Ended(NamedTuple):
    """The rates of a run's updates, and the second at which it ended with its last validation."""

    rates: list[float]
    seconds: float
    validations: int


FITTING: Any = SimpleNamespace(state=SimpleNamespace(fn="fit"), global_step=1)


def trainer(step: int, *, batches: int = 10, window: int = 1) -> Any:
    """Lightning's trainer after update `step`."""
    epoch, batch = divmod(step * window - 1, batches)
    return SimpleNamespace(
        global_step=step,
        world_size=1,
        current_epoch=epoch,
        num_training_batches=batches,
        accumulate_grad_batches=window,
        is_last_batch=batch + 1 == batches,
        fit_loop=SimpleNamespace(epoch_loop=SimpleNamespace(batch_idx=batch)),
    )


def simulated(monkeypatch: pytest.MonkeyPatch, case: Case, **settings: Any) -> Ended:
    """Simulate a run whose parts take the seconds of the case."""
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    state = RunState(TrainerSettings(**settings))
    budget = state.budget
    schedule = Validation(state, Mock())
    lightning = trainer(1, batches=10**6)
    lightning.global_step = 0
    budget.validation_seconds = case.expected
    budget.begin()
    budget.clock.start()
    rates, validations = [], 0

    def validate() -> None:
        budget.training.stop()
        budget.begin_validation()
        now[0] += case.validation
        schedule.on_validation_end(FITTING, Mock())

    while not budget.reached(lightning):
        budget.training.start()
        rates.append(learning_rate(lightning.global_step + 1, ANNEAL, budget.schedule_share(lightning)))
        now[0] += case.update if lightning.global_step else case.first
        lightning.global_step += 1
        budget.end_update()
        if not budget.reached(lightning) and schedule.is_due(lightning):
            validate()
            validations += 1
    validate()
    return Ended(rates, budget.clock.seconds, validations)


CASES = {
    "plain": (Case(), {}),
    "slow start": (Case(first=120.0), {}),
    "slow validations": (Case(validation=9.0, expected=9.0), {"val_steps": 50}),
    "both, and validations that a user wants": (
        Case(first=60.0, validation=12.0, expected=12.0),
        {"val_time": 30.0, "val_share": 0.4},
    ),
}


@pytest.mark.parametrize(("case", "settings"), CASES.values(), ids=CASES)
def test_a_rate_by_time_warms_up_and_falls_in_its_shares_of_training(monkeypatch, case, settings):
    rates, seconds, validations = simulated(monkeypatch, case, max_time=400.0, **settings)
    after_start = rates[1:]
    rising = sum(rate < 1 for rate in after_start[: len(after_start) // 2]) / len(after_start)
    falling = sum(rate < 1 for rate in after_start[len(after_start) // 2 :]) / len(after_start)
    assert rising == pytest.approx(0.25, abs=0.03)
    assert falling == pytest.approx(0.2, abs=0.03)
    assert rates[-1] < 0.01
    assert seconds == pytest.approx(400, abs=3)
    assert validations == 0 if not settings else validations > 1


@pytest.mark.parametrize(("actual", "expected"), [(6.0, 9.0), (9.0, 6.0)])
def test_a_wrong_estimate_of_validations_keeps_the_limit(monkeypatch, actual, expected):
    case = Case(update=0.3, validation=actual, expected=expected)
    assert simulated(monkeypatch, case, max_time=95.0).seconds == pytest.approx(95, abs=3.2)


def test_the_last_update_is_the_one_that_ends_nearest_to_the_limit(monkeypatch):
    for limit, updates in ((31.0, 4), (34.0, 5)):
        found = simulated(monkeypatch, Case(first=1.0, update=9.0), max_time=limit)
        assert len(found.rates) == updates


def test_half_of_a_limit_at_most_is_reserved(monkeypatch):
    found = simulated(monkeypatch, Case(validation=1.0, expected=500.0), max_time=100.0)
    assert len(found.rates) == 50


def test_a_start_beyond_the_limit_leaves_one_update(monkeypatch):
    assert len(simulated(monkeypatch, Case(first=62.0), max_time=50.0).rates) == 1


def test_a_count_ignores_the_clock(monkeypatch):
    fast, slow = (
        simulated(monkeypatch, case, max_steps=40, max_time=1e6)
        for case in (Case(), Case(first=99.0, update=7.0, validation=50.0))
    )
    assert fast.rates == slow.rates


def test_a_resumed_part_has_a_start_of_its_own():
    """A resumed part has its own start: its first update does not count as training."""
    settings = read_section(TrainerSettings, {"max_time": "100s"}, "trainer")
    first, second = Budget(settings), Budget(settings)
    first.begin()
    first.training.load(8.0)
    first.end_update()
    first.training.load(30.0)
    first.end_update()
    first.clock.load(30.0)
    assert (first.start_seconds, first.trained_seconds, first.update_seconds) == (8, 22, 22)
    second.load_state_dict(first.state_dict())
    second.training.load(30.0)
    second.begin()
    assert second.trained_share() == first.trained_share() == pytest.approx(22 / 92)
    second.training.load(41.0)
    assert second.trained_seconds == 22
    second.end_update()
    assert (second.start_seconds, second.trained_seconds) == (19, 22)


# ---- validations


class Clocked:
    """Validations whose clock is set by hand."""

    def __init__(self, **settings: Any) -> None:
        state = RunState(TrainerSettings(**settings))
        self.budget = state.budget
        self.schedule = Validation(state, Mock())

    def validate(self, *, at: float, took: float) -> None:
        self.budget.clock.load(at)
        self.budget.begin_validation()
        self.budget.clock.load(at + took)
        self.schedule.on_validation_end(FITTING, Mock())

    def due(self, step: int, *, at: float) -> bool:
        # All time is training, except validations
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
    assert {"validated": 160.0, "waiting": False}.items() <= schedule.schedule.state_dict().items()
    assert schedule.budget.validations_spent == 8


def test_a_share_of_one_is_no_limit():
    schedule = Clocked(max_time=360.0, val_steps=5, val_share=1.0)
    schedule.validate(at=10, took=100)
    assert schedule.due(5, at=111)
    # A run that only the clock ends: validations by epochs and updates wait as well
    schedule = Clocked(max_time=360.0, val_steps=5)
    schedule.validate(at=10, took=100)
    assert not schedule.due(5, at=111)


def test_a_resumed_run_knows_its_validations():
    first, second = (Clocked(max_time=360.0, val_time=30.0) for _ in range(2))
    first.validate(at=100, took=4)
    second.schedule.load_state_dict(first.schedule.state_dict())
    second.budget.load_state_dict(first.budget.state_dict())
    assert {"validated": 104.0, "waiting": False}.items() <= second.schedule.state_dict().items()
    assert second.budget.validations_spent == 4


def test_a_postponed_validation_is_made_once_there_is_time():
    """A postponed validation does not wait for the next interval, not even in a resumed run."""
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
