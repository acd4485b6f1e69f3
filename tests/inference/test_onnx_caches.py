"""The memory of a step in ONNX Runtime: the slots that its graph reads."""

from __future__ import annotations

import os

import torch

from seq2seq.inference.onnx_model import _fit, _slots
from seq2seq.network.state import Cache


def test_the_runtime_reports_nothing_to_its_maker():
    assert os.environ["ORT_DISABLE_TELEMETRY"]


def test_a_cache_has_few_more_slots_than_are_in_use_and_keeps_what_was_written():
    cache = Cache.empty(2, 20, 4)
    sizes = []
    for position in range(20):
        cache.ancestry.begin(torch.full((2,), position))
        _fit(cache, _slots(cache.ancestry))
        cache.append(torch.full((2, 4), position + 1.0), torch.full((2,), position))
        sizes.append(cache.values.shape[1])
        written = torch.arange(1.0, sizes[-1] + 1)
        # The other slots are zeros: numbers of other tensors there, times the weight 0, may be NaN
        assert cache.values[0, :, 0, 0].equal(written * (written <= position + 1))
    assert sizes == [8] * 8 + [16] * 8 + [20] * 4
    cache.ancestry.length = 3
    _fit(cache, _slots(cache.ancestry))
    assert cache.values[1, :, 0, 0].tolist() == list(range(1, 9))
