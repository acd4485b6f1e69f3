"""Changes of training pairs on the fly: capitals on both sides; typing errors and translations in the source."""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Callable

import numpy as np

from seq2seq.data.cleaning import Pairs
from seq2seq.data.terms import Lexicon, mark_words
from seq2seq.settings.data import AugmentSettings
from seq2seq.settings.declare import keys

# One word in so many has an error; every changed line has at least one.
_WORDS_PER_TYPO = 10


@dataclasses.dataclass(frozen=True)
class Augmentation:
    """Random changes of pairs, each a function of (seed, epoch, row): any worker and any resumed run makes the same.

    A pair has at most one change: upper, title and lower apply to both sides, typos and terms to the source alone. The
    lexicon has the translations of words for terms.
    """

    shares: AugmentSettings
    seed: int
    lexicon: Lexicon

    def kinds(self, rows: np.ndarray, epoch: int) -> np.ndarray:
        """Draw the change of each row (N,) in an epoch: 0 for none, else the position in NAMES plus 1."""
        # [0, 1) is divided into an interval for each change, in the order of NAMES; the rest means no change
        ends = np.cumsum(dataclasses.astuple(self.shares))
        kinds = np.searchsorted(ends, _uniform(rows, self.seed, epoch), side="right") + 1  # (N,)
        return np.where(kinds > len(NAMES), 0, kinds).astype(np.int8)

    def __call__(self, text: Pairs, kinds: np.ndarray, rows: np.ndarray, epoch: int) -> Pairs:
        """Change each pair of `text` in the way that `kinds` says."""
        src, tgt = list(text[0]), list(text[1])
        for i in np.flatnonzero(kinds).tolist():
            name = NAMES[kinds[i] - 1]
            # Random accepts no tuple of numbers, and its strings are hashed alike on every machine
            rng = random.Random(f"{self.seed} {epoch} {rows[i]}")
            if name == "terms":
                src[i] = mark_words(src[i], tgt[i], self.lexicon, rng)
            else:
                src[i] = KINDS[name](src[i], rng)
            if name not in ("typos", "terms"):
                tgt[i] = KINDS[name](tgt[i], rng)
        return src, tgt


def _title(line: str) -> str:
    """Capitalize the first letter of every word; unlike `str.title`, a letter after an apostrophe stays."""
    return re.sub(r"\w[\w'’]*", lambda word: word[0][:1].title() + word[0][1:], line)


def add_typos(line: str, rng: random.Random) -> str:
    """Make an error in one word of ten: two letters change places, one is missing, or one is written twice."""
    words = [found.span() for found in re.finditer(r"[^\W\d_]{3,}", line)]
    chosen = rng.sample(words, min(len(words), max(1, len(words) // _WORDS_PER_TYPO)))
    # From the end, so that earlier positions stay valid
    for start, end in sorted(chosen, reverse=True):
        place = rng.randrange(start, end - 1)
        first, second = line[place], line[place + 1]
        line = line[:place] + rng.choice((second + first, second, first + first + second)) + line[place + 2 :]
    return line


NAMES = tuple(keys(AugmentSettings))
# The changes that read one side at a time.
KINDS: dict[str, Callable[[str, random.Random], str]] = {
    "upper": lambda line, rng: line.upper(),
    "title": lambda line, rng: _title(line),
    "lower": lambda line, rng: line.lower(),
    "typos": add_typos,
}


def _uniform(rows: np.ndarray, seed: int, epoch: int) -> np.ndarray:
    """Hash each row to [0, 1) by SplitMix64, which needs no state: rows are drawn in any order."""
    key = np.random.SeedSequence([seed, epoch]).generate_state(1, np.uint64)
    x = (rows.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + key  # (N,), modulo 2^64
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    # The upper 53 bits, as many as a float64 has
    return ((x ^ (x >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53
