"""The host's time of a call: every operation is called, and nothing is launched."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from benchmarks import host_time


def test_every_operation_is_measured(monkeypatch):
    monkeypatch.setattr(host_time, "CALLS", 2)
    kernel = host_time.light.one_tile_forward
    found = host_time.measure(rounds=1)
    # The kernels are restored
    assert host_time.light.one_tile_forward is kernel
    assert set(found) == {
        *("an autograd function", "lightconv", "lightconv, DropConnect"),
        *("dynamicconv", "dynamicconv, DropConnect", "conv_step"),
    }
    assert all(value > 0 for row in found.values() for value in row.values())
