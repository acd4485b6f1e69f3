"""Identify the language of a text with py3langid, an optional package that works offline."""

from __future__ import annotations

import functools
from typing import Any

from seq2seq.data.languages import primary_subtag
from seq2seq.system.packages import MissingPackageError, require

# Languages for which the package takes much text of a larger one of the same script.
_FAMILIES = {"wuu": "zh", "yue": "zh", "pcm": "en"}


def other_language(text: str, expected: str, *, least: float = 0.8) -> str | None:
    """Return the language of a text that is almost certainly not in the language expected, else None.

    Without the package, the result is None too: hints are optional.

    Args:
        expected: Code of a language; for one that the package does not know, the result is None.
        least: Smallest probability of the other language; a text of few words has a low one.

    Returns:
        A code as of ISO 639-1 where the language has one, such as "de".
    """
    if not any(map(str.isalpha, text)):
        return None
    known = primary_subtag(expected)
    try:
        identifier = _identifier()
    except MissingPackageError:
        return None
    if known not in identifier.labels:
        return None
    code, probability = identifier.classify(text)
    code = _FAMILIES.get(code) or code
    # The class zxx is for markup and numbers
    same = code in (_FAMILIES.get(known, known), "zxx")
    return None if same or probability < least else code


@functools.cache
def _identifier() -> Any:
    package = require("py3langid.langid", "identification of languages", extra="language")
    return package.LanguageIdentifier.from_model_file(package.MODEL_FILE, norm_probs=True)
