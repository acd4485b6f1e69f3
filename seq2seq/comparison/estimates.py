"""Estimates with Student's t distribution: means over seeds, their differences, intervals, p values and power."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

# Significance level of tests; confidence intervals have the level 1 - LEVEL. The output of `compare` states both.
LEVEL = 0.05
# Nodes and weights of Gauss-Legendre integration, for smooth integrands.
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(200)
_NORMAL = statistics.NormalDist()


class Estimate(NamedTuple):
    """Estimated mean or difference: its value, standard error, and degrees of freedom of the error."""

    value: float
    error: float
    freedom: float

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% confidence interval, value ± t error."""
        half = quantile(1 - LEVEL / 2, self.freedom) * self.error
        return self.value - half, self.value + half

    @property
    def p_value(self) -> float:
        """The two-sided p value of the hypothesis that the true value is 0."""
        return two_tails(abs(self.value) / self.error, self.freedom)

    def equivalence_p(self, margin: float) -> float:
        """Test if the true value is within ± margin, and return the larger p value of two one-sided t tests.

        Reference: Schuirmann 1987, A comparison of the two one-sided tests procedure and the power approach.
        """
        t = (margin - abs(self.value)) / self.error
        tail = two_tails(abs(t), self.freedom) / 2
        return tail if t > 0 else 1 - tail


def mean(values: Sequence[float]) -> Estimate | None:
    """Estimate a mean; None for fewer than two values or if all are equal."""
    if len(values) < 2 or not (deviation := statistics.stdev(values)):
        return None
    return Estimate(statistics.fmean(values), deviation / math.sqrt(len(values)), len(values) - 1)


class ScoreModel(NamedTuple):
    """Scores as mean of the group + effect of the seed + noise, with one standard deviation of the noise.

    Seeds have effects if all groups have the same seeds. The noise then has (groups - 1) (seeds - 1) degrees of
    freedom; with two groups, the test of their difference is the paired t test.

    Attributes:
        scores: Scores of each group by seed.
        deviation: Standard deviation of the noise.
        freedom: Its degrees of freedom.
        blocked: True if seeds have effects.

    Reference: Montgomery 2017, Design and analysis of experiments, chapter 4 (randomized complete blocks).
    """

    scores: Mapping[str, Mapping[int, float]]
    deviation: float
    freedom: int
    blocked: bool

    def difference(self, one: str, other: str) -> Estimate:
        """Estimate the difference in means of two groups; a group may have a single score."""
        values, others = self.scores[one].values(), self.scores[other].values()
        error = self.deviation * math.sqrt(1 / len(values) + 1 / len(others))
        return Estimate(statistics.fmean(values) - statistics.fmean(others), error, self.freedom)


def fit(scores: Mapping[str, Mapping[int, float]]) -> ScoreModel | None:
    """Fit the scores of groups by seed; None if they do not show the deviation of the noise."""
    noise = {
        name: {seed: score - statistics.fmean(own.values()) for seed, score in own.items()}
        for name, own in scores.items()
    }
    rows = [*noise.values()]
    blocked = len(rows) > 1 and all(row.keys() == rows[0].keys() for row in rows)
    freedom = sum(len(row) - 1 for row in rows)
    if blocked:
        effects = {seed: statistics.fmean(row[seed] for row in rows) for seed in rows[0]}
        rows = [{seed: value - effects[seed] for seed, value in row.items()} for row in rows]
        freedom -= len(effects) - 1
    squares = sum(value**2 for row in rows for value in row.values())
    # Equal scores leave rounding errors
    return ScoreModel(scores, math.sqrt(squares / freedom), freedom, blocked) if freedom and squares > 1e-18 else None


class Power(NamedTuple):
    """Power of the t test of a mean or a difference whose true standard error is known.

    Attributes:
        error: The true standard error.
        freedom: Degrees of freedom of its estimate.
        level: The level of the test.
    """

    error: float
    freedom: int
    level: float = LEVEL

    def of_difference(self, difference: float) -> float:
        """Compute the probability that a true difference is significant, in either direction."""
        shift = difference / self.error
        critical = quantile(1 - self.level / 2, self.freedom)
        return self._expected(lambda s: _NORMAL.cdf(shift - critical * s) + _NORMAL.cdf(-shift - critical * s))

    def of_equivalence(self, margin: float) -> float:
        """Compute the probability that a true difference of 0 is shown to be within ± margin."""
        critical = quantile(1 - self.level, self.freedom)
        return self._expected(lambda s: max(0.0, 2 * _NORMAL.cdf(margin / self.error - critical * s) - 1))

    def detectable(self) -> float:
        """Compute the true difference that is significant with a probability of 0.8."""
        return _root(lambda difference: self.of_difference(difference) - 0.8)

    def _expected(self, function: Callable[[float], float]) -> float:
        """Average a function of the ratio of estimated to true deviation over the ratio's distribution."""
        freedom = self.freedom
        half = 0.5 + 5 / math.sqrt(freedom)
        ratios = half * (_NODES + 1)
        # The ratio's square is a chi-square variable divided by its degrees of freedom
        log_density = (freedom - 1) * np.log(ratios) - freedom * ratios**2 / 2
        weights = _WEIGHTS * np.exp(log_density - log_density.max())
        return float(weights @ [function(ratio) for ratio in ratios] / weights.sum())


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p values for multiple tests by Holm's step-down method, and return them in the given order.

    The i-th smallest of m becomes max over j <= i of min(1, (m - j + 1) p_j). This bounds the probability of any false
    rejection by the level, however the tests depend on each other.

    Reference: Holm 1979, A simple sequentially rejective multiple test procedure.
    """
    adjusted = [0.0] * len(p_values)
    greatest = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        greatest = max(greatest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = greatest
    return adjusted


def p_text(p_value: float) -> str:
    """Format a p value; a small one is shown as a bound, never as 0."""
    return "< 0.001" if p_value < 0.001 else f"{p_value:.3f}"


def two_tails(t: float, freedom: float) -> float:
    """Compute P(|T| > t) of Student's distribution with at least one degree of freedom."""

    # Substitute T = sqrt(freedom) tan(angle): the density of the angle, cos(angle)^(freedom - 1), has no infinite tails
    def integral(start: float) -> float:
        half = (math.pi / 2 - start) / 2
        return half * float(_WEIGHTS @ np.cos(start + half * (_NODES + 1)) ** (freedom - 1))

    return integral(math.atan(t / math.sqrt(freedom))) / integral(0.0)


def quantile(probability: float, freedom: float) -> float:
    """Compute the quantile of Student's distribution for a probability of at least 0.5."""
    return _root(lambda t: 1 - two_tails(t, freedom) / 2 - probability)


def _root(function: Callable[[float], float]) -> float:
    """Find the positive root of an increasing function by bisection."""
    low, high = 0.0, 1.0
    while function(high) < 0:
        low, high = high, 2 * high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) < 0 else (low, middle)
    return (low + high) / 2
