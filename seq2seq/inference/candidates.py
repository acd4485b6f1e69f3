"""Translations of lines as text: made of the ids of a search, ranked, and as many as are asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from seq2seq.data.tokenizer import Tokenizer
from seq2seq.inference.mbr import expected_utilities, utility
from seq2seq.inference.parts import SourceLine
from seq2seq.inference.search_jobs import Joined


class Candidate(NamedTuple):
    """Translation and its length-normalized log-probability (natural logarithm).

    Attributes:
        parts: Of a line that was translated in several parts, the text and the translation of each.
    """

    text: str
    score: float
    parts: tuple[tuple[str, str], ...] = ()


def as_text(
    tokenizer: Tokenizer,
    translations: list[list[Joined]],
    lines: Sequence[SourceLine] | None = None,
    *,
    spaces: bool = True,
) -> list[list[Candidate]]:
    """Turn the translations of each line into text; those of parts are joined as the parts of `lines` stand.

    Args:
        spaces: The language of the translations has spaces between sentences.
    """
    # One call for all of them: the tokenizer's overhead is per call
    texts = iter(tokenizer.decode([ids for row in translations for each in row for ids in each.ids]))
    if lines is None:
        return [[Candidate(next(texts), float(each.score)) for each in row] for row in translations]
    found = []
    for line, row in zip(lines, translations, strict=True):
        found.append([])
        for each in row:
            own = [next(texts) for _ in each.ids]
            pairs = zip((part.text for part in line.parts), own, strict=True) if len(own) > 1 else ()
            found[-1].append(Candidate(line.join(own, spaces=spaces), float(each.score), tuple(pairs)))
    return found


def agreement(metric: str, meta: Mapping[str, Any], lang: str) -> Callable[[str, str], float]:
    """Return the utility of a checkpoint's translations into `lang`."""
    # Imports sacreBLEU, which takes a while
    from seq2seq.metrics.scorers import tokenize_of

    return utility(metric, tokenize_of(meta, lang))


def rank_by_agreement(candidates: list[Candidate], score: Callable[[str, str], float]) -> None:
    """Sort candidates by their expected utility, in place, each text once."""
    means = expected_utilities([candidate.text for candidate in candidates], score)
    best = {each.text: each._replace(score=mean) for each, mean in zip(candidates, means, strict=True)}
    candidates[:] = sorted(best.values(), key=lambda each: -each.score)


def make_as_many(candidates: list[Candidate], n_best: int, blank: Candidate | None) -> None:
    """Fill up or cut, in place: exactly n_best for each line, so that N lines in give n_best * N lines out."""
    # The translation of a blank line is certain; lines that failed and short beams have none
    candidates += [blank or Candidate("", float("-inf"))] * (n_best - len(candidates))
    del candidates[n_best:]
