"""Check text that is scored: guess its language, and find signs that its scores are misleading."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

from seq2seq.data.languages import has_spaces
from seq2seq.data.text_checks import form_difference, script_language, tokenization_marks
from seq2seq.metrics.scorers import tokenize_for
from seq2seq.system.files import uncompressed

LinesByName = Mapping[str, Sequence[str]]

# sacreBLEU's tokenizers that separate words at spaces alone, or at spaces and punctuation.
_SPACED = ("13a", "intl", "none")


def guess_language(references: LinesByName) -> tuple[str, str] | None:
    """Return the language of references and the evidence for it, if BLEU needs another tokenizer than 13a for it.

    The evidence is the suffix of a file (test.zh, test.zh.gz), else the script of the text. A suffix counts only for
    text in a script that needs another tokenizer.
    """
    found = script_language(list(chain.from_iterable(references.values())))
    for name in references:
        suffix = uncompressed(Path(name)).suffix[1:]
        # The script does not always tell Japanese from Chinese, but the suffix does. Alone, the suffix would mislead:
        # `ref.my` may hold English text
        if found and tokenize_for(suffix) != "13a":
            return suffix, f"the suffix of {name}"
    # Korean text has spaces: 13a is not wrong for it, and its own tokenizer must be installed
    return (found, "the script of the references") if found and not has_spaces(found) else None


def text_warnings(
    hypotheses: LinesByName, references: LinesByName, *, tokenize: str | None, remedy: str
) -> Iterator[str]:
    """Yield a line for each problem that makes scores misleading: script, tokens or pieces, other Unicode forms.

    Args:
        tokenize: sacreBLEU's tokenizer; None skips the check of the script.
        remedy: Option that sets the tokenizer, up to its value.
    """
    if tokenize in _SPACED and (found := script_language(list(chain.from_iterable(references.values())))):
        yield (
            f"{', '.join(references)}: BLEU's tokenizer {tokenize} is not for the script of most of the text: "
            f"set {remedy}{tokenize_for(found)}"
        )
    for name, lines in chain(hypotheses.items(), references.items()):
        if marks := tokenization_marks(lines):
            yield f"{name}: {marks}; scores are comparable for plain text only"
    for name, lines in hypotheses.items():
        for other, reference in references.items():
            if difference := form_difference(lines, reference):
                yield f"{name} and {other} differ in Unicode form: {difference}; bring both into one"
