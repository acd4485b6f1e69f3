"""Threads by the cores that are free."""

from __future__ import annotations

import time

import pytest

from seq2seq.system import cores


@pytest.mark.parametrize(
    ("idle", "own", "most", "threads"),
    [(2.0, 0.0, 2, 2), (0.1, 0.0, 2, 1), (0.2, 0.9, 2, 1), (1.0, 1.0, 2, 2), (30.0, 1.0, 8, 8), (0.0, 0.0, 4, 1)],
)
def test_threads_are_the_cores_that_others_leave(idle, own, most, threads, monkeypatch):
    """Over one second, with the seconds that all cores were idle and that this program has computed."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    now = {"monotonic": 100.0, "process_time": 7.0, "idle": 50.0}
    monkeypatch.setattr(cores, "_idle_seconds", lambda: now["idle"])
    for name in ("monotonic", "process_time"):
        monkeypatch.setattr(time, name, lambda name=name: now[name])
    measured = cores.Cores()
    now.update(monotonic=101.0, process_time=7.0 + own, idle=50.0 + idle)
    assert measured.threads(most) == threads
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert measured.threads(4) == 4


def test_idle_time_passes():
    assert cores._idle_seconds() > 0
