"""The target languages of a model, and the tag before each source that asks for one of several."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seq2seq.data.tokenizer import Tokenizer


def language_tag(language: str) -> str:
    """Return the piece that asks for a target language, as in <2de>."""
    return f"<2{language}>"


def target_languages(meta: Mapping[str, Any]) -> list[str]:
    """Return the languages that the model of a `seq2seq` entry translates to."""
    return tagged_languages(meta) or [str(meta["tgt_lang"])]


def target_tags(meta: Mapping[str, Any], tokenizer: Tokenizer, tgt_lang: str | None = None) -> list[int]:
    """Return the ids before every source that ask for a target language; none for a model without tags.

    Args:
        meta: The `seq2seq` entry of its checkpoint.
        tgt_lang: The language (default: the one that the entry names first).

    Raises:
        ValueError: The model does not translate to this language.
    """
    wanted = tgt_lang or meta["tgt_lang"]
    languages = target_languages(meta)
    if wanted not in languages:
        raise ValueError(f"this checkpoint does not translate to '{wanted}'; it translates to {', '.join(languages)}")
    return tokenizer.tag_ids([language_tag(wanted)]) if tagged_languages(meta) else []


def tagged_languages(meta: Mapping[str, Any]) -> list[str]:
    """Return the languages that tags ask for; none for a model without tags."""
    found = meta.get("tgt_langs")
    # The file may have been written by anybody
    return [str(language) for language in found] if isinstance(found, list) else []
