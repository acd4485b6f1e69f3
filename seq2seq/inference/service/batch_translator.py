"""Translate batches of texts with one translator, in any of its target languages."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from seq2seq.data.languages import target_languages, target_tags
from seq2seq.inference.encoding import encode_pieces
from seq2seq.inference.limits import MOST_WEIGHTS
from seq2seq.inference.service.messages import AnswerCandidate, Options, TermAnswer, Text, Translation, WordAlignment

if TYPE_CHECKING:
    from seq2seq.inference.forced_text import Alignment
    from seq2seq.inference.translator import Note, TranslatedText, Translator


class BatchTranslator:
    """Calls a translator with the options of requests.

    Attributes:
        languages: Target languages, the default one first.
        can_align: The model can align words.
    """

    def __init__(self, translator: Translator) -> None:
        self.languages = list(dict.fromkeys([translator.tgt_lang, *target_languages(translator.meta)]))
        self.can_align = translator.can_force
        self.settings = translator.settings
        self.meta = translator.meta
        self.tokenizer = translator.tokenizer
        # Copies share the model and differ in the tags before each source
        self._by_language = {translator.tgt_lang: translator}
        for language in self.languages[1:]:
            other = self._by_language[language] = copy.copy(translator)
            other.tgt_lang = language
            other.tags = target_tags(translator.meta, translator.tokenizer, language)

    def pieces(self, texts: Sequence[str]) -> list[int]:
        """Count the source pieces of each text."""
        return list(map(len, encode_pieces(self.tokenizer, texts, note=lambda note: None)))

    def __call__(
        self, texts: Sequence[Text], options: Options, step: Callable[[], None] = lambda: None
    ) -> list[Translation]:
        """Translate texts; notes of `Translator.translate` about a text become its warning or its error.

        Args:
            step: Called after each step; an error that it raises ends the call.
        """
        notes: defaultdict[int, list[Note]] = defaultdict(list)
        translator = self._by_language[options.tgt_lang]
        lines = [each.text for each in texts]
        found = translator.translate(
            lines,
            settings=options.settings,
            sampling=options.sampling,
            mbr=options.mbr,
            prefixes=[each.prefix for each in texts] if any(each.prefix for each in texts) else None,
            phrases=[each.phrases for each in texts] if options.constrained else None,
            suppress=options.suppress,
            sentences=options.sentences,
            glossary=options.glossary,
            note=lambda note: notes[note.position].append(note),
            progress=lambda lines: step(),
        )
        aligned: list[list[Alignment | None]] = [[None] * len(row) for row in found]
        unaligned: dict[int, str] = {}
        if options.alignment:
            # Imports torch, which the translator has loaded
            from seq2seq.inference.forced_text import force_candidates

            forced = force_candidates(translator, lines, found, align=True, left_out=unaligned.__setitem__, step=step)
            aligned = [[each.words for each in row] for row in forced]
        results = []
        for i, (row, words) in enumerate(zip(found, aligned, strict=True)):
            failed = next((note.reason for note in notes[i] if note.kind == "failed"), "")
            if failed:
                results.append(Translation(candidates=[], error=failed))
                continue
            warnings = [f"the text {note}" for note in notes[i]]
            if i in unaligned:
                warnings.append(f"a translation has no alignment: it {unaligned[i]}")
            results.append(
                Translation(
                    text=row[0].text,
                    candidates=[_candidate(*each) for each in zip(row, words, strict=True)],
                    glossary=[TermAnswer(**term._asdict()) for term in row[0].terms] or None,
                    warning="; ".join(warnings) or None,
                )
            )
        return results


def _candidate(translation: TranslatedText, alignment: Alignment | None) -> AnswerCandidate:
    # A candidate that the beam did not find has the score -inf, which JSON cannot express
    score = translation.score if translation.score > float("-inf") else None
    words = None
    if alignment is not None:
        source, target, links, table = alignment
        few = len(source) * len(target) <= MOST_WEIGHTS
        weights = [[round(share, 4) for share in row] for row in table] if few else None
        words = WordAlignment(source=source, target=target, links=links, weights=weights)
    return AnswerCandidate(text=translation.text, score=score, alignment=words)
