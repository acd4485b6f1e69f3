"""Minimum Bayes risk: of several translations of a line, the one that agrees best with all of them.

Reference:
    Kumar and Byrne 2004, 'Minimum Bayes-Risk Decoding for Statistical Machine Translation'; Eikema and Aziz 2020, 'Is
    MAP Decoding All You Need?', which draws the translations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal, get_args

Utility = Literal["chrf", "bleu"]
UTILITIES: tuple[str, ...] = get_args(Utility)


def utility(name: str, tokenize: str = "13a") -> Callable[[str, str], float]:
    """Return sacreBLEU's score of a hypothesis against a reference, 0 to 100, for single sentences.

    Args:
        tokenize: sacreBLEU's tokenizer for BLEU; of a language without spaces, 13a makes a sentence one word.

    Raises:
        ValueError: There is no such utility or tokenizer, or the tokenizer needs what is not installed.
    """
    # Take a while to import
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    from seq2seq.metrics.scorers import check_tokenize

    if name not in UTILITIES:
        raise ValueError(f"unknown utility '{name}': choose {' or '.join(UTILITIES)}")
    # Without it a sentence that shares no 4-gram has BLEU 0, whatever else it shares
    metric = CHRF() if name == "chrf" else BLEU(effective_order=True, tokenize=check_tokenize(tokenize))
    return lambda hypothesis, reference: float(metric.sentence_score(hypothesis, [reference]).score)


def expected_utilities(texts: Sequence[str], score: Callable[[str, str], float]) -> list[float]:
    """Return the mean score of each text against all of them, itself included."""
    counts = Counter(texts)
    means = {text: sum(count * score(text, other) for other, count in counts.items()) / len(texts) for text in counts}
    return [means[text] for text in texts]
