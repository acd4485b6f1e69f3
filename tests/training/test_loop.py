"""The page about the training loop: a run calls the hooks in its order."""

from __future__ import annotations

import functools
import re
from typing import Any

import lightning as L
import pytest
import toycorpus

from seq2seq.training import loop
from seq2seq.training.lightning_parts.task import TranslationTask
from seq2seq.training.objective.muon import MuonWithAdam

# A method on the page, four spaces in
LINE = re.compile(r"^    (\w+\.\w+)( |$)", re.MULTILINE)
# Settings that each add a callback
KEPT = ("trainer.ema=0.9", "trainer.keep_last=1", "trainer.keep_best=1", "trainer.save_time=0.001")
# What Lightning asks a callback for at each checkpoint
STATE = {"state_dict", "load_state_dict", "on_save_checkpoint", "on_load_checkpoint", "on_exception"}


def sections() -> list[list[str]]:
    """Methods by section of the page."""
    parts = re.split(r"^\S.*:$", loop.__doc__ or "", flags=re.MULTILINE)
    return [found for part in parts if (found := [name for name, _ in LINE.findall(part)])]


def record(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note every hook of the callbacks and the task that a run calls, by class and name."""
    calls: list[str] = []

    def noting(function: Any, name: str) -> Any:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            return function(*args, **kwargs)

        return call

    steps = {"training_step", "validation_step", "test_step", "backward", "optimizer_zero_grad", "lr_scheduler_step"}
    callbacks = [cls for cls in vars(loop).values() if isinstance(cls, type) and issubclass(cls, L.Callback)]
    for cls in (*callbacks, TranslationTask):
        for name, function in {**vars(cls)}.items():
            if (name.startswith(("on_", "configure_")) or name in {"decide", *steps}) and name not in STATE:
                monkeypatch.setattr(cls, name, noting(function, f"{cls.__name__}.{name}"))
    # Lightning calls the step with a closure that computes the gradients: note the update after it
    weights = vars(MuonWithAdam)["_update"]
    monkeypatch.setattr(MuonWithAdam, "_update", noting(weights, "Optimizer.step"))
    return calls


def test_a_run_calls_the_hooks_in_the_order_of_the_page(tmp_path, monkeypatch):
    calls = record(monkeypatch)
    words = ("optim=muon", "trainer.accumulate=2", "trainer.accumulate_start=1", "trainer.val_steps=2", *KEPT)
    corpus = toycorpus.write(tmp_path / "toy", sizes=(60, 6, 6))
    toycorpus.execute(toycorpus.settings(corpus, tmp_path, *words))
    page = sections()
    assert len(page) == 6
    named = [name for section in page for name in section]
    assert len(set(named)) == len(named)
    missing = {"TranslationTask.on_load_checkpoint", "MedianStop.on_validation_end"}  # a resumed run, a sweep's job
    assert set(calls) == set(named) - missing
    for section in page:
        names = [name for name in section if name not in missing]
        begin = calls.index(names[0])
        first = [begin + calls[begin:].index(name) for name in names]
        assert first == sorted(first), section[0]
