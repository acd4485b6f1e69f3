"""Detection of exchanged sides in a corpus, by script, else by function words."""

from __future__ import annotations

import re
from collections.abc import Sequence

from seq2seq.data.cleaning import Pairs, shorten
from seq2seq.data.languages import primary_subtag
from seq2seq.data.text_files import warn_once
from seq2seq.data.text_form import SCRIPTS

# Pairs that tell it.
_FEWEST = 8
# Frequent words by language. They overlap between relatives, hence the comparison of both sides.
_FUNCTION_WORDS = {
    "de": "der die das und ist nicht ich du er wir ein eine zu mit auf den dem",
    "en": "the and is not i you he we a an to with on of was that it",
    "fr": "le la les et est pas je tu il nous un une des du que dans",
    "es": "el los las y es no yo que un una de en se por con su",
    "it": "il lo gli e è non io che un una di in si per con sono",
    "nl": "de het en is niet ik jij hij wij een te met op van dat er",
    "pt": "o os as e é não eu que um uma de em se por com ele",
    "ro": "și este nu eu un o în la cu pe care de să din al a",
    "cs": "a je ne já ty on my na se že v s z to by jsem",
    "pl": "i jest nie ja ty on my na się że w z do to był jak",
}


def looks_swapped(src_lines: Sequence[str], tgt_lines: Sequence[str], *, src: str, tgt: str) -> bool:
    """Check if the text of each side looks more like the other side's language.

    Args:
        src: Language that the source lines should be in.
        tgt: Language that the target lines should be in.
    """
    src, tgt = primary_subtag(src), primary_subtag(tgt)
    # How much better the other side's text fits the language of this side
    src_gap = _fit(tgt_lines, src) - _fit(src_lines, src)
    tgt_gap = _fit(src_lines, tgt) - _fit(tgt_lines, tgt)
    # Both sides must agree (a language that is not known here gives 0), and clearly together
    return min(src_gap, tgt_gap) >= -0.01 and src_gap + tgt_gap > 0.08


def _is_known(language: str) -> bool:
    language = primary_subtag(language)
    return language in _FUNCTION_WORDS or any(language in languages.split() for languages, _ in SCRIPTS.values())


def _fit(lines: Sequence[str], language: str) -> float:
    """Compute the share of the language's script in the characters, or of its function words in the words."""
    text = "\n".join(lines).lower()
    # Several for a language of several scripts, as Japanese
    patterns = [pattern for languages, pattern in SCRIPTS.values() if language in languages.split()]
    if patterns:
        return len(re.findall("|".join(patterns), text)) / max(1, len(text))
    # Runs of letters alone
    words = re.findall(r"[^\W\d_]+", text)
    # An unknown language has no function words: its share is 0 on both sides
    known = set(_FUNCTION_WORDS.get(language, "").split())
    return sum(word in known for word in words) / max(1, len(words))


def refuse_swapped(sample: Pairs, *, src: str, tgt: str, where: str = "data.train") -> None:
    """Raise ValueError if a sample of text has its sides exchanged; of an unknown language, warn.

    Args:
        where: The setting that names the text.
    """
    if len(sample[0]) < _FEWEST or not looks_swapped(*sample, src=src, tgt=tgt):
        return
    message = (
        f"{where}: source and target look swapped: the source side ({src}) reads like {tgt} "
        f"({shorten(sample[0][0])!r}); exchange data.src and data.tgt, or the files"
    )
    if _is_known(src) and _is_known(tgt):
        raise ValueError(message)
    # Labels of texts, for one, are in no language; once is enough
    if where == "data.train":
        warn_once(f"{message}, unless they are as they should be")
