"""Compact letter display: groups that do not differ share a letter."""

from __future__ import annotations

import itertools
import statistics
import string
from collections.abc import Sequence

from seq2seq.comparison.estimates import LEVEL, ScoreModel, holm


def letters(model: ScoreModel | None) -> dict[str, str]:
    """Assign letters so that two groups share one unless their means differ significantly.

    All pairs of the fitted groups, also those with a single score, are compared by t tests adjusted by `holm`.

    Returns:
        Letters by group, from `a` for the best mean; empty if there is no fit or a single group.

    Reference: Piepho 2004, An algorithm for a letter-based representation of all-pairwise comparisons.
    """
    if not model or len(model.scores) < 2:
        return {}
    scores = model.scores
    pairs = list(itertools.combinations(scores, 2))
    tests = [model.difference(*pair).p_value for pair in pairs]
    differing = [pair for pair, p in zip(pairs, holm(tests), strict=True) if p < LEVEL]
    best = sorted(scores, key=lambda name: -statistics.fmean(scores[name].values()))
    alike = sorted(_sets_without(differing, frozenset(scores)), key=lambda names: sorted(map(best.index, names)))
    signs = [*string.ascii_letters, *(f"({number})" for number in range(53, len(alike) + 1))]
    return {name: "".join(sign for sign, names in zip(signs, alike, strict=False) if name in names) for name in scores}


def _sets_without(differing: Sequence[tuple[str, str]], names: frozenset[str]) -> set[frozenset[str]]:
    """Return the largest sets of names in which no pair differs."""
    found = {names}
    for pair in differing:
        # Split a set with both names into one without the first and one without the second
        split = {each - {name} if {*pair} <= each else each for each in found for name in pair}
        # Drop subsets of other sets
        found = {each for each in split if not any(each < other for other in split)}
    return found
