"""Rank sampled translations of a line by minimum Bayes risk: the best one agrees most with all of them.

Reference:
    Kumar and Byrne 2004, 'Minimum Bayes-Risk Decoding for Statistical Machine Translation'; Eikema and Aziz 2020, 'Is
    MAP Decoding All You Need?', which draws the translations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from seq2seq.inference.search_parts import TranslatedText

Utility = Literal["chrf", "bleu"]
UTILITIES: tuple[str, ...] = get_args(Utility)


def utility(name: str, tokenize: str = "13a") -> Callable[[str, str], float]:
    """Return a function that scores a sentence against a reference by a sacreBLEU metric, from 0 to 100.

    Args:
        tokenize: sacreBLEU's tokenizer for BLEU; 13a would treat a sentence without spaces as one word.

    Raises:
        ValueError: The utility or the tokenizer is unknown, or the tokenizer needs a package that is not installed.
    """
    # Slow imports
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    from seq2seq.metrics.scorers import check_tokenize

    if name not in UTILITIES:
        raise ValueError(f"unknown utility '{name}': choose {' or '.join(UTILITIES)}")
    # Without effective_order, a sentence that shares no 4-gram would have BLEU 0
    metric = CHRF() if name == "chrf" else BLEU(effective_order=True, tokenize=check_tokenize(tokenize))
    return lambda hypothesis, reference: float(metric.sentence_score(hypothesis, [reference]).score)


def rank_by_agreement(samples: Sequence[TranslatedText], score: Callable[[str, str], float]) -> list[TranslatedText]:
    """Sort samples by their expected utility, which becomes their score; each text occurs once."""
    counts = Counter(sample.text for sample in samples)
    ranked = []
    for text, sample in {sample.text: sample for sample in samples}.items():
        # The mean score against all samples, itself included
        mean = sum(count * score(text, other) for other, count in counts.items()) / len(samples)
        ranked.append(sample._replace(score=mean))
    return sorted(ranked, key=lambda each: -each.score)
