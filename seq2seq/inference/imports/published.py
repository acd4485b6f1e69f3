"""Recognize the family of a published model, and make a checkpoint of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seq2seq.checkpoint import Stored, check_weights, stored_once
from seq2seq.inference.imports import fairseq, m2m100, marian
from seq2seq.inference.imports.shared import Languages, Published
from seq2seq.metadata import describe
from seq2seq.metrics.scorers import tokenize_for
from seq2seq.network.build import build_model, on_meta_device
from seq2seq.system.errors import first_line
from seq2seq.system.json_file import read_json

# Each module reads the folders of a family.
FAMILIES: Mapping[str, Any] = {"marian": marian, "m2m100": m2m100, "fairseq": fairseq}
# Families by the entry model_type of config.json.
_MODEL_TYPES = {"marian": "marian", "m2m_100": "m2m100", "nllb-moe": "m2m100"}


def imported(
    folder: Path,
    *,
    family: str | None = None,
    src_lang: str | None = None,
    tgt_lang: str | None = None,
    trust: bool = False,
) -> Stored:
    """Read a published model as the content of a checkpoint.

    Args:
        family: A name in FAMILIES; None recognizes it.
        src_lang: The source language, if the folder does not name it.
        tgt_lang: The target language; for a multilingual model, the default one.
        trust: Read a family whose files are pickled objects.

    Raises:
        ValueError: The folder is of no known family, lacks a file, holds a model that cannot be expressed, or is not
            trusted.
    """
    config = read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
    family = family or _MODEL_TYPES.get(str(config.get("model_type")))
    if family is None and fairseq.recognizes(folder):
        family = "fairseq"
    if family is None:
        raise ValueError(
            f"{folder}: is not recognized as a model of {', '.join(FAMILIES)}, by the model_type of config.json or by "
            "model.pt; if it is one, name the family by --from"
        )
    if family == "fairseq" and not trust:
        raise ValueError(
            f"{folder}: models of {family} are pickled objects of Python, a format that can carry code. This program "
            "reads tensors and settings alone and runs nothing from it; if you know where the file is from, add --trust"
        )
    try:
        made: Published = FAMILIES[family].read(folder, Languages(src_lang, tgt_lang))
    # Files of other programs, which are not complete or not as these write them
    except (KeyError, TypeError, AttributeError, IndexError, RuntimeError) as error:
        raise ValueError(
            f"{folder}: its files are incomplete or do not fit together ({type(error).__name__}: {first_line(error)})"
        ) from None
    tokenizer = made.tokenizer
    config = {"model": made.model, "mixer": made.mixer, **tokenizer.sizes}
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
        data=(folder if folder.is_dir() else folder.parent).resolve().name,
        search=made.search,
    )
    return Stored(meta, weights)
