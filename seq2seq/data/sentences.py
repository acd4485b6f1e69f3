"""Cut a text into sentences, by sentencex's rules for its language and by plain rules."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from seq2seq.data.languages import primary_subtag, word_set

# White space, and zero-width characters in its place.
_SPACE = r"[\s\u200b\u2060\ufeff]"
_MARKS = ".!?…‼⁇⁈⁉؟۔।॥։።။។"
# The end of a sentence: marks that need no space after them, or any mark before white space. Possessive quantifiers
# keep the time linear.
_END = re.compile(
    rf"[。！？｡]++[」』）】》〉”’\")]*+{_SPACE}*+"
    rf"|(?<![{_MARKS}])[{_MARKS}]++[\"'»«”“’‘)\]}}›]*+{_SPACE}++"
)
# The number of a list item or a heading, which belongs to the next sentence.
_NUMBERED = re.compile(r"\W*(?:[\d.]+|[IVXLCM]{1,6}|[^\W\d_])[.)]?\s*")
# Words that are always abbreviations before a period.
_ABBREVIATIONS = word_set(
    "bspw bzw ca cf dipl dr dra dott evtl fr frl ggf hr hrn inkl mio mlle mme mr mrs ms nr núm prof proff resp sig "
    "sigg sr sra sres st vgl vs zb zzgl стр ул"
)
# Words that are abbreviations only before a number.
_BEFORE_NUMBERS = word_set(
    "abb abs apr art aug bd cap ch chap dec dez feb fig figs jan jul jun kap mar no nos nov oct okt p pag pp s sec "
    "sep sept tab vol рис с"
)
# Languages that write ordinal numbers with a period, as in "am 3. Oktober".
_ORDINALS = word_set("de cs da et fi hr hu is lb lt lv nb nn no pl sk sl sr tr")
# Most characters of an abbreviation, and of a text that the library cuts.
_LONGEST_WORD = 60
_LONGEST_TEXT = 1 << 15
_LETTER_AFTER_END = re.compile(r"(?<=[.!?…]\s)[^\W\d_]")
_SPACE_OF_BYTES = re.compile(r"[^\S\x00-\x7f]")  # white space of several bytes in UTF-8


def sentences(text: str, language: str) -> list[str]:
    """Cut a text into sentences, each with the white space after it; joined, they are the text.

    Args:
        language: Code of the language, such as `de` or `zh-CN`; an unknown language has the rules of English.
    """
    # Most lines are one sentence
    if not _END.search(text.rstrip()):
        return [text] if text else []
    subtag = primary_subtag(language)
    # The library takes quadratic time for thousands of open quotes
    return _cut_by_library(subtag, text) if len(text) <= _LONGEST_TEXT else cut_by_marks(subtag, text)


def _cut_by_library(language: str, text: str) -> list[str]:
    """Cut by sentencex, which knows abbreviations by language but begins no sentence with a lowercase letter."""
    from sentencex import segment  # pyright: ignore[reportAttributeAccessIssue]  # compiled

    # The library panics at "B\u00a0. C". One character replaces one, so that positions stay
    seen = _SPACE_OF_BYTES.sub(" ", text)
    if text == text.lower():
        # In lowercase text, any letter may begin a sentence
        seen = _LETTER_AFTER_END.sub(lambda match: match[0].upper() if len(match[0].upper()) == 1 else match[0], seen)
    parts: list[str] = []
    start = 0
    for length in map(len, segment(language, seen)):
        # The library joins sentences after a bracket or a short word
        parts += cut_by_marks(language, text[start : start + length])
        start += length
    # The library does not know all titles
    return _join(parts, _is_abbreviated)


def cut_by_marks(language: str, text: str) -> list[str]:
    """Cut after marks, except after abbreviations, initials and ordinals, and before lowercase letters."""
    parts = []
    start = 0
    for end in _END.finditer(text):
        parts.append(text[start : end.end()])
        start = end.end()
    capitals = text != text.lower()
    return _join([*parts, text[start:]], lambda *pair: _continues(*pair, capitals=capitals, language=language))


def _join(parts: Sequence[str], continues: Callable[[str, str], bool]) -> list[str]:
    """Join two parts if a sentence continues across them, or if one has no words."""
    groups: list[list[str]] = []
    has_words = False  # of the last group
    for part in filter(None, parts):
        # Marks belong to the part before them, the number of a list to the part after it
        marks = not any(map(str.isalnum, part))
        if groups and (not has_words or marks or continues(groups[-1][-1], part)):
            groups[-1].append(part)
        else:
            groups.append([part])
            has_words = False
        has_words = has_words or not (marks or _NUMBERED.fullmatch(part))
    if len(groups) > 1 and not has_words:
        last = groups.pop()
        groups[-1] += last
    return ["".join(group) for group in groups]


def _continues(before: str, after: str, *, capitals: bool, language: str) -> bool:
    """Return True if a sentence continues from one part of a text to the next."""
    first = next(filter(str.isalnum, after), "")
    if first.islower() and capitals:
        return True
    word = _last_word(before)
    if word.isdigit():
        # A date or a rank continues the sentence; a year or an amount may end it
        return language in _ORDINALS and len(word) <= 2 and first.isupper()
    # An initial, or letters with periods such as z.B and U.S
    return re.fullmatch(r"(?:[^\W\d_]\.)*[^\W\d_]", word) is not None or _is_abbreviated(before, after)


def _is_abbreviated(before: str, after: str) -> bool:
    """Return True if a part ends with an abbreviation."""
    word = _last_word(before)
    # M. stands for Monsieur; the library takes it for a sentence
    if word == "M" or word.lower() in _ABBREVIATIONS:
        return True
    return after[0].isdigit() and (word.lower() in _BEFORE_NUMBERS or word.endswith("str"))


def _last_word(before: str) -> str:
    """Return the last word of a part before its period; "" if the part ends with another mark or a quote."""
    # A limit keeps the time linear
    ended = before[-_LONGEST_WORD:].rstrip()
    if not ended.endswith(".") or ended.endswith(".."):
        return ""
    return re.split(r"[\s(\[„“\"'«’-]", ended[:-1])[-1]
