"""Test intervals, equivalence and power: against scipy, and the power also by simulation."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import scipy.stats

from seq2seq.comparison.estimates import (
    Power,
    fit,
    holm,
    mean,
    p_text,
    quantile,
    two_tails,
)


def scores(count: int) -> list[float]:
    return [random.gauss(40, random.choice((0.1, 1, 3))) for _ in range(count)]


def test_quantiles_agree_with_students_distribution():
    for freedom in (1, 1.5, 2, 4, 12, 100):
        for probability in (0.6, 0.95, 0.975, 0.9999):
            assert quantile(probability, freedom) == pytest.approx(scipy.stats.t.ppf(probability, freedom), rel=1e-6)
        assert two_tails(2.5, freedom) == pytest.approx(2 * scipy.stats.t.sf(2.5, freedom), rel=1e-6)


def test_intervals_agree_with_scipy():
    for _ in range(20):
        one = scores(random.randint(2, 8))
        found = mean(one)
        expected = scipy.stats.ttest_1samp(one, 0).confidence_interval()
        assert found is not None
        assert found.interval == pytest.approx((expected.low, expected.high))


def test_two_groups_of_equal_seeds_are_paired():
    one, other = scores(4), scores(4)
    model = fit(
        {"a": dict(zip([1, 2, 3, 9], one, strict=True)), "b": dict(zip([9, 3, 2, 1], other[::-1], strict=True))}
    )
    assert model is not None
    found = model.difference("a", "b")
    result = scipy.stats.ttest_rel(one, other)
    expected = result.confidence_interval()
    assert (found.p_value, *found.interval) == pytest.approx((result.pvalue, expected.low, expected.high), rel=1e-5)
    for margin in (0.1, 0.5, 2.0):
        least = scipy.stats.ttest_rel(np.add(one, margin), other, alternative="greater").pvalue
        most = scipy.stats.ttest_rel(np.subtract(one, margin), other, alternative="less").pvalue
        assert found.equivalence_p(margin) == pytest.approx(max(least, most), rel=1e-5)


def test_groups_without_a_common_seed_are_not_paired():
    one, other = scores(3), scores(6)
    model = fit({"a": dict(enumerate(one)), "single": {99: 50.0}, "b": dict(enumerate(other, 10))})
    assert model is not None
    assert (model.freedom, model.blocked) == (7, False)
    expected = scipy.stats.ttest_ind(one, other).pvalue
    assert model.difference("a", "b").p_value == pytest.approx(expected, rel=1e-5)


def test_seeds_are_blocks_by_hand():
    """The residuals of rows and columns of a table, as in the analysis of variance of randomized blocks."""
    table = np.random.default_rng(random.randrange(2**32)).normal(40, 1, (4, 5)) + np.arange(5)  # groups, seeds
    model = fit({str(group): dict(enumerate(row)) for group, row in enumerate(table)})
    residuals = table - table.mean(1, keepdims=True) - table.mean(0) + table.mean()
    assert model is not None
    assert (model.freedom, model.blocked) == (12, True)
    assert model.deviation == pytest.approx(math.sqrt((residuals**2).sum() / 12))
    found = model.difference("2", "0")
    assert found.value == pytest.approx(table[2].mean() - table[0].mean())
    assert found.error == pytest.approx(model.deviation * math.sqrt(2 / 5))


def test_too_few_or_equal_values_have_no_interval():
    assert mean([40.0]) is None
    assert mean([40.0, 40.0]) is None
    assert fit({}) is None
    for shift in (0.0, 0.1):
        assert fit({"a": {1: 40.0, 2: 40.0 + shift}, "b": {1: 41.1, 2: 41.1 + shift}}) is None
    assert fit({"a": {1: 40.0}, "b": {1: 41.0}}) is None


@pytest.mark.parametrize("seeds", [2, 3, 5, 10])
def test_power_agrees_with_the_noncentral_t_distribution(seeds):
    deviation = random.uniform(0.1, 0.5)
    difference = random.uniform(0, 1)
    freedom = 2 * (seeds - 1)
    power = Power(deviation * math.sqrt(2 / seeds), freedom)
    shift = difference / power.error
    critical = scipy.stats.t.ppf(0.975, freedom)
    expected = scipy.stats.nct.sf(critical, freedom, shift) + scipy.stats.nct.cdf(-critical, freedom, shift)
    assert power.of_difference(difference) == pytest.approx(expected, abs=1e-6)
    assert power.of_difference(power.detectable()) == pytest.approx(0.8)
    assert power.of_difference(0) == pytest.approx(0.05)


def test_power_of_equivalence_is_its_frequency():
    generator = np.random.default_rng(random.randrange(2**32))
    runs = generator.normal(0, 0.25, (20_000, 2, 5))
    error = np.sqrt(runs.var(-1, ddof=1).sum(-1) / 5)
    difference = np.abs(runs.mean(-1) @ [1, -1])
    found = np.mean(difference + scipy.stats.t.ppf(0.95, 8) * error < 0.5)
    assert Power(0.25 * math.sqrt(2 / 5), 8).of_equivalence(0.5) == pytest.approx(found, abs=0.02)


def test_p_values_are_adjusted_as_by_hand():
    # Sorted: 4 x 0.005, 3 x 0.01, 2 x 0.03, then 0.04, which is raised to the value before it
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


def test_a_p_value_is_never_printed_as_zero():
    assert [p_text(p) for p in (0.0, 0.0009, 0.001, 0.0123, 1.0)] == ["< 0.001", "< 0.001", "0.001", "0.012", "1.000"]
