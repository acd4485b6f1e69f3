"""Translate batches of texts with one translator, in any of its target languages."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from seq2seq.data.languages import target_languages, target_tags
from seq2seq.inference.service.batcher import Options, Result, Text

if TYPE_CHECKING:
    from seq2seq.inference.forced_text import Alignment
    from seq2seq.inference.translator import Note, TranslatedText, Translator


class BatchTranslator:
    """Calls a translator with the options of requests.

    Args:
        threads: CPU threads of the one that translates; None leaves torch's choice.

    Attributes:
        languages: Target languages, the default one first.
        can_align: The model can align words.
    """

    def __init__(self, translator: Translator, *, threads: int | None = None) -> None:
        self.languages = list(dict.fromkeys([translator.tgt_lang, *target_languages(translator.meta)]))
        self.can_align = translator.can_force
        self.settings = translator.settings
        self.meta = translator.meta
        self.threads = threads
        self.tokenizer = translator.tokenizer
        # Copies share the model; what they differ in is the tag before each source
        self._by_language = {translator.tgt_lang: translator}
        for language in self.languages[1:]:
            other = self._by_language[language] = copy.copy(translator)
            other.tgt_lang = language
            other.tags = target_tags(translator.meta, translator.tokenizer, language)

    def begin(self) -> None:
        """Let the calling thread, which will translate, use the CPU threads."""
        import torch

        if self.threads is not None:
            torch.set_num_threads(self.threads)

    def require_pieces(self, pieces: Sequence[str]) -> None:
        """Check that the target's vocabulary has pieces; ValueError if it lacks one."""
        from seq2seq.inference.encoding import target_ids

        target_ids(self.tokenizer, pieces)

    def __call__(self, texts: Sequence[Text], options: Options) -> list[Result]:
        """Translate texts; what `Translator.translate` notes about one stands in its result."""
        notes: defaultdict[int, list[Note]] = defaultdict(list)
        translator = self._by_language[options.tgt_lang]
        lines = [each.text for each in texts]
        candidates = translator.translate(
            lines,
            settings=options.settings,
            sampling=options.sampling,
            mbr=options.mbr,
            prefixes=[each.prefix for each in texts] if any(each.prefix for each in texts) else None,
            phrases=[each.phrases for each in texts] if options.constrained else None,
            suppress=options.suppress,
            sentences=options.sentences,
            note=lambda note: notes[note.position].append(note),
        )
        aligned: Sequence[Sequence[Alignment | None]] = [()] * len(lines)
        unaligned: dict[int, str] = {}
        if options.alignment:
            aligned = self.align_words(translator, lines, candidates, unaligned.__setitem__)
        results = []
        for i, (row, words) in enumerate(zip(candidates, aligned, strict=True)):
            failed = next((note.reason for note in notes[i] if note.kind == "failed"), "")
            warnings = [f"the text {note}" for note in notes[i]]
            if i in unaligned:
                warnings.append(f"a translation has no alignment: it {unaligned[i]}")
            result = Result(row, warning="; ".join(warnings), alignments=words)
            results.append(Result([], error=failed) if failed else result)
        return results

    @staticmethod
    def align_words(
        translator: Translator,
        lines: Sequence[str],
        candidates: Sequence[Sequence[TranslatedText]],
        left_out: Callable[[int, str], None],
    ) -> Sequence[Sequence[Alignment | None]]:
        """Align the words of every line with those of each of its candidates.

        Args:
            left_out: Called with the number of a line one of whose candidates cannot be aligned, and the reason.
        """
        # Imports torch, which the translator has loaded
        from seq2seq.inference.forced_text import force_candidates

        found = force_candidates(translator, lines, candidates, align=True, left_out=left_out)
        return [[each.words for each in row] for row in found]
