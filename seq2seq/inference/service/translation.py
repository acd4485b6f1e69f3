"""Translate batches of texts with one translator, in any of its target languages."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING

from seq2seq.data.tokenizer import language_tag
from seq2seq.inference.service.batcher import Options, Result

if TYPE_CHECKING:
    from seq2seq.inference.translator import Note, Translator


class BatchTranslator:
    """Calls a translator with the options of requests.

    Attributes:
        languages: Target languages, the default one first.
    """

    def __init__(self, translator: Translator, tgt_lang: str | None = None) -> None:
        default = tgt_lang or str(translator.meta["tgt_lang"])
        # only multilingual checkpoints have the entry
        found = translator.meta.get("tgt_langs")
        further = [str(each) for each in found] if isinstance(found, list) else []
        self.languages = list(dict.fromkeys([default, *further]))
        self.settings = translator.settings
        self.meta = translator.meta
        # copies share the model; what they differ in is the tag before each source
        self._by_language = {default: translator}
        for language in self.languages[1:]:
            self._by_language[language] = copy.copy(translator)
            self._by_language[language].tags = translator.tokenizer.tag_ids([language_tag(language)])

    def __call__(self, texts: Sequence[str], options: Options) -> list[Result]:
        """Translate texts; what `Translator.translate` notes about one stands in its result."""
        notes: dict[int, Note] = {}

        def keep(note: Note) -> None:
            notes[note.position] = note

        translator = self._by_language[options.tgt_lang]
        candidates = translator.translate(texts, settings=options.settings, note=keep)
        return [
            Result([], error=notes[i].error)
            if i in notes and notes[i].error
            else Result(row, warning=f"the text {notes[i]}" if i in notes else "")
            for i, row in enumerate(candidates)
        ]
