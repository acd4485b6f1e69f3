"""Statistics of training lines, against counts by hand."""

from __future__ import annotations

import numpy as np

from seq2seq.data.line_statistics import LineStatistics


def test_statistics_of_lines() -> None:
    """Of 200 lines with one sentence, 21 or 20 have four; of 200 with three, 3 or 2 have nine."""
    many, few = ([1] * (200 - long) + [4] * long for long in (21, 20))
    pieces = np.array([[6, 3]] * 197 + [[20, 3]] * 3)
    found = LineStatistics.of_lines(many, pieces, 77)
    assert found == (1, 4, 20, 77, 3 / 20)
    assert found.covers(4, 20)
    assert not found.covers(5, 1)
    assert not found.covers(1, 21)
    assert LineStatistics.of_lines(few, np.array([[6, 3]] * 200), None) == (1, 1, 6, None, 0.5)
    assert LineStatistics.of_lines([3] * 197 + [9] * 3, pieces, 77)[:2] == (3, 9)
    assert LineStatistics.of_lines([3] * 198 + [9] * 2, pieces, 77)[:2] == (3, 3)


def test_an_ensemble_has_seen_what_all_members_have() -> None:
    one, other = LineStatistics(1, 4, 50, None, 0.5), LineStatistics(2, 3, None, 60, 0.4)
    assert LineStatistics.common([one, other]) == LineStatistics.common([other, one]) == (1, 3, 50, 60, 0.4)
    assert LineStatistics.common([LineStatistics(), LineStatistics()]) == LineStatistics()


def test_a_checkpoint_without_statistics_knows_single_sentences() -> None:
    for entry in ({}, {"lines": None}, {"lines": {"sentences": "x", "most_sentences": -3, "longest": float("nan")}}):
        assert LineStatistics.of_checkpoint(entry) == LineStatistics()
    assert LineStatistics().covers(1, 10**6)
    assert not LineStatistics().covers(2, 1)
    kept = LineStatistics(2, 5, 40, 60, 0.5)
    assert LineStatistics.of_checkpoint({"lines": kept._asdict()}) == kept
