"""Updates by tokens: their sentences, and how a machine cuts them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from seq2seq.data.batching import padded_width
from seq2seq.data.updates import TokenBatchSampler, UpdateCut, part_tokens


@pytest.fixture
def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def lengths(rng: np.random.Generator, rows: int = 3000, longest: int = 90) -> tuple[np.ndarray, np.ndarray]:
    src = np.minimum(1 + rng.geometric(0.06, rows), longest)
    return src, np.clip(src + rng.integers(-5, 6, rows), 1, longest)


def sampler(sides: tuple[np.ndarray, np.ndarray], batch_tokens: int, max_tokens: int, **more: int) -> TokenBatchSampler:
    longest = int(max(side.max() for side in sides))
    cut = UpdateCut.of(batch_tokens, max_tokens=max_tokens, longest=longest, world_size=more.get("world_size", 1))
    given = {"src_lengths": sides[0], "tgt_lengths": sides[1], "max_tokens": part_tokens(batch_tokens), "seed": 3}
    return TokenBatchSampler(**given, cut=cut, **more)


def updates(made: TokenBatchSampler) -> list[list[int]]:
    """Return the sorted rows of each update over all ranks, without idle ones."""
    assert made.cut
    batches, size = made.batches(), made.cut.micro_batches
    assert len(batches) % size == 0
    assert size % made.world_size == 0
    found = [np.concatenate(batches[i : i + size]) for i in range(0, len(batches), size)]
    return [sorted(rows[rows >= 0].tolist()) for rows in found]


@pytest.mark.parametrize("batch_tokens", [500, 4096, 40_000, 70_000])
def test_sentences_of_an_update_do_not_depend_on_the_machine(rng, batch_tokens):
    sides = lengths(rng, rows=3000 if batch_tokens < 9000 else 20_000)
    machines = [(batch_tokens, 1), (300, 1), (1000, 2), (1000, 3), (200, 8)]
    first, *others = (sampler(sides, batch_tokens, size, world_size=ranks) for size, ranks in machines)
    for epoch in (0, 1):
        for made in (first, *others):
            made.set_epoch(epoch)
        expected = updates(first)
        assert sorted(itertools.chain(*expected)) == list(range(len(sides[0])))
        for made in others:
            assert updates(made) == expected


@pytest.mark.parametrize(("batch_tokens", "max_tokens", "ranks"), [(4096, 500, 1), (70_000, 2000, 3), (1000, 8192, 2)])
def test_no_micro_batch_exceeds_its_budget(rng, batch_tokens, max_tokens, ranks):
    sides = lengths(rng, rows=20_000)
    made = sampler(sides, batch_tokens, max_tokens, world_size=ranks)
    for epoch in range(3):
        made.set_epoch(epoch)
        for rows in made.batches():
            assert len(rows) > 0
            assert len(rows) * padded_width(max(side[rows].max() for side in sides)) <= max_tokens


def test_an_update_of_one_part_is_the_same_batch_as_by_max_tokens(rng):
    sides = lengths(rng)
    plain = TokenBatchSampler(src_lengths=sides[0], tgt_lengths=sides[1], max_tokens=2000, seed=3)
    same = sampler(sides, 2000, 9999)
    for epoch in (0, 1):
        for each in (plain, same):
            each.set_epoch(epoch)
        assert all(map(np.array_equal, plain.batches(), same.batches()))


def test_large_updates_have_all_lengths_in_the_same_proportions(rng):
    src, tgt = lengths(rng, rows=60_000)
    found = updates(sampler((src, tgt), 131_072, 8192))
    assert len(found) > 6
    assert part_tokens(131_072) == 16_384
    short = [np.mean(src[rows] < 12) for rows in found[:-1]]
    assert np.std(short) < 0.12


def test_the_fewest_micro_batches_that_fit_are_made():
    assert UpdateCut.of(4096, max_tokens=4096, longest=60) == UpdateCut(1, 1)
    assert UpdateCut.of(4096, max_tokens=100_000, longest=60, world_size=4) == UpdateCut(1, 4)
    # Eight parts of 57,344 tokens; sentences of 3 fill 3,584 to the last, longer ones do not
    assert UpdateCut.of(458_752, max_tokens=3584, longest=4) == UpdateCut(8, 16)
    assert UpdateCut.of(458_752, max_tokens=3584, longest=250).cuts == 17
    assert UpdateCut.of(458_752, max_tokens=1 << 19, longest=250, world_size=8) == UpdateCut(8, 1)
    assert UpdateCut.of(458_752, max_tokens=1 << 19, longest=250, world_size=3) == UpdateCut(8, 3)


def test_a_pair_beyond_a_micro_batch_is_refused():
    with pytest.raises(ValueError, match=r"data\.max_tokens=256 .* 260 pieces, padded to 264: raise data\.max_tokens"):
        UpdateCut.of(4096, max_tokens=256, longest=260)


def test_micro_batches_without_sentences_are_idle():
    sides = np.full(5, 9), np.full(5, 9)
    batches = sampler(sides, 4096, 4096, world_size=8).batches()
    assert sorted(batch.tolist() for batch in batches) == [[-1], [-1], [-1], [0], [1], [2], [3], [4]]
