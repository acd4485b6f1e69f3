"""Models of a service: load them within a limit of memory, choose one for a request, and translate batches of texts."""

from __future__ import annotations

import dataclasses
import gc
import logging
import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from seq2seq.data.context import sentence_of
from seq2seq.data.language_id import other_language
from seq2seq.data.languages import closest_codes, source_languages, target_languages
from seq2seq.inference.encoding import encode_pieces
from seq2seq.inference.limits import MOST_WEIGHTS, TERMS_BEAM
from seq2seq.inference.service.messages import (
    AnswerCandidate,
    AnswerPart,
    Options,
    RefusedError,
    TermAnswer,
    Text,
    Translation,
    WordAlignment,
)
from seq2seq.settings.values import shown, suggestion
from seq2seq.system.errors import first_line

if TYPE_CHECKING:
    from seq2seq.inference.forced_text import Alignment
    from seq2seq.inference.translator import Note, TranslatedText, Translator

log = logging.getLogger(__name__)

_LOADING = threading.Lock()


@dataclasses.dataclass(eq=False)
class BatchTranslator:
    """Calls a translator with the options of requests.

    Args:
        load: Loads the translator, at once and again when a text needs it.
        name: Name of the model in requests and metrics.
        make_room: Called with this model before and after it is loaded.

    Attributes:
        languages: Target languages, the default one first.
        sources: Source languages, likewise.
        can_align: The model can align words.
        nbytes: Bytes of its weights while they are loaded.
        loaded_at: When they were loaded last, in Unix time.
        translator: None while it is not loaded; set to None, it leaves memory after the batches that use it.
    """

    load: Callable[[], Translator]
    name: str
    make_room: Callable[[BatchTranslator], None]
    nbytes: int = 0

    def __post_init__(self) -> None:
        self._loaded()

    def _loaded(self) -> Translator:
        """Load the model, one model of the process at a time."""
        with _LOADING:
            self.make_room(self)
            began = time.monotonic()
            translator = self.load()
            self._seconds = time.monotonic() - began
            self.loaded_at = time.time()
            self.languages = list(dict.fromkeys([translator.tgt_lang, *target_languages(translator.meta)]))
            known = source_languages(translator.meta, translator.tokenizer)
            self.sources = list(dict.fromkeys([translator.src_lang, *known]))
            self.can_align = translator.can_force
            self.settings = translator.settings
            self.tokenizer = translator.tokenizer
            self.nbytes = translator.nbytes
            self.has_terms = bool(translator.glossary)
            self.searches_terms = translator.glossary_by == "search"
            self.translator: Translator | None = translator
            self.make_room(self)
            return translator

    def delay(self) -> float:
        """Return the seconds of loading, 0 for a model in memory."""
        return 0.0 if self.translator else max(self._seconds, 1e-3)

    def described(self) -> dict[str, Any]:
        """Describe the model to clients."""
        sources = {"src_lang": self.sources[0], "src_langs": self.sources}
        targets = {"tgt_lang": self.languages[0], "tgt_langs": self.languages}
        return {**sources, **targets, "alignment": self.can_align, "loaded": bool(self.translator)}

    def beam(self, options: Options) -> int:
        """Return the beam size of a search, which the terms of a glossary widen unless they are in the source."""
        asked = options.how.get("glossary")
        own = self.has_terms and asked is None and options.how.get("sampling") is None
        beam = options.settings.beam_size
        return max(beam, TERMS_BEAM) if self.searches_terms and (asked or own) else beam

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
        try:
            # Another thread may drop the model at any time
            translator = self.translator or self._loaded()
        # Errors of any type: the file may be replaced at this moment, and the thread must survive
        except Exception as error:
            log.error("the model %s could not be loaded: %s", self.name, first_line(error))
            failed = Translation(candidates=[], error="the model could not be loaded; the log has more")
            return [failed] * len(texts)
        translator = translator.between(options.src_lang, options.tgt_lang)
        detects = options.language and not (self.tokenizer.patches or self.tokenizer.factors)
        lines = [each.text for each in texts]
        found = translator.translate(
            lines,
            settings=options.settings,
            prefixes=[each.prefix for each in texts] if any(each.prefix for each in texts) else None,
            phrases=[each.phrases for each in texts] if options.constrained else None,
            # A batch may have texts of several users
            document=False,
            note=lambda note: notes[note.position].append(note),
            progress=lambda lines: step(),
            **options.how,
        )
        # Imports torch, which the translator has loaded
        from seq2seq.inference.forced_text import ForcedLine, force_candidates

        forced = [[ForcedLine(None, [], None)] * len(row) for row in found]
        if options.alignment:
            forced = force_candidates(translator, lines, found, align=True, step=step)
        results = []
        for i, (row, own) in enumerate(zip(found, forced, strict=True)):
            if failed := next((note for note in notes[i] if note.kind == "failed"), None):
                results.append(Translation(candidates=[], error=failed.reason, by_input=failed.by_input))
                continue
            warnings = [f"the text {note.text}" for note in notes[i]]
            if reason := next((each.reason for each in own if each.reason), ""):
                warnings.append(f"a translation has no alignment: it {reason}")
            results.append(
                Translation(
                    text=row[0].text,
                    candidates=[_candidate(each, line.words) for each, line in zip(row, own, strict=True)],
                    language=other_language(lines[i], translator.src_lang) if detects else None,
                    glossary=[TermAnswer(**term._asdict()) for term in row[0].terms] or None,
                    warning="; ".join(warnings) or None,
                )
            )
        return results


def _candidate(translation: TranslatedText, alignment: Alignment | None) -> AnswerCandidate:
    # A candidate that the beam did not find has the score -inf, which JSON cannot express
    score = translation.score if translation.score > float("-inf") else None
    probability = None if translation.mean is None else round(math.exp(translation.mean), 4)
    words = alignment.parts if alignment and alignment.parts else [None] * len(translation.parts)
    parts = [
        # A client that asks for sentences does not know the context before them
        AnswerPart(source=sentence_of(source), target=target, alignment=_words(own))
        for (source, target), own in zip(translation.parts, words, strict=True)
    ]
    return AnswerCandidate(
        text=translation.text,
        score=score,
        probability=probability,
        parts=parts or None,
        alignment=_words(alignment),
    )


def _words(alignment: Alignment | None) -> WordAlignment | None:
    if alignment is None:
        return None
    source, target, links, table, _ = alignment
    few = len(source) * len(target) <= MOST_WEIGHTS
    weights = [[round(share, 4) for share in row] for row in table] if few else None
    return WordAlignment(source=source, target=target, links=links, weights=weights)


def _code(wanted: str | None, known: list[str], exact: bool) -> str:
    """Return a model's code of a language, the default one for None; "" if it has none."""
    if wanted is None:
        return known[0]
    if wanted in known or exact:
        return wanted if wanted in known else ""
    return next(iter(closest_codes(wanted, known)), "")


class Models:
    """Models by name. All are loaded at first, one after the other, so that their languages are known.

    Args:
        loaders: For each name a function that loads the translator.
        most: Bytes of loaded models; beyond, the least recently used ones leave memory. One model always fits.

    Raises:
        ValueError: A model cannot be loaded.
    """

    def __init__(self, loaders: Mapping[str, Callable[[], Translator]], *, most: float = float("inf")) -> None:
        self._loaders = loaders
        self._most = most
        # Names by use, the last one used at the end
        self._used: list[str] = []
        self.by_name: dict[str, BatchTranslator] = {}
        for name in loaders:
            self.load(name)

    def load(self, name: str) -> None:
        """Load a model, in place of an earlier one, which keeps its requests; after a ValueError that one stays."""
        self.by_name[name] = BatchTranslator(self._loaders[name], name=name, make_room=self._make_room)

    def bytes_of(self, name: str) -> int:
        """Return the bytes of a model in memory."""
        model = self.by_name[name]
        return model.nbytes if model.translator else 0

    def loaded_at(self, name: str) -> float:
        """Return when a model was loaded last, in Unix time."""
        return self.by_name[name].loaded_at

    def choose(
        self, name: str | None, source: str | None, target: str | None
    ) -> tuple[BatchTranslator, tuple[str, str]]:
        """Return the first model with a name and languages (None: any) and its codes of them, or raise RefusedError."""
        if name is not None and name not in self.by_name:
            hint = suggestion(shown(name), list(self.by_name))
            raise RefusedError(422, f"there is no model '{shown(name)}'{hint}; there are {', '.join(self.by_name)}")
        models = [self.by_name[name]] if name is not None else list(self.by_name.values())
        source = None if source == "auto" else source
        # A model with exactly these codes comes before one with other codes of the same languages
        for exact in (True, False):
            for model in models:
                codes = _code(source, model.sources, exact), _code(target, model.languages, exact)
                if all(codes):
                    self._used = [*(each for each in self._used if each != model.name), model.name]
                    return model, codes
        asked = " ".join(
            f"{word} '{shown(each)}'" for word, each in (("from", source), ("to", target)) if each is not None
        )
        pairs = (f"from {', '.join(each.sources)} to {', '.join(each.languages)}" for each in models)
        known = "; ".join(dict.fromkeys(pairs))
        raise RefusedError(422, f"this service does not translate {asked}; it translates {known}")

    def _make_room(self, model: BatchTranslator) -> None:
        """Drop the least recently used models, as far as they and `model` need more than the limit."""
        others = [each for each in self.by_name.values() if each.translator and each.name != model.name]
        others.sort(key=lambda each: self._used.index(each.name) if each.name in self._used else -1)
        while others and model.nbytes + sum(each.nbytes for each in others) > self._most:
            others.pop(0).translator = None
            gc.collect()
