"""Language codes, languages without spaces, and the tags that ask a model for a target language."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from seq2seq.data.tokenizer import Tokenizer


def word_set(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


# Other codes of a language: ISO 639-2 and 639-3, and the countries and names that users write.
_OTHER_CODES = {
    "ar": "ara arb arabic",
    "bg": "bul bulgarian",
    "bn": "ben bengali",
    "bo": "bod tib tibetan",
    "ca": "cat catalan",
    "cs": "ces cze cz czech",
    "da": "dan dk danish",
    "de": "deu ger german",
    "el": "ell gre gr greek",
    "en": "eng english",
    "es": "spa sp spanish",
    "et": "est ekk estonian",
    "fa": "fas per pes persian",
    "fi": "fin finnish",
    "fr": "fra fre french",
    "ga": "gle irish",
    "gu": "guj gujarati",
    "he": "heb iw hebrew",
    "hi": "hin hindi",
    "hu": "hun hungarian",
    "is": "isl ice icelandic",
    "it": "ita italian",
    "ja": "jpn jp japanese",
    "kk": "kaz kazakh",
    "km": "khm kh khmer",
    "kn": "kan kannada",
    "ko": "kor korean",
    "lo": "lao",
    "lt": "lit lithuanian",
    "lv": "lav lvs latvian",
    "mk": "mkd mac macedonian",
    "ml": "mal malayalam",
    "mr": "mar marathi",
    "my": "mya bur mm burmese",
    "nl": "nld dut dutch",
    "pl": "pol polish",
    "pt": "por portuguese",
    "ro": "ron rum romanian",
    "ru": "rus russian",
    "sk": "slk slo slovak",
    "sl": "slv slovenian",
    "sr": "srp serbian",
    "sv": "swe swedish",
    "ta": "tam tamil",
    "te": "tel telugu",
    "th": "tha thai",
    "tr": "tur turkish",
    "uk": "ukr ua ukrainian",
    "ur": "urd urdu",
    "vi": "vie vn vietnamese",
    "yue": "cantonese",
    "zh": "zho chi cmn cn chs cht zhs zht zhcn zhtw chinese mandarin",
}
_LANGUAGE_OF = {other: code for code, others in _OTHER_CODES.items() for other in others.split()}
# Languages that are written in Chinese characters.
SINITIC = word_set("zh yue wuu lzh nan hak gan hsn cjy mnp cdo cpx czh czo csp cnp")
# Languages without spaces between words, unless their code names another script. Korean has spaces.
_UNSPACED = SINITIC | word_set("ja th lo km my bo dz dzo nod tts sou shn mnw rki khb tdd blt kht ii iii")
# Parts of codes of Chinese that imply a script, such as regions.
_CHINESE_SCRIPTS = dict.fromkeys(["cn", "sg", "my", "chs", "zhs", "zhcn"], "hans")
_CHINESE_SCRIPTS |= dict.fromkeys(["tw", "hk", "mo", "cht", "zht", "zhtw"], "hant")
# Codes of ISO 15924: scripts without spaces between words, and other scripts of the same languages.
_UNSPACED_SCRIPTS = word_set(
    "hans hant hani bopo jpan hrkt hira kana thai laoo khmr mymr tibt java bali lana tale talu tavt yiii"
)
_SPACED_SCRIPTS = word_set("latn cyrl arab hang deva")


def primary_subtag(lang: str) -> str:
    """Return the shortest code of a language, such as `zh` for zh-CN, zho_Hans and the common mistake `cn`.

    The result for an unknown code is its first part in lower case.
    """
    first = _parts(lang)[0]
    return _LANGUAGE_OF.get(first, first)


def bcp47(lang: str) -> str:
    """Return a code as pages and browsers write it, such as `zh-Hans` for zho_Hans."""
    return "-".join([primary_subtag(lang), *re.split("[-_]", lang)[1:]])


def other_subtags(lang: str) -> set[str]:
    """Return the other parts of a code in lower case, such as its script and region."""
    return set(_parts(lang)[1:])


def closest_codes(wanted: str, known: Sequence[str]) -> list[str]:
    """Return the known codes of the language of a code that are most like it, as zho_Hant is for zh-Hant and zh-TW."""

    def subtags(lang: str) -> set[str]:
        found = other_subtags(lang)
        # A script decides before a region
        if primary_subtag(lang) == "zh" and not found & {"hans", "hant"}:
            found |= {_CHINESE_SCRIPTS[part] for part in _parts(lang) if part in _CHINESE_SCRIPTS}
        return found

    def likeness(code: str) -> tuple[int, int]:
        own = subtags(code)
        return len(own & asked), -len(own - asked)

    language, asked = primary_subtag(wanted), subtags(wanted)
    found = {code: likeness(code) for code in known if primary_subtag(code) == language}
    return [code for code, like in found.items() if like == max(found.values())]


def has_spaces(lang: str) -> bool:
    """Return True if a language has spaces between words; a script in its code decides."""
    parts = other_subtags(lang)
    if not parts.isdisjoint(_SPACED_SCRIPTS | _UNSPACED_SCRIPTS):
        return parts.isdisjoint(_UNSPACED_SCRIPTS)
    return primary_subtag(lang) not in _UNSPACED


def _parts(lang: str) -> list[str]:
    return lang.lower().replace("_", "-").split("-")


def language_tag(language: str) -> str:
    """Return the piece that asks for a target language, as in <2de>."""
    return f"<2{language}>"


class Tags(NamedTuple):
    """Ids of the tags before every source, and before every target."""

    source: list[int]
    target: list[int]


NO_TAGS = Tags([], [])


def target_languages(meta: Mapping[str, Any]) -> list[str]:
    """Return the languages that the model of a `seq2seq` entry translates to."""
    return tagged_languages(meta) or [str(meta["tgt_lang"])]


def source_languages(meta: Mapping[str, Any], tokenizer: Tokenizer) -> list[str]:
    """Return the languages that can be requested for sources, the default one first."""
    tagged = tagged_languages(meta) if tokenizer.tags_targets else []
    return list(dict.fromkeys([str(meta["src_lang"]), *tagged]))


def tags_of(
    meta: Mapping[str, Any], tokenizer: Tokenizer, tgt_lang: str | None = None, src_lang: str | None = None
) -> Tags:
    """Return the tags of a translation, by default between the languages of `meta`; none for a model without tags.

    Raises:
        ValueError: The model does not translate between these languages.
    """
    source, target = src_lang or str(meta["src_lang"]), tgt_lang or str(meta["tgt_lang"])
    sources = source_languages(meta, tokenizer)
    for wanted, known, word in ((target, target_languages(meta), "to"), (source, sources, "from")):
        if wanted not in known:
            raise ValueError(
                f"this checkpoint does not translate {word} '{wanted}'; it translates {word} {', '.join(known)}"
            )
    return tags_between(tokenizer, source, target) if tagged_languages(meta) else NO_TAGS


def tags_between(tokenizer: Tokenizer, source: str, target: str) -> Tags:
    """Return the tags that a tokenizer has for two languages: before sources for the target's, or before each side."""
    wanted = tokenizer.tag_ids([language_tag(target)])
    return Tags(tokenizer.tag_ids([language_tag(source)]), wanted) if tokenizer.tags_targets else Tags(wanted, [])


def tagged_languages(meta: Mapping[str, Any]) -> list[str]:
    """Return the languages that can be requested by a tag; none for a model without tags."""
    found = meta.get("tgt_langs")
    # The file is not trusted
    return [str(language) for language in found] if isinstance(found, list) else []
