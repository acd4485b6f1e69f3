"""P values: of two groups of scores (Welch's t-test), and adjusted for the number of tests (Holm's method)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import numpy as np


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p values for their number by Holm's step-down method, in their order.

    The i-th smallest of m becomes max over j <= i of min(1, (m - j + 1) p_j). Where those below a level count as
    significant, the chance that any of them is by chance is at most the level, however the tests depend on each other.

    Reference: Holm 1979, A simple sequentially rejective multiple test procedure.
    """
    adjusted = [0.0] * len(p_values)
    greatest = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        greatest = max(greatest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = greatest
    return adjusted


def welch(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Compute the two-sided p value of equal means, of groups whose variances may differ; None where it is undefined.

    t = (mean_1 - mean_2) / sqrt(v_1 + v_2), v_i the sample variance of group i divided by its size n_i, with
    (v_1 + v_2)^2 / (v_1^2 / (n_1 - 1) + v_2^2 / (n_2 - 1)) degrees of freedom. It needs two values of each group, and
    values that are not all alike.

    Reference: Welch 1947, The generalization of 'Student's' problem when several different population variances are
        involved.
    """
    if min(len(one), len(other)) < 2:
        return None
    parts = [statistics.variance(values) / len(values) for values in (one, other)]
    if sum(parts) == 0:
        return None
    t = (statistics.fmean(one) - statistics.fmean(other)) / math.sqrt(sum(parts))
    freedom = sum(parts) ** 2 / sum(v**2 / (len(x) - 1) for v, x in zip(parts, (one, other), strict=True))
    return _two_tails(abs(t), freedom)


def _two_tails(t: float, freedom: float) -> float:
    """Compute P(|T| > t) of Student's distribution with at least one degree of freedom."""
    # With T = sqrt(freedom) tan(angle) its density is proportional to cos(angle)^(freedom - 1), without infinite tails
    nodes, weights = np.polynomial.legendre.leggauss(200)

    def integral(start: float) -> float:
        half = (math.pi / 2 - start) / 2
        return half * float(weights @ np.cos(start + half * (nodes + 1)) ** (freedom - 1))

    return integral(math.atan(t / math.sqrt(freedom))) / integral(0.0)
