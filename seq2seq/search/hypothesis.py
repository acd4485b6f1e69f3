"""Results of a search: hypotheses, their limits of length, and the score by which they are ranked."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from seq2seq.settings.search import SearchSettings

# Log-probability of what is ruled out.
NEVER = float("-inf")


class NotFiniteScoresError(FloatingPointError):
    """The model's scores are not finite, so that nothing can be ranked by them; the message is one line."""

    def __init__(self) -> None:
        super().__init__(
            "the model's scores are not finite: its training has diverged, or its weights are damaged; "
            "use an earlier checkpoint, or train with a lower learning rate"
        )


class Hypothesis(NamedTuple):
    """A translation that has ended.

    Attributes:
        ids: Its tokens, without bos and eos.
        score: log_prob / `length_divisor`, by which hypotheses are ranked; the length includes eos.
        log_prob: log p(y | x) in nats.
        row: Its row of the beam at the end, which a sample has from the beginning.
    """

    ids: list[int]
    score: float
    log_prob: float
    row: int = 0


class Specials(NamedTuple):
    """Ids of the special tokens that a search handles itself: it begins with bos, ends at eos, never draws pad.

    Attributes:
        byte_of: The bytes of pieces such as <0x41>, by their ids; a search writes whole characters of them.
    """

    bos: int
    eos: int
    pad: int
    byte_of: Mapping[int, int] = MappingProxyType({})


def length_divisor(length: int, settings: SearchSettings) -> float:
    """Return what the log-probability of `length` tokens, eos included, is divided by.

    length^a, or ((5 + length) / 6)^a (Wu et al. 2016, eq. 14) with length_norm=gnmt.
    """
    base = length if settings.length_norm == "power" else (5 + length) / 6
    return float(base**settings.length_penalty)


def longest_target(length: int, settings: SearchSettings) -> int:
    """Return the most tokens, eos included, of the translation of a source of `length` tokens.

    It is max_len_ratio times the source's length plus max_len_extra, at least min_len and the end, and at most max_len
    where there is one.
    """
    limit = max(int(settings.max_len_ratio * length) + settings.max_len_extra, settings.min_len + 1)
    return limit if settings.max_len is None else min(limit, settings.max_len)
