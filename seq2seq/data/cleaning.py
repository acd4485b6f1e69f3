"""Cleaning of training pairs: rules on text, rules on lengths in tokens, and the table of dropped pairs."""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from seq2seq.data.context import sentence_of
from seq2seq.data.language_id import other_language
from seq2seq.data.text_files import is_blank
from seq2seq.settings.data import CleanSettings
from seq2seq.system.packages import require_installed

Pairs = tuple[list[str], list[str]]


class Dropped(NamedTuple):
    """Line of the cleaning table.

    Args:
        rule: Name of the rule, as in `data.clean`.
        pairs: Number of pairs that it dropped.
        example: The first of these pairs, shortened; "" for 0 pairs.
    """

    rule: str
    pairs: int
    example: str


class Cleaner:
    """Rules on text, applied block by block; each counts the pairs that it drops, and keeps an example."""

    def __init__(self, settings: CleanSettings, *, languages: tuple[str, str]) -> None:
        if settings.language:
            # Missing packages are reported before any text is read
            require_installed("py3langid", f"data.clean.language={settings.language:g}", extra="language")
        differs = functools.partial(other_language, least=settings.language or 1.0)
        # A pair counts for the first rule that drops it. Readers decode invalid bytes to U+FFFD
        tests: dict[str, Callable[[str, str], bool]] = {
            "invalid_utf8": lambda src, tgt: "\ufffd" in src or "\ufffd" in tgt,
            "empty": lambda src, tgt: is_blank(src) or is_blank(tgt),
            "same": lambda src, tgt: src.strip() == tgt.strip(),
            # After the others, since it is by far the slowest
            "language": lambda src, tgt: bool(differs(src, languages[0]) or differs(tgt, languages[1])),
        }
        self.tests = {name: test for name, test in tests.items() if getattr(settings, name)}
        self.duplicates = bool(settings.duplicates)
        self.seen = HashSet()
        self.dropped = {name: Dropped(name, 0, "") for name in [*self.tests, *(["duplicates"] * self.duplicates)]}
        self.read = 0

    def __call__(self, block: Pairs) -> Pairs:
        """Return the pairs of a block that no rule drops."""
        kept = self.keep(block)
        return [block[0][i] for i in kept], [block[1][i] for i in kept]

    def keep(self, block: Pairs) -> list[int]:
        """Return the indices of the pairs of a block that no rule drops, and count the others by rule."""
        self.read += len(block[0])
        kept = []
        for i, (source, tgt) in enumerate(zip(*block, strict=True)):
            src = sentence_of(source)
            rule = next((name for name, test in self.tests.items() if test(src, tgt)), None)
            if rule is None:
                kept.append(i)
            else:
                self._drop(rule, src, tgt)
        # Duplicates come last, since only kept pairs count as seen. The whole block at once is fast in numpy
        if self.duplicates and kept:
            fresh = self.seen.add(_pair_hashes(([block[0][i] for i in kept], [block[1][i] for i in kept])))
            for i in itertools.compress(kept, ~fresh):
                self._drop("duplicates", sentence_of(block[0][i]), block[1][i])
            kept = list(itertools.compress(kept, fresh))
        return kept

    def _drop(self, rule: str, src: str, tgt: str) -> None:
        old = self.dropped[rule]
        self.dropped[rule] = Dropped(rule, old.pairs + 1, old.example or f"{shorten(src)} | {shorten(tgt)}")


class HashSet:
    """Set of 64-bit hashes in sorted arrays of decreasing size: 8 bytes a hash, twice that during a merge.

    Arrays of similar size are merged, so that n hashes cost O(n log n). Two different pairs among n share a hash with
    probability n^2 / 2^65: 4e-5 at 40 million.
    """

    def __init__(self) -> None:
        self.levels: list[np.ndarray] = []

    def add(self, hashes: np.ndarray) -> np.ndarray:
        """Add `hashes` (N,); return (N,), True at the first occurrence of each new hash."""
        values, first = np.unique(hashes, return_index=True)
        new = ~self.contains(values)
        fresh = np.zeros(len(hashes), dtype=bool)  # (N,)
        fresh[first[new]] = True
        values = values[new]
        # Each array stays more than twice as large as the next, so that there are O(log n) arrays
        while self.levels and self.levels[-1].size <= 2 * values.size:
            values = np.concatenate([self.levels.pop(), values])
            values.sort()
        if values.size:
            self.levels.append(values)
        return fresh

    def contains(self, hashes: np.ndarray) -> np.ndarray:
        """Mark the hashes (N,) that have been added: (N,)."""
        found = np.zeros(len(hashes), dtype=bool)
        for level in self.levels:
            # searchsorted returns level.size for a larger hash than the last, which then differs from the last
            found |= level[np.minimum(np.searchsorted(level, hashes), level.size - 1)] == hashes
        return found


def single_spaced(line: str) -> str:
    """Replace each run of white space by one space, and strip the ends, as SentencePiece does."""
    return " ".join(line.split())


def text_hashes(lines: Iterable[str]) -> np.ndarray:
    """Hash every line to 64 bits, the same on every machine."""
    # Python's hash() differs between processes
    digests = b"".join(hashlib.blake2b(line.encode("utf-8"), digest_size=8).digest() for line in lines)
    return np.frombuffer(digests, dtype="<u8")


def _pair_hashes(block: Pairs) -> np.ndarray:
    return text_hashes(map("\n".join, zip(*block, strict=True)))


def length_rules(
    src_lengths: np.ndarray,
    tgt_lengths: np.ndarray,
    *,
    settings: CleanSettings,
    max_tokens: int,
    own_lengths: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """Apply the rules on lengths; a pair counts for the first rule that drops it.

    Args:
        src_lengths: (N,) tokens of the sources, eos included.
        tgt_lengths: (N,) tokens of the targets.
        max_tokens: Longest side that fits into a batch; `max_length` always drops longer ones.
        own_lengths: (N,) tokens of the sources without their context, for the ratio (None: there is no context).

    Returns:
        By rule, a mask (N,) that is True at the pairs to drop.
    """
    names = ["max_length", *(["length_ratio"] * bool(settings.length_ratio))]
    masks = {name: np.zeros(len(src_lengths), dtype=bool) for name in names}
    limit = min(max_tokens, settings.max_length or max_tokens)
    own_lengths = src_lengths if own_lengths is None else own_lengths
    # Compute in parts, so that no float array is as long as the corpus
    for start in range(0, len(src_lengths), 1 << 20):
        part = slice(start, start + (1 << 20))
        longest = np.maximum(src_lengths[part], tgt_lengths[part])  # (rows of the part,)
        masks["max_length"][part] = longest > limit
        if settings.length_ratio:
            sides = own_lengths[part], tgt_lengths[part]
            longer, shorter = np.maximum(*sides), np.minimum(*sides)
            masks["length_ratio"][part] = (longer > settings.length_ratio * shorter) & (longest <= limit)
    if settings.length_deviation:
        others = np.logical_or.reduce(list(masks.values()))
        masks["length_deviation"] = _unusual_ratios(own_lengths, tgt_lengths, ~others, most=settings.length_deviation)
    return masks


def _unusual_ratios(src: np.ndarray, tgt: np.ndarray, kept: np.ndarray, *, most: float) -> np.ndarray:
    """Mark the pairs of `kept` (N,) whose log(tgt / src) is more than `most` standard deviations from their mean."""
    parts = [slice(start, start + (1 << 20)) for start in range(0, len(src), 1 << 20)]
    sums = np.zeros(3)
    for part in parts:
        ratios = np.log(tgt[part] / src[part])[kept[part]]
        sums += len(ratios), ratios.sum(), (ratios**2).sum()
    count = max(1.0, sums[0])
    mean = sums[1] / count
    # Rounding may take a variance of 0 below it
    deviation = math.sqrt(max(0.0, sums[2] / count - mean**2))
    far = [np.abs(np.log(tgt[part] / src[part]) - mean) > most * deviation + 1e-9 for part in parts]
    return kept & np.concatenate(far)


def cleaning_table(dropped: Sequence[Dropped], *, read: int) -> str:
    """Format the table of cleaning: rule, pairs dropped, an example."""
    kept = read - sum(row.pairs for row in dropped)
    lines = [f"cleaning of the training data: {read} pairs read, {kept} kept"]
    lines += [f"  {'rule':<16}{'dropped':>10}  example"]
    lines += [f"  {row.rule:<16}{row.pairs:>10}  {row.example}".rstrip() for row in dropped]
    return "\n".join(lines)


def shorten(text: str, width: int = 40) -> str:
    """Put the text on one line, cut to `width` characters."""
    text = " ".join(text.split())
    return text if len(text) <= width else text[: width - 1] + "…"
