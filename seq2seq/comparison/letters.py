"""Letters for groups that do not differ: a compact letter display."""

from __future__ import annotations

import itertools
import string
from collections.abc import Mapping, Sequence

from seq2seq.comparison.estimates import LEVEL, pooled_deviation
from seq2seq.comparison.p_values import holm


def letters(scores: Mapping[str, Sequence[float]]) -> dict[str, str]:
    """Give groups letters such that two groups share one unless their means differ significantly.

    All pairs are tested by t tests with the standard deviation pooled over the groups, adjusted by `holm`.

    Args:
        scores: The scores of each group; one with a single score is tested, too.

    Returns:
        Letters by group, `a` being that of the best mean; none if no group has two scores that differ.

    Reference: Piepho 2004, An algorithm for a letter-based representation of all-pairwise comparisons.
    """
    deviation = pooled_deviation(list(scores.values()))
    pairs = list(itertools.combinations(scores, 2))
    if not deviation or not pairs:
        return {}
    tests = [deviation.difference(scores[one], scores[other]).p_value for one, other in pairs]
    differing = [pair for pair, p in zip(pairs, holm(tests), strict=True) if p < LEVEL]
    best = sorted(scores, key=lambda name: -sum(scores[name]) / len(scores[name]))
    alike = sorted(_sets_without(differing, frozenset(scores)), key=lambda names: sorted(map(best.index, names)))
    return {name: "".join(_letter(number) for number, names in enumerate(alike) if name in names) for name in scores}


def _sets_without(differing: Sequence[tuple[str, str]], names: frozenset[str]) -> set[frozenset[str]]:
    """Return the largest sets of names in which no pair differs."""
    found = {names}
    for pair in differing:
        # A set with both is split into one without the first and one without the second
        split = {each - {name} if {*pair} <= each else each for each in found for name in pair}
        # What another set contains says nothing new
        found = {each for each in split if not any(each < other for other in split)}
    return found


def _letter(number: int) -> str:
    return string.ascii_letters[number] if number < len(string.ascii_letters) else f"({number + 1})"
