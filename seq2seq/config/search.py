"""Settings of the section `search`: how the test set is decoded."""

from __future__ import annotations

import dataclasses
import math

from seq2seq.config.settings import internal, setting


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
        if self.beam_size < 1:
            raise ValueError(f"beam_size is {self.beam_size}; choose 1 (greedy) or more")
        # A beam holds no more hypotheses than its size.
        if not 1 <= self.n_best <= self.beam_size:
            raise ValueError(f"n_best is {self.n_best}; choose 1 up to beam_size ({self.beam_size})")
        # At least one token, the end, for the shortest source.
        if not 0 <= self.max_len_ratio < math.inf or self.max_len_extra < 1:
            raise ValueError(
                f"max_len_ratio {self.max_len_ratio} and max_len_extra {self.max_len_extra} leave no room; "
                "choose a ratio from 0 and an extra from 1"
            )
        if not math.isfinite(self.length_penalty):
            raise ValueError(f"length_penalty is {self.length_penalty}; choose a finite number")
