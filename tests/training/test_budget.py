"""Schedules by time, with a simulated clock: slow starts, slow validations, limits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from seq2seq.settings.declare import read_section
from seq2seq.settings.optim import OptimSettings
from seq2seq.settings.trainer import TrainerSettings
from seq2seq.training.bounds import budget as module
from seq2seq.training.bounds.budget import Budget
from seq2seq.training.callbacks.validation import ValidationSchedule
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


def simulated(monkeypatch: pytest.MonkeyPatch, case: Case, **settings: Any) -> Ended:
    """Simulate a run whose parts take the seconds of the case."""
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    given = TrainerSettings(**settings)
    budget = Budget(given)
    schedule = ValidationSchedule(given, budget)
    trainer: Any = SimpleNamespace(
        global_step=0, world_size=1, current_epoch=0, num_training_batches=10**6, accumulate_grad_batches=1,
        is_last_batch=False, fit_loop=SimpleNamespace(epoch_loop=SimpleNamespace(batch_idx=0)),
    )  # fmt: skip
    budget.validation_seconds = case.expected
    budget.begin()
    budget.clock.start()
    rates, validations = [], 0

    def validate() -> None:
        budget.training.stop()
        budget.begin_validation()
        now[0] += case.validation
        schedule.end()

    while not budget.reached(trainer):
        budget.training.start()
        rates.append(learning_rate(trainer.global_step + 1, ANNEAL, budget.schedule_share(trainer)))
        now[0] += case.update if trainer.global_step else case.first
        trainer.global_step += 1
        budget.end_update()
        if not budget.reached(trainer) and schedule.is_due(trainer):
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
    """Its first update does not count as training."""
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
