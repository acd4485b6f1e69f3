"""Results of a search: hypotheses, their length limit, and the score that ranks them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from seq2seq.settings.search import SearchSettings

# The log-probability of a forbidden token.
NEVER = float("-inf")


class NotFiniteScoresError(FloatingPointError):
    """The model's scores are not finite, so hypotheses cannot be ranked."""

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
        row: Its last row in the beam; a sample stays in one row.
    """

    ids: list[int]
    score: float
    log_prob: float
    row: int = 0


class Specials(NamedTuple):
    """Ids of the special tokens: a search begins with bos, ends at eos, and never generates pad.

    Imported models may begin with eos (fairseq) or pad (Marian).

    Attributes:
        byte_of: The bytes of pieces such as <0x41>, by the pieces' ids; a search joins them only to whole characters.
    """

    bos: int
    eos: int
    pad: int
    byte_of: Mapping[int, int] = MappingProxyType({})

    @property
    def never(self) -> list[int]:
        """The tokens that a search never generates: pad, and bos unless translations begin with eos."""
        return [token for token in dict.fromkeys((self.pad, self.bos)) if token != self.eos]


def length_divisor(length: int, settings: SearchSettings) -> float:
    """Return the divisor of the log-probability of `length` tokens, eos included.

    length^a, or ((5 + length) / 6)^a (Wu et al. 2016, eq. 14) with length_norm=gnmt.
    """
    base = length if settings.length_norm == "power" else (5 + length) / 6
    return float(base**settings.length_penalty)


def longest_target(length: int, settings: SearchSettings) -> int:
    """Return the maximum number of tokens, eos included, in the translation of a source of `length` tokens.

    max_len_ratio * length + max_len_extra, but at least min_len + 1 and at most max_len.
    """
    limit = max(int(settings.max_len_ratio * length) + settings.max_len_extra, settings.min_len + 1)
    return limit if settings.max_len is None else min(limit, settings.max_len)
