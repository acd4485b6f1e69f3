"""Test letters of groups that do not differ, by hand and on scores whose differences are known."""

from __future__ import annotations

import itertools
import random

from seq2seq.comparison.estimates import fit
from seq2seq.comparison.letters import _sets_without, letters


def test_groups_share_a_letter_unless_they_differ():
    """The middle group differs from neither of the others, so it has the letters of both."""
    scores = {"low": [10.0, 10.2, 10.4], "high": [10.8, 11.0, 11.2], "far": [20.0], "middle": [10.4, 10.6, 10.8]}
    # No group shares a seed with another one
    seeds = itertools.count()
    assert letters(fit({name: {next(seeds): score for score in each} for name, each in scores.items()})) == {
        "far": "a",
        "high": "b",
        "middle": "bc",
        "low": "c",
    }


def test_letters_say_which_pairs_differ_and_nothing_else():
    names = "abcdefg"
    pairs = random.sample(list(itertools.combinations(names, 2)), 9)
    found = _sets_without(pairs, frozenset(names))
    for pair in itertools.combinations(names, 2):
        assert any({*pair} <= each for each in found) == (pair not in pairs)
    assert not any(each < other for each in found for other in found)


def test_without_a_deviation_there_are_no_letters():
    assert letters(fit({"a": {1: 1.0}, "b": {1: 2.0}})) == {}
    assert letters(fit({"a": {1: 1.0, 2: 2.0}})) == {}
