"""Identify the language of a text with py3langid, an optional package that works offline."""

from __future__ import annotations

import functools
from typing import Any

from seq2seq.data.languages import primary_subtag
from seq2seq.system.packages import MissingPackageError, require

# Languages for which the package takes much text of a larger one of the same script.
_FAMILIES = {"wuu": "zh", "yue": "zh", "pcm": "en"}


def language_of(text: str) -> tuple[str, float] | None:
    """Return the most probable language of a text, and its probability; None for a text without letters or words.

    The probability is low for a text of few words.

    Returns:
        A code as of ISO 639-1 where the language has one, such as ("de", 0.98).

    Raises:
        MissingPackageError: The package is not installed.
    """
    if not any(map(str.isalpha, text)):
        return None
    code, probability = _identifier().classify(text)
    # This class is for markup and numbers
    return None if code == "zxx" else (_FAMILIES.get(code) or code, float(probability))


def other_language(text: str, expected: str, *, least: float = 0.8) -> str | None:
    """Return the language of a text that is almost certainly not in the language expected, else None.

    The result is None, too, without the package: this function is for hints, which are a convenience.

    Args:
        expected: Code of a language; for one that the package does not know, the result is None.
        least: Smallest probability of the other language.
    """
    known = primary_subtag(expected)
    try:
        if known not in _identifier().labels:
            return None
    except MissingPackageError:
        return None
    found = language_of(text)
    return found[0] if found is not None and found[0] != _FAMILIES.get(known, known) and found[1] >= least else None


@functools.cache
def _identifier() -> Any:
    package = require("py3langid.langid", "identification of languages", extra="language")
    return package.LanguageIdentifier.from_model_file(package.MODEL_FILE, norm_probs=True)
