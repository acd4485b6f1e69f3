"""P values: adjusted for the number of tests (Holm's method), of Welch's t test, and as text."""

from __future__ import annotations

from collections.abc import Sequence

from seq2seq.comparison import estimates


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
    """Compute the two-sided p value of equal means by Welch's t test; None where it is undefined."""
    found = estimates.welch(one, other)
    return found and found.p_value


def p_text(p_value: float) -> str:
    """Format a p value, which is never 0."""
    return "< 0.001" if p_value < 0.001 else f"{p_value:.3f}"
