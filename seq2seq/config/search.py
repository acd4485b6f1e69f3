"""Settings of the section `search`: how the test set is decoded."""

from __future__ import annotations

import dataclasses

from seq2seq.config.settings import internal, setting, shown

# The largest values of a search: more than anybody has reported a gain of, and so little that neither memory nor
# length^length_penalty overflows.
MOST_BEAMS = 1000
MOST_RATIO = 100.0
MOST_EXTRA = 10_000
MOST_PENALTY = 10.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """Settings of a beam search.

    A translation of S source tokens has at most int(max_len_ratio * S) + max_len_extra tokens, the end counted.
    Hypotheses are ranked by log p(y | x) / |y|^length_penalty, |y| counting the end: 0 ranks by probability, 1 by its
    mean per token; more favors long outputs, less than 0 short ones.

    Args:
        max_len: Bounds the tokens of every sentence; a model with learned positions has no more of them.

    Raises:
        ValueError: A value is outside its range.
    """

    beam_size: int = setting(5, "hypotheses kept at every step; 1 is greedy; validations use trainer.val_beam_size")
    max_len_ratio: float = setting(2.0, "a translation has at most max_len_ratio * source + max_len_extra tokens")
    max_len_extra: int = setting(20, "see max_len_ratio")
    length_penalty: float = setting(1.0, "exponent of the length that scores are divided by")
    n_best: int = setting(1, "translations per sentence; a run is scored on one (seq2seq.translate --n-best)")
    max_len: int | None = internal(None)

    def __post_init__(self) -> None:
        if not 1 <= self.beam_size <= MOST_BEAMS:
            raise ValueError(f"beam_size is {shown(self.beam_size)}; choose 1 (greedy) to {MOST_BEAMS}")
        # A beam holds no more hypotheses than its size.
        if not 1 <= self.n_best <= self.beam_size:
            raise ValueError(f"n_best is {shown(self.n_best)}; choose 1 up to beam_size ({self.beam_size})")
        if not 0 <= self.max_len_ratio <= MOST_RATIO:
            raise ValueError(f"max_len_ratio is {self.max_len_ratio}; choose 0 to {MOST_RATIO:g}")
        # At least one token, the end, for the shortest source.
        if not 1 <= self.max_len_extra <= MOST_EXTRA:
            raise ValueError(f"max_len_extra is {shown(self.max_len_extra)}; choose 1 to {MOST_EXTRA}")
        if not -MOST_PENALTY <= self.length_penalty <= MOST_PENALTY:
            raise ValueError(f"length_penalty is {self.length_penalty}; choose {-MOST_PENALTY:g} to {MOST_PENALTY:g}")
