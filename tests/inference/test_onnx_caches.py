"""The memory of a step in ONNX Runtime: the slots that its graph reads."""

from __future__ import annotations

import os

import pytest
import torch

from seq2seq.inference.export.onnx_graphs import _TracedAncestry, _TracedCache, _TracedHeadCache
from seq2seq.inference.onnx_model import _fit, _Memory
from seq2seq.network.state import Cache, expand, leaves, reorder


class _FreeGraph:
    """A graph whose axes are all free."""

    def is_fixed(self, name: str, axis: int) -> bool:
        return False


def test_the_runtime_reports_nothing_to_its_maker():
    assert os.environ["ORT_DISABLE_TELEMETRY"]


def test_a_cache_has_few_more_slots_than_are_in_use_and_keeps_what_was_written():
    cache = Cache.empty(2, 20, 4)
    sizes = []
    for position in range(20):
        cache.ancestry.begin(torch.full((2,), position))
        _fit(cache)
        cache.append(torch.full((2, 4), position + 1.0), torch.full((2,), position))
        sizes.append(cache.values.shape[1])
        written = torch.arange(1.0, sizes[-1] + 1)
        # The other slots are zeros: numbers of other tensors there, times the weight 0, may be NaN
        assert cache.values[0, :, 0, 0].equal(written * (written <= position + 1))
    assert sizes == [8] * 8 + [16] * 8 + [20] * 4
    cache.ancestry.length = 3
    _fit(cache)
    assert cache.values[1, :, 0, 0].tolist() == list(range(1, 9))


@pytest.mark.parametrize("heads", [None, 2])
def test_arrays_are_written_as_caches_are(heads):
    """The same values in the same slots as `Cache.append` writes, in every cache of a state."""
    states = [expand([Cache.empty(2, 20, 4, heads=heads) for _ in range(2)], 3) for _ in range(2)]
    memory = _Memory(_FreeGraph(), [torch.zeros(2, 5)], states[0])
    for at in range(10):
        position = torch.full((6,), at)
        values = [torch.randn(6, 4) for _ in range(2)]
        memory.begin(position)
        following = [value.numpy() for value in values]
        memory.append(following, position)
        assert all(ours is theirs for ours, theirs in zip(following, leaves(states[0]), strict=True))
        for cache, value in zip(leaves(states[1]), values, strict=True):
            cache.append(value, position)
    for ours, theirs in zip(leaves(states[0]), leaves(states[1]), strict=True):
        slots = ours.values.shape[ours.slot_axis]
        assert ours.values.equal(theirs.values.narrow(theirs.slot_axis, 0, slots))
        assert ours.owner.equal(theirs.owner)


@pytest.mark.parametrize("longer", [[], [9]])
@pytest.mark.parametrize("heads", [None, 2])
@pytest.mark.parametrize("slots", [9, 4])
def test_a_traced_cache_reads_what_a_cache_reads(slots, heads, longer):
    """Also in a ring buffer, after reorderings, and next to a longer cache, which shares the ancestry."""
    sentences, beam = 2, 3
    state = expand([Cache.empty(sentences, each, 4, heads=heads) for each in (slots, slots, *longer)], beam)
    keys, values = state[:2]
    for at in range(9):
        position = torch.full((sentences * beam,), at)
        new = [torch.randn(sentences * beam, 4) for _ in range(2)]
        before = [cache.values.clone() for cache in (keys, values)]
        for cache, value in zip((keys, values), new, strict=True):
            cache.append(value, position)
        kind = _TracedCache if heads is None else _TracedHeadCache
        traced = [kind(old, _TracedAncestry(keys.owner, 1)) for old in before]
        for cache, value in zip(traced, new, strict=True):
            cache.append(value, position)
        if heads is None:
            found, visible = traced[0].read(position)
            expected, seen = keys.read(position)
            assert found[:, : expected.shape[1]].equal(expected)
            assert visible[..., : expected.shape[1]].equal(seen)
        else:
            query = torch.randn(sentences, heads, beam, 4 // heads)
            torch.testing.assert_close(
                traced[0].attend(query, traced[1], position), keys.attend(query, values, position)
            )
        index = torch.arange(sentences)[:, None] * beam + torch.randint(beam, (sentences, beam))
        state = reorder(state, index.flatten())


def test_a_state_without_numbers_has_a_row_for_each_hypothesis():
    """A kernel of one tap remembers nothing: (N, 0, D)."""
    memory = _Memory(_FreeGraph(), [torch.zeros(2, 5)], [torch.zeros(6, 0, 4)])
    assert memory.arrays["state.0"].shape == (2, 3, 0, 4)
