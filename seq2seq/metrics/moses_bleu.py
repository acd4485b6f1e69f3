"""Compute BLEU as papers did before sacreBLEU: on Moses tokens, for English-German also split at hyphens."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any

from seq2seq.data.languages import has_spaces, primary_subtag
from seq2seq.metrics.scorers import Score
from seq2seq.system.packages import require

# In bytes, as in the Perl one-liner of the papers. A match consumes both neighbors of the hyphen: "a-b-c" is split only
# at the first hyphen.
_COMPOUND = re.compile(rb"(\S)-(\S)")


def check_convention(convention: str, lang: str) -> None:
    """Raise ValueError if Moses cannot tokenize `lang`, or sacremoses is missing."""
    # Moses splits at spaces, so a Chinese sentence would be one word
    if not has_spaces(lang):
        raise ValueError(
            f"Moses makes no words of '{lang}'; report sacreBLEU's score alone (no {convention} convention)"
        )
    _moses(lang)  # fails before any decoding if sacremoses is missing


def convention_bleu(
    hypotheses: Sequence[str], references: Sequence[str], *, convention: str, lang: str, lowercase: bool = False
) -> Score:
    """Compute corpus BLEU of detokenized text as multi-bleu.perl does on tokens of language `lang`.

    tokenized: tokenizer.perl -no-escape of Moses, then BLEU = BP exp(sum_n log p_n / 4) without smoothing.
    compound-split: each a-b of those tokens becomes `a ##AT##-##AT## b` first, so parts of compounds count as words.
    Moses' normalization of punctuation is not applied. Scores are comparable with papers, not with sacreBLEU's scores.

    Raises:
        ValueError: The convention does not fit the language, or sacremoses is missing.
    """
    import sacremoses
    from sacrebleu.metrics.bleu import BLEU

    check_convention(convention, lang)
    # multi-bleu.perl only splits at spaces
    ours = [_tokens(line, convention, lang, lowercase) for line in hypotheses]
    theirs = [_tokens(line, convention, lang, lowercase) for line in references]
    # tokenize="none" splits at spaces; no smoothing, so a corpus without a common 4-gram scores 0
    result = BLEU(tokenize="none", smooth_method="none", force=True).corpus_score(ours, [theirs])
    # sacreBLEU's own signature does not name the tokenization
    case = "lc" if lowercase else "mixed"
    split = "|split:compound" if convention == "compound-split" else ""
    signature = (
        f"nrefs:1|case:{case}|tok:moses-{primary_subtag(lang)}{split}|smooth:none|sacremoses:{sacremoses.__version__}"
    )
    return Score(f"BLEU ({convention})", float(result.score), signature)


def split_compounds(line: str) -> str:
    """Split at hyphens: `rich-text format` -> `rich ##AT##-##AT## text format`."""
    return _COMPOUND.sub(rb"\1 ##AT##-##AT## \2", line.encode("utf-8", "replace")).decode("utf-8")


def _tokens(line: str, convention: str, lang: str, lowercase: bool) -> str:
    # escape=False is -no-escape, which keeps & and quotes
    tokens = str(_moses(lang).tokenize(line, return_str=True, escape=False))
    tokens = split_compounds(tokens) if convention == "compound-split" else tokens
    # After tokenizing, like multi-bleu.perl -lc: Moses' rules depend on case
    return tokens.lower() if lowercase else tokens


@functools.cache
def _moses(lang: str) -> Any:
    # Cached: a new tokenizer loads lists of prefixes, which is too slow for every line
    return require("sacremoses", "tokenized BLEU", extra="moses").MosesTokenizer(lang=primary_subtag(lang))
