"""Checks of the text that is scored: its language where none is given, and signs that its scores mislead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

from seq2seq.data.languages import has_spaces
from seq2seq.data.text_checks import form_difference, script_language, tokenization_marks
from seq2seq.metrics.scorers import tokenize_for
from seq2seq.system.files import uncompressed

Texts = Mapping[str, Sequence[str]]

# sacreBLEU's tokenizers that separate words at spaces alone, or at spaces and punctuation.
_SPACED = ("13a", "intl", "none")


def guess_language(references: Texts) -> tuple[str, str] | None:
    """Return the language of reference files and what says so, where BLEU needs another tokenizer than 13a for it.

    A file's suffix names it (test.zh, test.zh.gz), unless the text is in another script; else the script tells.

    Args:
        references: The lines of each file by its name.
    """
    found = script_language(list(chain.from_iterable(references.values())))
    for name in references:
        suffix = uncompressed(Path(name)).suffix[1:]
        # Of Korean and Japanese text, for one, the script alone does not say all; of `ref.my` in English, the suffix
        if found and tokenize_for(suffix) != "13a":
            return suffix, f"the suffix of {name}"
    # Korean text has spaces: 13a is not wrong for it, and its own tokenizer must be installed
    return (found, "the script of the references") if found and not has_spaces(found) else None


def text_warnings(hypotheses: Texts, references: Texts, *, tokenize: str | None, remedy: str) -> Iterator[str]:
    """Yield a line for each thing that makes scores mislead: script, text in tokens or pieces, other Unicode forms.

    Args:
        hypotheses: Lines by the name of their file.
        references: Likewise.
        tokenize: sacreBLEU's tokenizer, whose script is not checked if it is None.
        remedy: Setting of the tokenizer, up to its value.
    """
    if tokenize in _SPACED and (found := script_language(list(chain.from_iterable(references.values())))):
        yield (
            f"{', '.join(references)}: BLEU's tokenizer {tokenize} is not for the script of most of the text: "
            f"set {remedy}{tokenize_for(found)}"
        )
    for name, lines in chain(hypotheses.items(), references.items()):
        if marks := tokenization_marks(lines):
            yield f"{name}: {marks}; scores are comparable for plain text alone"
    for name, lines in hypotheses.items():
        for other, reference in references.items():
            if difference := form_difference(lines, reference):
                yield f"{name} and {other} differ in Unicode form: {difference}; bring both into one"
