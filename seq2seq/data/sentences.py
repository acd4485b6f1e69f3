"""Cut a text into sentences by their marks."""

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
    rf"[。！？｡।॥။។]++[」』）】》〉”’\")]*+{_SPACE}*+"
    rf"|(?<![{_MARKS}])[{_MARKS}]++[\"'»«”“’‘)\]}}›]*+{_SPACE}++"
)
# The number of a list item or a heading, which belongs to the next sentence.
_NUMBERED = re.compile(r"\W*(?:[\d.]+|[IVXLCM]{1,6}|[^\W\d_])[.)]?\s*")
# Words that are always abbreviations before a period.
_ABBREVIATIONS = word_set(
    "allg avda bspw bzw ca cf d.h dhr dipl dr dra dott e.g evtl exkl fr frl geb gegr ggf gral hr hrn i.e incl ing inkl "
    "insb lic messrs mevr mgr mio mlle mme mr mrd mrs ms nr núm prof proff resp sig sigg sog sr sra sras sres srta st "
    "tsd ud uds vgl vs z.b zb zzgl акад им проф стр ул"
)
# Titles that are other words in small letters.
_TITLES = word_set("Abt Adm Arch Avv Brig Capt Cmdr Col Gen Gov Hon Lt Maj Pfc Rep Reps Rev Sen Sens Sgt")
# Words that are abbreviations only before a number.
_BEFORE_NUMBERS = word_set(
    "abb abs apr art aug bd cap ch chap dec dez feb fig figs jan jul jun kap mar no nos nov oct okt p pag pp s sec "
    "sep sept tab vol рис с"
)
# Words that have a capital at the start of a sentence alone.
_STARTERS = word_set(
    "aber als but das dann der die diese er es elle er he his however ich if il im in it its mais nous she sie so that "
    "the then there they this we wenn when wir you я мы он она они это"
)
# Languages that write ordinal numbers with a period, as in "am 3. Oktober".
_ORDINALS = word_set("de cs da et fi hr hu is lb lt lv nb nn no pl sk sl sr tr")
# Most characters of an abbreviation.
_LONGEST_WORD = 60


def sentences(text: str, language: str) -> list[str]:
    """Cut a text into sentences, each with the white space after it; joined, they are the text.

    Args:
        language: Code of the language, such as `de` or `zh-CN`; an unknown language has the rules of English.
    """
    language = primary_subtag(language)
    parts = []
    start = 0
    # Greek writes its question mark as a semicolon; U+037E is the same mark
    for end in _END.finditer(re.sub("[;\u037e]", "?", text) if language == "el" else text):
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
    # M. stands for Monsieur
    if word == "M" or word in _TITLES or word.lower() in _ABBREVIATIONS:
        return True
    following = re.search(r"\w+", after)
    if following and following[0].lower() in _STARTERS:
        return False
    if first.isdigit() and (word.lower() in _BEFORE_NUMBERS or word.endswith("str")):
        return True
    # A date or a rank continues the sentence; a year or an amount may end it
    if re.fullmatch(r"\d{1,2}|[IVX]{2,}", word):
        return language in _ORDINALS and (first.isupper() or first.isdigit())
    # An initial, or letters with periods such as z.B and U.S
    return re.fullmatch(r"(?:[^\W\d_]\.)*[^\W\d_]", word) is not None and word not in ("a.m", "p.m")


def _last_word(before: str) -> str:
    """Return the last word of a part before its period; "" if the part ends with another mark or a quote."""
    # A limit keeps the time linear
    ended = before[-_LONGEST_WORD:].rstrip()
    if not ended.endswith(".") or ended.endswith(".."):
        return ""
    # Not at the apostrophe of "aunt's" and "isn't"
    return re.split(r"[\s(\[„“\"«-]|['’](?!(?:s|t|d|m|ll|re|ve)$)", ended[:-1])[-1]
