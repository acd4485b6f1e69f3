"""BLEU as papers computed it before sacreBLEU: on Moses tokens, and for English-German split at hyphens besides."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any

from seq2seq.evaluation.metrics import Score

CONVENTIONS = ("tokenized", "compound-split")

# Scripts without spaces between words, of which Moses makes no words.
_UNSPACED = frozenset(
    "zh zho chi cmn yue wuu lzh ja jpn ko kor th tha lo lao km khm my mya bo bod".split()  # noqa: SIM905 - one line
)
# Bytes, since the Perl one-liner that everybody ran reads bytes; a match consumes both neighbours of the hyphen, so of
# "a-b-c" only the first is split.
_COMPOUND = re.compile(rb"(\S)-(\S)")


def check_convention(convention: str, lang: str) -> str:
    """Return `convention` if text in `lang` can be scored by it; ValueError with the remedy otherwise."""
    if convention not in CONVENTIONS:
        raise ValueError(f"unknown scoring convention {convention!r}; choose one of {', '.join(CONVENTIONS)}")
    if _first(lang) in _UNSPACED:
        raise ValueError(
            f"Moses makes no words of '{lang}'; report sacreBLEU's score alone (no {convention} convention)"
        )
    _moses(lang)
    return convention


def convention_bleu(
    hypotheses: Sequence[str], references: Sequence[str], *, convention: str, lang: str, lowercase: bool = False
) -> Score:
    """Corpus BLEU of detokenised text as multi-bleu.perl gives it on `convention` tokens of language `lang`.

    tokenized: tokenizer.perl -no-escape of Moses, then BLEU = BP exp(sum_n log p_n / 4) without smoothing.
    compound-split: each a-b of those tokens becomes `a ##AT##-##AT## b` first, so parts of compounds count as words.
    Moses' normalisation of punctuation is not applied. Comparable with papers, not with sacreBLEU's scores.
    """
    import sacremoses
    from sacrebleu.metrics.bleu import BLEU

    check_convention(convention, lang)
    sides = [[_tokens(line, convention, lang) for line in side] for side in (hypotheses, references)]
    if lowercase:
        sides = [[line.lower() for line in side] for side in sides]
    found = BLEU(tokenize="none", smooth_method="none", force=True).corpus_score(sides[0], [sides[1]])
    case, split = "lc" if lowercase else "mixed", "|split:compound" if convention == "compound-split" else ""
    signature = f"nrefs:1|case:{case}|tok:moses-{_first(lang)}{split}|smooth:none|sacremoses:{sacremoses.__version__}"
    return Score(f"BLEU ({convention})", float(found.score), signature)


def split_compounds(line: str) -> str:
    """`rich-text format` -> `rich ##AT##-##AT## text format`."""
    return _COMPOUND.sub(rb"\1 ##AT##-##AT## \2", line.encode("utf-8", "replace")).decode("utf-8")


def _tokens(line: str, convention: str, lang: str) -> str:
    tokens = str(_moses(lang).tokenize(line, return_str=True, escape=False))
    return split_compounds(tokens) if convention == "compound-split" else tokens


def _first(lang: str) -> str:
    return lang.lower().replace("_", "-").split("-")[0]


@functools.cache
def _moses(lang: str) -> Any:
    try:
        from sacremoses import MosesTokenizer
    except ImportError as error:
        raise ValueError("tokenized BLEU needs the package sacremoses: pip install sacremoses") from error
    return MosesTokenizer(lang=_first(lang))
