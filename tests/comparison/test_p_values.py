"""Test p values: against scipy, by hand, and by how often they are small where nothing differs."""

from __future__ import annotations

import random

import numpy as np
import pytest
import scipy.stats

from seq2seq.comparison.p_values import holm, p_text, welch


def test_p_values_are_adjusted_as_by_hand():
    # 4 x 0.01; 3 x 0.005 is less than that of no smaller one; 2 x 0.03; then at least as large as the one before
    assert holm([0.03, 0.005, 0.04, 0.01]) == pytest.approx([0.06, 0.02, 0.06, 0.03])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([0.02]) == [0.02]
    assert holm([]) == []


def test_wrong_rejections_stay_rare_however_many_pairs_are_tested():
    """p values of pairs without a difference, 20 at a time: one in twenty families has any below 0.05 once adjusted."""
    generator = np.random.default_rng(random.randrange(2**32))
    families = generator.random((2000, 20))
    wrong = np.mean([min(holm(list(family))) < 0.05 for family in families])
    assert 0.025 < wrong < 0.08
    assert np.mean(families.min(axis=1) < 0.05) > 0.5


def test_welch_agrees_with_scipy():
    for _ in range(50):
        one, other = (
            [random.gauss(random.choice((0, 1, 5)), random.choice((0.01, 1, 10))) for _ in range(random.randint(2, 30))]
            for _ in range(2)
        )
        expected = scipy.stats.ttest_ind(one, other, equal_var=False).pvalue
        assert welch(one, other) == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_welch_of_too_few_values_or_none_that_differ():
    assert welch([40.0], [41.0, 42.0]) is None
    assert welch([], [41.0, 42.0]) is None
    assert welch([40.0, 40.0], [41.0, 41.0]) is None
    assert welch([40.0, 41.0], [41.0, 40.0]) == pytest.approx(1)


def test_a_p_value_is_never_printed_as_zero():
    assert [p_text(p) for p in (0.0, 0.0009, 0.001, 0.0123, 1.0)] == ["< 0.001", "< 0.001", "0.001", "0.012", "1.000"]
