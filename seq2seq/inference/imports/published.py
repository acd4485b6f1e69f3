"""Recognize the family of a published model, and make a checkpoint of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from seq2seq.checkpoint import Stored, check_weights, stored_once
from seq2seq.inference.imports import marian
from seq2seq.inference.imports.parts import Languages, Published
from seq2seq.metadata import describe
from seq2seq.metrics.scorers import tokenize_for
from seq2seq.network.build import build_model, on_meta_device


class Family(NamedTuple):
    """A family of models: how its folders are recognized, and how they are read."""

    recognizes: Callable[[Path], bool]
    read: Callable[[Path, Languages], Published]


FAMILIES: Mapping[str, Family] = {"marian": Family(marian.recognizes, marian.read)}


def family_of(folder: Path) -> str:
    """Return the name of the family of a folder.

    Raises:
        ValueError: The folder is of no known family.
    """
    found = next((name for name, family in FAMILIES.items() if family.recognizes(folder)), None)
    if found is None:
        raise ValueError(
            f"{folder}: is not recognized as a model of {', '.join(FAMILIES)}; if it is one, name the family by --from"
        )
    return found


def imported(
    folder: Path, *, family: str | None = None, src_lang: str | None = None, tgt_lang: str | None = None
) -> Stored:
    """Read a published model as the content of a checkpoint.

    Args:
        family: A name in FAMILIES; None recognizes it.
        src_lang: The source language, if the folder does not tell.
        tgt_lang: The target language or, for a model of several, the one that is translated to by default.

    Raises:
        ValueError: The folder is of no known family, lacks a file, or holds a model that cannot be expressed.
    """
    made = FAMILIES[family or family_of(folder)].read(folder, Languages(src_lang, tgt_lang))
    tokenizer = made.tokenizer
    sizes = {name: getattr(tokenizer, name) for name in ("src_vocab_size", "tgt_vocab_size", "pad_id", "joint")}
    config = {"model": made.model, "mixer": made.mixer, **sizes}
    weights = stored_once(made.weights)
    with on_meta_device():
        check_weights(build_model(config), weights, folder)
    meta = describe(
        model_config=config,
        tokenizer=tokenizer,
        src_lang=made.src_lang,
        tgt_lang=made.tgt_lang,
        tgt_langs=made.tgt_langs,
        tokenize=tokenize_for(made.tgt_lang),
        data=folder.resolve().name,
        search=made.search,
    )
    return Stored(meta, weights)
