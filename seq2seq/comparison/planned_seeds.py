"""Power of a planned number of seeds, given the observed deviation of scores."""

from __future__ import annotations

import math
from collections.abc import Sequence

from seq2seq.comparison.estimates import LEVEL, Deviation, Power, pooled_deviation
from seq2seq.comparison.significance import Difference


def plan(differences: Sequence[Difference], split: str, seeds: int, margin: float) -> str:
    """Describe the power of the t test of each difference with this number of seeds.

    The test is paired if any difference has pairs of equal seeds; otherwise it is of two groups with one deviation.

    Args:
        split: "test" or "valid".
        seeds: The planned number of seeds of each group.
        margin: The margin of equivalence; also the difference whose power is computed.
    """
    pairs = [each.paired for each in differences if each.paired]
    if pairs:
        # A row's deviation is its standard error times the square root of the number of pairs, freedom + 1
        freedom = sum(int(each.freedom) for each in pairs)
        total = sum(each.error**2 * (each.freedom + 1) * each.freedom for each in pairs)
        deviation, what = Deviation(math.sqrt(total / freedom), freedom), "Differences of equal seeds"
        error, planned = deviation.value / math.sqrt(seeds), seeds - 1
    else:
        groups = {group.label: group for each in differences for group in (each.group, each.baseline)}
        pooled = pooled_deviation([group.values(split, "bleu") for group in groups.values()])
        if not pooled:
            return "The deviation over seeds is unknown: no row has two seeds with different scores.\n"
        deviation, what = pooled, "Scores of a row"
        error, planned = deviation.value * math.sqrt(2 / seeds), 2 * (seeds - 1)
    power = Power(error, planned)
    smallest = Power(error, planned, LEVEL / len(differences)).detectable()
    rows = f" ({smallest:.2f} where its p is the smallest of {len(differences)})" if len(differences) > 1 else ""
    return (
        f"Planned: {seeds} seeds. {what} have a standard deviation of {deviation.value:.2f} BLEU "
        f"({deviation.freedom} degrees of freedom).\nIf that is the true one, a difference of {power.detectable():.2f}"
        f"{rows} is significant in 80% of cases, and one of {margin:g} in {power.of_difference(margin):.0%}.\n"
        f"Equal rows are shown to be equivalent within {margin:g} in {power.of_equivalence(margin):.0%}.\n"
    )
