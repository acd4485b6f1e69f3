"""Shifted sides are told with the line where it begins; aligned, blank, sorted and repeated text is not."""

from __future__ import annotations

import re

import numpy as np
import pytest

from seq2seq.data.cleaning import Pairs
from seq2seq.data.readers import text_pairs
from seq2seq.data.text_checks import checked, find_shift
from seq2seq.data.text_files import warn_once


def corpus(size: int, *, seed: int = 0, noise: float = 0.15) -> Pairs:
    """Lines whose lengths vary as in text; a translation is longer or shorter by some percent."""
    rng = np.random.default_rng(seed)
    lengths = rng.lognormal(3.7, 0.5, size)
    others = lengths * rng.lognormal(0.1, noise, size)
    src, tgt = ([f"{i:06d}{'x' * int(length)}" for i, length in enumerate(side)] for side in (lengths, others))
    return src, tgt


def shifted(pairs: Pairs, by: int, begin: int) -> Pairs:
    """Drop `by` lines of the target from line `begin` on, or -`by` of the source."""
    src, tgt = ([*side] for side in pairs)
    side, count = (tgt, by) if by > 0 else (src, -by)
    del side[begin : begin + count]
    size = min(len(src), len(tgt))
    return src[:size], tgt[:size]


@pytest.mark.parametrize("by", [1, -1, 3, -2, 10])
@pytest.mark.parametrize(
    ("size", "begin"), [(3000, 0), (3000, 400), (3000, 1234), (3000, 2700), (16_384, 12_000), (80, 0)]
)
def test_a_shift_is_told_with_its_beginning(by, size, begin):
    told = find_shift(*shifted(corpus(size + 10), by, begin), first=101)
    found = re.match(r"from about line ([\d,]+) on, the (\w+) seems to be (\d+) lines? behind", told)
    # Dropped from the target, a line's translation is before it
    assert found, told
    assert (found[2], found[3]) == ("first" if by > 0 else "second", str(abs(by)))
    assert abs(int(found[1].replace(",", "")) - 101 - begin) <= 25


@pytest.mark.parametrize("noise", [0.1, 0.3, 0.6])
def test_aligned_text_is_not_warned_of(noise):
    for seed in range(20):
        src, tgt = corpus(4000, seed=seed, noise=noise)
        assert not find_shift(src, tgt)
        # Sorted by length, every shift fits as well
        order = sorted(range(len(src)), key=lambda i: len(src[i]))
        assert not find_shift([src[i] for i in order], [tgt[i] for i in order])
        # Long and short lines by turns, as in dialogues
        turns = [line * (1 + 4 * (i % 2)) for i, line in enumerate(src)]
        assert not find_shift(turns, [line * (1 + 4 * (i % 2)) for i, line in enumerate(tgt)])
        # Lines without a relation, as of labels
        assert not find_shift(src, [tgt[i] for i in np.random.default_rng(seed).permutation(len(tgt))])
    assert not find_shift(["x"] * 500, ["yy"] * 500)
    assert not find_shift([""] * 500, tgt)
    assert not find_shift(*shifted(corpus(40), 1, 0))
    assert not find_shift([], [])


def test_shifts_of_files_are_told_once_and_explain_other_counts(tmp_path, caplog):
    warn_once.cache_clear()
    pairs = shifted(corpus(60_000), 1, 40_000)
    src, tgt = tmp_path / "x.de", tmp_path / "x.en"
    src.write_text("".join(f"{line}\n" for line in pairs[0]))
    tgt.write_text("".join(f"{line}\n" for line in pairs[1]))
    blocks = list(checked(text_pairs(src, tgt), [str(src), str(tgt)], unit="line", training=True))
    assert sum(len(block[0]) for block in blocks) == len(pairs[0])
    (told,) = [record.message for record in caplog.records]
    line = int(re.search(r"x\.en: from about line ([\d,]+) on", told)[1].replace(",", ""))  # type: ignore[index]
    assert abs(line - 40_000) <= 25
    # A line that one file has too many of, at its beginning
    whole = corpus(500)
    src.write_text("title\n" + "".join(f"{line}\n" for line in whole[0]))
    tgt.write_text("".join(f"{line}\n" for line in whole[1]))
    with pytest.raises(ValueError, match=r"has 501 lines and .*has 500.*; from about line \d+ on, the first"):
        list(text_pairs(src, tgt))
