"""Translate batches of texts with one translator, in any of its target languages."""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from seq2seq.data.languages import target_languages, target_tags
from seq2seq.inference.encoding import encode_pieces
from seq2seq.inference.limits import MOST_WEIGHTS
from seq2seq.inference.service.messages import AnswerCandidate, Options, Text, Translation, WordAlignment
from seq2seq.system.errors import first_line

if TYPE_CHECKING:
    from seq2seq.inference.forced_text import Alignment
    from seq2seq.inference.translator import Note, TranslatedText, Translator

log = logging.getLogger(__name__)

_LOADING = threading.Lock()


class BatchTranslator:
    """Calls a translator with the options of requests.

    Args:
        load: Loads the translator, at once and again after `drop`.
        name: Name of the model in requests and metrics.
        make_room: Called with this model before and after it is loaded.

    Attributes:
        languages: Target languages, the default one first.
        can_align: The model can align words.
        nbytes: Bytes of its weights while they are loaded.
    """

    nbytes = 0

    def __init__(
        self, load: Callable[[], Translator], *, name: str, make_room: Callable[[BatchTranslator], None]
    ) -> None:
        self.name = name
        self._load = load
        self._make_room = make_room
        self._loaded()

    def _loaded(self) -> dict[str, Translator]:
        """Load the model, one model of the process at a time; return its translator for each target language."""
        with _LOADING:
            self._make_room(self)
            began = time.monotonic()
            translator = self._load()
            self._seconds = time.monotonic() - began
            by_language = self._by_language = self._each_language(translator)
            self._make_room(self)
            return by_language

    def _each_language(self, translator: Translator) -> dict[str, Translator]:
        self.languages = list(dict.fromkeys([translator.tgt_lang, *target_languages(translator.meta)]))
        self.src_lang = str(translator.meta["src_lang"])
        self.can_align = translator.can_force
        self.settings = translator.settings
        self.tokenizer = translator.tokenizer
        self.nbytes = translator.nbytes
        # Copies share the model and differ in the tags before each source
        by_language = {translator.tgt_lang: translator}
        for language in self.languages[1:]:
            other = by_language[language] = copy.copy(translator)
            other.tgt_lang = language
            other.tags = target_tags(translator.meta, translator.tokenizer, language)
        return by_language

    def drop(self) -> None:
        """Let the model leave memory, after the batches that use it."""
        self._by_language = {}

    @property
    def loaded(self) -> bool:
        """True while the model is in memory."""
        return bool(self._by_language)

    def delay(self) -> float:
        """Return the seconds of loading, 0 for a model in memory."""
        return 0.0 if self.loaded else max(self._seconds, 1e-3)

    def described(self) -> dict[str, Any]:
        """Describe the model to clients."""
        targets = {"tgt_lang": self.languages[0], "tgt_langs": self.languages}
        return {"src_lang": self.src_lang, **targets, "alignment": self.can_align, "loaded": self.loaded}

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
        # Another thread may drop the model at any time
        by_language = self._by_language
        if not by_language:
            try:
                by_language = self._loaded()
            # Errors of any type: the file may be replaced at this moment, and the thread must survive
            except Exception as error:
                log.error("the model %s could not be loaded: %s", self.name, first_line(error))
                return [Translation(candidates=[], error="the model could not be loaded; the log has more")] * len(
                    texts
                )
        translator = by_language[options.tgt_lang]
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
