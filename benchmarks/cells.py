"""Parts of the tables of docs: means with their spread, sizes, intervals, and tests of pairs."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from seq2seq.comparison.estimates import LEVEL, Estimate, fit, holm
from seq2seq.runs.results import RunResult

# Equivalence margin of docs/benchmark.md
MARGIN = 0.5


def spread(values: Sequence[float]) -> str:
    """Write mean ± standard deviation."""
    deviation = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.2f}{deviation}"


def millions(runs: Sequence[RunResult]) -> str:
    """Write the parameters of equal models."""
    return f"{runs[0].results['parameters'] / 1e6:.2f}M"


def flops(runs: Sequence[RunResult]) -> float:
    """Return the training FLOPs of a target token."""
    throughput = [run.results["throughput"]["model_flops_per_second"] for run in runs]
    tokens = [run.number("target_tokens_per_second") for run in runs]
    return statistics.fmean(count / rate for count, rate in zip(throughput, tokens, strict=True))


def interval(ends: Iterable[float]) -> str:
    """Write an interval of differences."""
    return " to ".join(f"{value:+.2f}" for value in ends)


class PairDifference(NamedTuple):
    """Difference of two means.

    Attributes:
        estimate: Estimate over seeds, with the deviation of all rows.
        p_value: p value of a true difference of zero, adjusted over all tested pairs by Holm's method.
        outside: p value of a true difference outside ± `MARGIN`, adjusted in the same way.
    """

    estimate: Estimate
    p_value: float
    outside: float

    @property
    def verdict(self) -> str:
        """ "differ", "equal" within the margin, or "open"."""
        if self.p_value < LEVEL:
            return "differ"
        return "equal" if self.outside < LEVEL else "open"


def compare_pairs(
    scores: Mapping[str, Mapping[int, float]], pairs: Sequence[tuple[str, str]]
) -> dict[tuple[str, str], PairDifference]:
    """Test pairs of groups by t tests over seeds, with the noise of all groups, corrected together.

    Args:
        scores: Scores of each group by seed.
        pairs: Names of groups; of each pair the first minus the second.
    """
    model = fit(scores)
    assert model is not None
    found = [model.difference(*pair) for pair in pairs]
    different = holm([each.p_value for each in found])
    outside = holm([each.equivalence_p(MARGIN) for each in found])
    return dict(zip(pairs, map(PairDifference, found, different, outside), strict=True))
