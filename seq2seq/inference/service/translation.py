"""Translate batches of texts with one translator, in any of its target languages."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from seq2seq.data.languages import target_languages, target_tags
from seq2seq.inference.service.batcher import Options, Result, Text

if TYPE_CHECKING:
    from seq2seq.inference.forced_text import Alignment
    from seq2seq.inference.translator import Candidate, Note, Translator


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
        from seq2seq.inference.pieces import target_ids

        target_ids(self.tokenizer, pieces)

    def __call__(self, texts: Sequence[Text], options: Options) -> list[Result]:
        """Translate texts; what `Translator.translate` notes about one stands in its result."""
        notes: dict[int, Note] = {}

        def keep(note: Note) -> None:
            notes[note.position] = note

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
            note=keep,
        )
        aligned: Sequence[Sequence[Alignment | None]] = [()] * len(lines)
        unaligned: dict[int, str] = {}
        if options.alignment:
            # Parts of a long text are not a sentence that could be aligned as one
            whole = ["" if i in notes and notes[i].parts > 1 else line for i, line in enumerate(lines)]
            aligned = self.align_words(translator, whole, candidates, unaligned.__setitem__)
        return [
            Result([], error=notes[i].error)
            if i in notes and notes[i].error
            else Result(row, warning=_warning(notes.get(i), unaligned.get(i)), alignments=words)
            for i, (row, words) in enumerate(zip(candidates, aligned, strict=True))
        ]

    @staticmethod
    def align_words(
        translator: Translator,
        lines: Sequence[str],
        candidates: Sequence[Sequence[Candidate]],
        left_out: Callable[[int, str], None],
    ) -> Sequence[Sequence[Alignment | None]]:
        """Align the words of every line with those of each of its candidates.

        Args:
            left_out: Called with the number of a line one of whose candidates cannot be aligned, and the reason.
        """
        # Imports torch, which the translator has loaded
        from seq2seq.inference.forced_text import force_lines

        pairs = [(line, candidate.text) for line, row in zip(lines, candidates, strict=True) for candidate in row]
        # What was cut is known from the translation
        line_of = [number for number, row in enumerate(candidates) for _ in row]
        found = force_lines(
            translator,
            pairs,
            note=lambda _: None,
            align=True,
            left_out=lambda number, reason: left_out(line_of[number], reason),
        )
        return [[next(found).words for _ in row] for row in candidates]


def _warning(note: Note | None, unaligned: str | None) -> str:
    """Return the warning about a text, of which a part is cut, or a translation has no alignment for a reason."""
    parts = [] if note is None else [f"the text {note}"]
    if unaligned is not None:
        parts.append(f"a translation has no alignment: it {unaligned}")
    return "; ".join(parts)
