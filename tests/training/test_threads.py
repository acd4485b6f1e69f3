"""The number of threads of a run: what decides it, and that measuring it leaves no trace."""

from __future__ import annotations

import json
import os
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tiny
import torch
import toycorpus

from seq2seq.network.build import build_model
from seq2seq.settings.optim import OptimSettings
from seq2seq.settings.search import SearchSettings
from seq2seq.training import threads
from seq2seq.training.auto_batch_size import Rehearsal
from seq2seq.training.lightning_parts.task import TranslationTask
from seq2seq.training.run import TrainingRun

EXHAUSTIVE = {"test_a_run_keeps_the_number_that_it_began_with", "test_measuring_leaves_no_trace"}


@pytest.fixture
def two_threads(monkeypatch):
    with threads.use_threads(2):
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        yield


def rehearse() -> Rehearsal:
    tokenizer = tiny.tokenizer()
    torch.manual_seed(1)
    task = TranslationTask(
        model=build_model(tiny.model_config(tokenizer)),
        tokenizer=tokenizer,
        description={},
        optim=OptimSettings(),
        search=SearchSettings(),
        seed=1,
    )
    return Rehearsal(task, longest=(4, 6), device=torch.device("cpu"), precision="32-true")


def test_what_decides_the_number_of_threads(monkeypatch, two_threads):
    assert threads.known_threads(None, None) is None
    assert threads.known_threads(None, 1) == 1
    assert threads.known_threads(3, 1) == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert threads.known_threads(None, 1) == 2
    assert threads.known_threads(1, None) == 1
    monkeypatch.delenv("OMP_NUM_THREADS")
    # On eight cores
    monkeypatch.setattr(threads, "_suggested_max_num_threads", lambda processes: 8 // processes)
    assert [threads.known_threads(None, 8, processes) for processes in (1, 2)] == [8, None]
    torch.set_num_threads(1)
    assert threads.known_threads(None, 4) == 4
    assert threads.known_threads(None, None) == 1


def test_one_thread_unless_all_are_clearly_faster():
    assert threads.choose({1: 10.0, 2: 10.9}) == 1
    assert threads.choose({1: 10.0, 2: 11.1}) == 2
    assert threads.choose({1: 10.0, 2: 1.0}) == 1


def test_rates_are_medians_of_alternating_rounds(monkeypatch, two_threads):
    monkeypatch.setattr(threads, "_ROUND_SECONDS", 0.0)
    seen: list[int] = []
    now = [0.0]

    def update() -> None:
        seen.append(torch.get_num_threads())
        now[0] += 100.0 if len(seen) == 3 else 1 / torch.get_num_threads()

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(time, "process_time", lambda: now[0])
    monkeypatch.setattr(threads, "_LIMIT", 1000.0)
    rates = threads.measure_rates(update, (1, 2))
    assert seen == [1, *([1, 2] * 3)]
    assert rates == {1: 1.0, 2: 2.0}, "one slow round of three changes nothing"
    seen.clear()
    monkeypatch.setattr(threads, "_LIMIT", 1.0)
    threads.measure_rates(update, (1, 2))
    assert len(seen) == 3, "no round begins after the limit"


def test_all_threads_are_not_tried_on_a_busy_machine(monkeypatch, two_threads, caplog):
    caplog.set_level("INFO")
    seen: list[int] = []
    now = [0.0]

    def update(*_: int) -> None:
        seen.append(torch.get_num_threads())
        now[0] += 1.0

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(time, "process_time", lambda: now[0] / 3)
    assert threads.measure_threads(lambda: SimpleNamespace(update=update), (3, 4, 6)) == 1  # type: ignore[arg-type, return-value]
    assert seen == [1, 1]
    assert "busy" in caplog.text


def test_measuring_leaves_no_trace(monkeypatch, two_threads, caplog):
    caplog.set_level("INFO")
    monkeypatch.setattr(threads, "_ROUND_SECONDS", 0.0)
    state = torch.get_rng_state()
    count = threads.measure_threads(rehearse, (3, 4, 6))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == 2
    assert count in (1, 2)
    assert f"trainer.threads={count} skips this" in caplog.text


def test_a_typical_batch_is_full():
    def prepared(src: list[int], tgt: list[int], *, stream: bool = False) -> Any:
        data = SimpleNamespace(lengths=(np.array(src), np.array(tgt)))
        plan = SimpleNamespace(stream=stream, require_max_tokens=lambda: 512, part_tokens=4096)
        return SimpleNamespace(plan=plan, longest=(max(src), max(tgt)), split=lambda name: data)

    assert threads.typical_shape(prepared([3, 11, 90], [9, 9, 80])) == (512 // 12, 12, 10)
    assert threads.typical_shape(prepared([900], [3]))[0] == 1
    assert threads.typical_shape(prepared([400], [10], stream=True)) == (512 // 24, 24, 10)


def test_a_run_keeps_the_number_that_it_began_with(tmp_path, monkeypatch):
    """Checkpoint and results have the number; a resumed run uses it, and then its process gets its own number back."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    corpus = toycorpus.write(tmp_path / "toy")

    def execute(*overrides: str) -> TrainingRun:
        settings = toycorpus.settings(corpus, tmp_path, "run=it", "trainer.test=false", "resume=auto", *overrides)
        run = toycorpus.execute(settings)
        assert torch.get_num_threads() == 1
        return run

    run = execute("trainer.threads=2", "trainer.max_steps=1")
    assert json.loads(run.folder.results.read_text())["threads"] == 2
    resumed = execute("trainer.max_steps=2")
    assert json.loads(resumed.folder.results.read_text())["threads"] == 2


def test_lightning_divides_the_cores_only_where_nothing_is_set(monkeypatch, two_threads):
    from lightning.fabric.utilities.distributed import _set_num_threads_if_needed

    with threads.use_threads(1):
        _set_num_threads_if_needed(num_processes=2)
        assert torch.get_num_threads() == 1
    with threads.use_threads(None):
        _set_num_threads_if_needed(num_processes=1)
    # The next job of a sweep chooses for itself
    assert "OMP_NUM_THREADS" not in os.environ
    assert torch.get_num_threads() == 2
