"""Describe a model for translation: its settings, languages and search, as plain types."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import seq2seq
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.settings.declare import read_section
from seq2seq.settings.search import KEPT, SearchSettings
from seq2seq.system.errors import visible
from seq2seq.system.model_path import CheckpointError

# Format of the files. Every version reads all earlier formats, from 1 on; see docs/training.md.
FORMAT = 1
# The key of the description, in the header's metadata and in the states that training saves.
KEY = "seq2seq"
# Largest size of a description in bytes, and its deepest nesting. The presets have up to 10 kB and 10 levels.
MAX_BYTES = 1 << 20
MAX_DEPTH = 60
# Most characters of a language or a data set, which may be a path.
MAX_NAME = 4096
# Types of the values that the description must have.
_FIELDS: dict[str, type] = {
    "model": dict,
    "tokenizer": dict,
    "src_lang": str,
    "tgt_lang": str,
    "tokenize": str,
    "data": str,
    "versions": dict,
}


def describe(
    *,
    model_config: Mapping[str, Any],
    tokenizer: Tokenizer,
    src_lang: str,
    tgt_lang: str,
    tokenize: str,
    data: str,
    search: SearchSettings | None = None,
    tgt_langs: Sequence[str] = (),
    lines: Mapping[str, Any] | None = None,
    preset: str | None = None,
    context: int = 0,
    terms: bool = False,
) -> dict[str, Any]:
    """Make the description of a checkpoint.

    Args:
        model_config: The argument of `build_model`.
        tokenize: sacreBLEU's tokenizer.
        data: The data set's name.
        search: Settings by which the run decodes its test set.
        tgt_langs: Target languages of a model whose sources begin with the tag of a language.
        lines: Statistics of the training lines, see `LineStatistics`.
        preset: Label of the mixer.
        context: Sources of the document before each source, see `data.context.ContextWindow`.
        terms: Trained with translations of words in sources, see `data.terms`.

    Raises:
        TypeError: A value is not of a plain type.
        ValueError: The description is too large.
    """
    entry = {
        "format": FORMAT,
        "model": model_config,
        # For people who read the description; the SentencePiece model has its own normalizer
        "normalizer": tokenizer.normalizer,
        "src_lang": src_lang,
        "tgt_lang": tgt_lang,
        "tokenize": tokenize,
        "data": data,
        "versions": versions(),
    }
    # Without n_best, which the caller decides, and max_len, which the model decides
    kept = search and {key: getattr(search, key) for key in KEPT}
    more = {"search": kept, "tgt_langs": tgt_langs, "lines": lines, "preset": preset}
    more |= {"context": context, "terms": terms}
    entry |= {key: value for key, value in more.items() if value}
    # Convert to JSON and back, so that a bad value stops training at its start, not when it saves
    state = tokenizer.to_state()
    text = as_json(entry | {"tokenizer": {key: value for key, value in state.items() if not isinstance(value, bytes)}})
    try:
        parse_json(text)
    except ValueError as error:
        reason = f"the description of a checkpoint {error}: shorten tokenizer.factors or the settings"
        raise ValueError(reason) from None
    return json.loads(text) | {"tokenizer": state}


def search_settings(meta: Mapping[str, Any]) -> SearchSettings:
    """Read the search settings of a description, with defaults for missing ones.

    Raises:
        ValueError: The settings are not valid.
    """
    # Settings that a later version has added are ignored
    section = {key: value for key, value in meta.get("search", {}).items() if key in KEPT}
    return read_section(SearchSettings, section, "search")


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that results depend on."""
    numbers = {"python": platform.python_version(), "seq2seq": seq2seq.__version__, "torch": str(torch.__version__)}
    # Packages that only training or scoring needs may be missing
    for name in ("lightning", "sentencepiece", "sacrebleu"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            numbers[name] = importlib.metadata.version(name)
    return numbers


def as_json(value: Any) -> str:
    """Write a description as JSON.

    Raises:
        TypeError: The description holds a value that is not of a plain type.
    """
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def parse_json(text: str | bytes) -> dict[str, Any]:
    """Parse the description in an untrusted file; control characters in its texts become visible.

    Raises:
        ValueError: The text is not JSON, not a mapping, too large or too deep; the message is a predicate, to follow
            the caller's subject.
    """
    if len(text) > MAX_BYTES:
        raise ValueError(f"has more than {MAX_BYTES:,} bytes")
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(f"is nested more than {MAX_DEPTH} deep") from None
    except ValueError as error:
        raise ValueError(f"is not JSON ({error})") from None
    if not isinstance(value, dict):
        raise ValueError("is not a mapping")
    # Check the depth level by level: code that copies or prints the value recurses, and would fail on a deep one
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        sections = [each for each in level if isinstance(each, dict | list)]
        level = [part for each in sections for part in (each.values() if isinstance(each, dict) else each)]
    if level:
        raise ValueError(f"is nested more than {MAX_DEPTH} deep")
    return visible(value)


def check_description(meta: Mapping[str, Any], path: Path) -> None:
    """Raise CheckpointError unless a description has a known format, all fields, and a valid search."""
    # type() instead of isinstance, since True is an int
    number = meta.get("format")
    if type(number) is not int or number < 1:
        raise CheckpointError(f"{path}: its format is {number!r}, which is not a format number")
    if number > FORMAT:
        raise CheckpointError(
            f"{path}: is of format {number}, but this version reads up to {FORMAT}; install a newer seq2seq"
        )
    # Only types are checked here; the code that uses a value checks the value
    for name, cls in _FIELDS.items():
        if not isinstance(meta.get(name), cls):
            raise CheckpointError(f"{path}: its '{KEY}.{name}' is missing or no {cls.__name__}")
        if cls is str and len(meta[name]) > MAX_NAME:
            raise CheckpointError(
                f"{path}: its '{KEY}.{name}' has more than {MAX_NAME:,} characters, which no name has"
            )
    if not isinstance(meta.get("search", {}), dict):
        raise CheckpointError(f"{path}: its '{KEY}.search' is not a dict")
    try:
        search_settings(meta)
    except ValueError as error:
        raise CheckpointError(f"{path}: its settings of a search cannot be used ({error})") from None
