"""Say what a planned number of seeds would show, given the deviation of scores that was seen."""

from __future__ import annotations

import math
from collections.abc import Sequence

from seq2seq.comparison.estimates import LEVEL, Deviation, Power, pooled_deviation
from seq2seq.comparison.significance import Difference


def plan(differences: Sequence[Difference], split: str, seeds: int, margin: float) -> str:
    """Describe the power of the t test of each difference with this number of seeds.

    It is of pairs, if any difference has pairs of equal seeds, else of two groups of one deviation.

    Args:
        split: "test" or "valid".
        seeds: The planned number of each group.
        margin: The margin of equivalence, and a difference whose power is computed.
    """
    pairs = [each.paired for each in differences if each.paired]
    if pairs:
        # The deviation of each row's differences is its error times the square root of their number, freedom + 1
        freedom = sum(int(each.freedom) for each in pairs)
        total = sum(each.error**2 * (each.freedom + 1) * each.freedom for each in pairs)
        deviation, what = Deviation(math.sqrt(total / freedom), freedom), "Differences of equal seeds"
        error, planned = deviation.value / math.sqrt(seeds), seeds - 1
    else:
        groups = {group.label: group for each in differences for group in (each.group, each.baseline)}
        pooled = pooled_deviation([group.values(split, "bleu") for group in groups.values()])
        if not pooled:
            return "Nothing is known of the deviation over seeds: no row has two seeds whose scores differ.\n"
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
