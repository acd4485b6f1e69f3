"""Signs of how text is written: its script, its cutting into tokens or pieces, and its Unicode form."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from seq2seq.data.characters import is_blank
from seq2seq.data.cleaning import Pairs
from seq2seq.data.text_files import warn_once

# Script -> languages that are written in it, the first where nothing else is known, and a character of it
SCRIPTS = {
    "Han": ("zh ja yue wuu lzh nan hak gan hsn", "[\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0003ffff]"),
    "kana": ("ja", "[\u3040-\u30ff\uff66-\uff9f]"),
    "Hangul": ("ko", "[\u1100-\u11ff\uac00-\ud7af]"),
    "Thai": ("th", "[\u0e01-\u0e5b]"),
    "Lao": ("lo", "[\u0e81-\u0edf]"),
    "Tibetan": ("bo dz", "[\u0f00-\u0fff]"),
    "Burmese": ("my", "[\u1000-\u109f]"),
    "Khmer": ("km", "[\u1780-\u17ff]"),
    "Cyrillic": ("ru uk bg sr mk be kk", "[\u0400-\u04ff]"),
    "Arabic": ("ar fa ur ps", "[\u0600-\u06ff]"),
    "Greek": ("el", "[\u0370-\u03ff]"),
    "Hebrew": ("he yi", "[\u0590-\u05ff]"),
    "Devanagari": ("hi ne mr", "[\u0900-\u097f]"),
}
# Scripts of languages that BLEU's tokenizer 13a is not for: the first eight.
_OWN_TOKENIZER = tuple(SCRIPTS)[:8]
# Less of it is names and quotations. A character of these scripts says more than a Latin letter, hence not half.
_MOST = 0.3

# Signs of text that is not as people write it: what to look for, its share of the lines from which on it is one, and
# what such lines are like. Raw corpora have pieces in 0.01% of lines, entities in 0.5%, a period after a space in 0.5%.
_PIECES = "the text is in pieces of a tokenizer: join them"
_TOKENS = "the text is tokenized: detokenize it, as sacremoses does"
_MARKS = (
    (re.compile("@@(?: |$)"), 0.01, "have '@@ '", f"{_PIECES}, as sed -r 's/@@( |$)//g' does"),
    (re.compile("▁"), 0.01, "have '▁'", f"{_PIECES}, as sed 's/ //g; s/▁/ /g' does"),
    (re.compile("<0x[0-9A-F]{2}>"), 0.01, "have bytes such as '<0x41>'", f"{_PIECES} by the tokenizer itself"),
    (re.compile(r"(?:^| )##\w|￭"), 0.01, "have '##' or '￭' within words", f"{_PIECES}, as their tokenizer does"),
    (re.compile(r"&(?:apos|quot|amp|lt|gt|#91|#93|#124);"), 0.1, "have entities such as '&apos;'", _TOKENS),
    (re.compile(r" @[-,.:/]@ "), 0.1, "have '@-@'", _TOKENS),
    (re.compile(r"\S \.$"), 0.1, "end in ' .'", _TOKENS),
)
# From so many lines on the share does not matter: sacreBLEU's own limit.
_ANYWAY = 100


def script_language(lines: Sequence[str]) -> str | None:
    """Return the language of the script that most of the text is in, of those that 13a is not for; None for others.

    It is zh for Chinese characters without kana, and ko, which has spaces, for Hangul.
    """
    text = "".join(lines)
    counts = {name: len(re.findall(SCRIPTS[name][1], text)) for name in _OWN_TOKENIZER}
    # Japanese has both
    if counts["kana"] > 0.05 * counts["Han"]:
        counts["kana"] += counts["Han"]
    name = max(counts, key=lambda each: counts[each])
    letters = sum(map(str.isalpha, text))
    return SCRIPTS[name][0].split()[0] if counts[name] > _MOST * letters else None


def tokenization_marks(lines: Sequence[str]) -> str | None:
    """Describe the first sign that text is in tokens or pieces: the lines that have it, and a remedy; None if raw."""
    written = [(number, line) for number, line in enumerate(lines, 1) if not is_blank(line)]
    for pattern, share, what, remedy in _MARKS:
        found = [number for number, line in written if pattern.search(line.rstrip())]
        if found and len(found) >= min(_ANYWAY, share * len(written)):
            return f"{len(found):,} of {len(lines):,} lines {what} (first: line {found[0]:,}): {remedy}"
    return None


def warn_of_tokens(sample: Pairs, name: str) -> None:
    """Warn, once, if the text of a corpus is tokenized or in pieces, by a sample of its pairs."""
    for side, lines in zip(("source", "target"), sample, strict=True):
        if marks := tokenization_marks(lines):
            warn_once(
                f"{name}: of a sample of the {side} side, {marks}; a model translates, and is scored on, what it sees"
            )
            return


def form_difference(one: Sequence[str], other: Sequence[str]) -> str | None:
    """Describe a difference of two texts in Unicode forms, with the lines of each that have one; None without."""
    for what, has in (
        ("decomposed characters (another form than NFC)", lambda line: not unicodedata.is_normalized("NFC", line)),
        ("full-width letters, digits or signs (NFKC has none)", re.compile("[\uff01-\uff5e]").search),
        ("half-width kana (NFKC has none)", re.compile("[\uff66-\uff9f]").search),
    ):
        counts = [sum(map(bool, map(has, lines))) for lines in (one, other)]
        # Not what a bad translation leaves out
        if max(counts) >= max(1, 0.02 * len(one)) and 5 * min(counts) < max(counts):
            return f"{counts[0]:,} against {counts[1]:,} lines with {what}"
    return None
