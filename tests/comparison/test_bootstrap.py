"""Test the bootstrap over seeds and sentences: its width, and how often it errs if nothing differs."""

from __future__ import annotations

import random

import numpy as np
import pytest

from seq2seq.comparison.bootstrap import SeedScores, resample_seeds, resample_sentences


def group(generator: np.random.Generator, seeds: range, samples: int = 2000, deviation: float = 0.3) -> SeedScores:
    """Draw scores of seeds, which are the same in all resampled test sets."""
    whole = generator.normal(40, deviation, len(seeds))
    return SeedScores(list(seeds), whole + np.zeros((samples, 1)), whole)


@pytest.mark.parametrize("second", [range(3), range(3, 6)])
def test_its_width_agrees_with_the_variance_of_the_mean(second):
    """Only seeds vary here, not sentences: paired seeds vary by their differences, other seeds by both groups."""
    generator = np.random.default_rng(random.randrange(2**32))
    ours, theirs = group(generator, range(3)), group(generator, second)
    paired = ours.seeds == theirs.seeds
    differences = ours.whole - theirs.whole
    variance = differences.var(ddof=1) if paired else ours.whole.var(ddof=1) + theirs.whole.var(ddof=1)
    found = resample_seeds(ours, theirs)
    # With so few seeds the distribution is not normal
    assert (found.interval[1] - found.interval[0]) / 2 == pytest.approx(1.96 * (variance / 3) ** 0.5, rel=0.3)
    assert found.interval[0] <= differences.mean() <= found.interval[1]


def test_it_seldom_errs_where_nothing_differs():
    generator = np.random.default_rng(random.randrange(2**32))
    wrong = [
        resample_seeds(group(generator, range(8), 300), group(generator, range(8, 16), 300)).p_value < 0.05
        for _ in range(400)
    ]
    assert 0.02 < np.mean(wrong) < 0.11


def test_runs_of_one_seed_are_averaged_and_sentences_shared():
    generator = np.random.default_rng(random.randrange(2**32))
    one, other, third = (generator.integers(5, 9, (40, 10)).astype(float) for _ in range(3))
    found = resample_sentences({"a": {1: [one, other]}, "b": {1: [one], 2: [third]}, "c": {1: [other]}}, 20)
    assert found["a"].scores[:, 0] == pytest.approx((found["b"].scores[:, 0] + found["c"].scores[:, 0]) / 2)
    assert found["b"].scores.shape == (20, 2)
    assert resample_seeds(found["a"], found["a"]).p_value == 1


def test_the_seed_is_that_of_sacrebleu(monkeypatch):
    counts = np.random.default_rng(random.randrange(2**32)).integers(5, 9, (40, 10)).astype(float)
    fixed, again = (resample_sentences({"a": {1: [counts]}}, 20)["a"].scores for _ in range(2))
    monkeypatch.setenv("SACREBLEU_SEED", "7")
    other = resample_sentences({"a": {1: [counts]}}, 20)["a"].scores
    assert (fixed == again).all()
    assert not (fixed == other).all()
