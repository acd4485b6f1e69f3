"""Translate lines in parts: cut them, search the parts in order of length, and put the translations together."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from seq2seq.data.languages import has_spaces
from seq2seq.data.text_files import is_blank
from seq2seq.inference.batch_rows import search_rows
from seq2seq.inference.candidates import Candidate, agreement, as_text, make_as_many, rank_by_agreement
from seq2seq.inference.encoding import halves
from seq2seq.inference.limits import SENTENCES
from seq2seq.inference.notes import Note
from seq2seq.inference.omissions import note_omissions
from seq2seq.inference.parts import LineCutter
from seq2seq.inference.pieces import target_ids
from seq2seq.inference.search_jobs import (
    Job,
    Joined,
    Part,
    join_parts,
    make_job,
    make_parts,
    unplaceable,
)
from seq2seq.search import Hypothesis, Source, search_stream
from seq2seq.settings.search import SamplingSettings, SearchSettings
from seq2seq.settings.values import shown
from seq2seq.system.errors import first_line

if TYPE_CHECKING:
    from seq2seq.inference.translator import Translator


def translate_lines(
    translator: Translator,
    lines: Sequence[str],
    *,
    settings: SearchSettings,
    sampling: SamplingSettings | None,
    mbr: str | None,
    prefixes: Sequence[str] | None,
    phrases: Sequence[Sequence[str]] | None,
    suppress: Sequence[str],
    note: Callable[[Note], None],
    progress: Callable[[int], None],
    sentences: str,
) -> list[list[Candidate]]:
    """Translate lines, see `Translator.translate`."""
    _require_lists(lines=lines, prefixes=prefixes, suppress=suppress, phrases=phrases)
    _require_lists(**{f"phrases[{number}]": each for number, each in enumerate(phrases or ())})
    for name, entries in (("prefixes", prefixes), ("phrases", phrases)):
        if entries is not None and len(entries) != len(lines):
            raise ValueError(f"{name} has {len(entries):,} entries for {len(lines):,} lines; give one for each")
    tokenizer = translator.tokenizer
    # The caller chooses how to search; the number of positions is the model's
    settings = dataclasses.replace(settings, max_len=translator.settings.max_len)
    score = agreement(mbr, translator.meta, translator.tgt_lang) if mbr else None
    job = make_job(settings, tokenizer=tokenizer, sampling=sampling, mbr=mbr, constrained=phrases is not None)
    job = job._replace(suppress=target_ids(tokenizer, suppress))
    whole = unplaceable(len(lines), tokenizer, prefixes, phrases, translator.tgt_lang)
    # Tokenize all, search in order of length, and write each result to its line's place
    cut = _cutter(translator, sentences, note)(lines, whole)
    asked: dict[str, Any] = {"sampling": sampling, "prefixes": prefixes, "phrases": phrases, "whole": whole}
    parts = make_parts(cut, tokenizer, tags=translator.tags, **asked, note=note)
    found = {}
    left = Counter(part.line for part in parts)
    with torch.autocast(torch.device(translator.device).type, enabled=False):
        for number, hypotheses in _search(translator, parts, job, note):
            found[number] = hypotheses
            line = parts[number].line
            left[line] -= 1
            if not left[line]:
                progress(1)
    joined = join_parts(parts, found, len(lines), job)
    results = as_text(tokenizer, joined, cut, spaces=has_spaces(translator.tgt_lang))
    best: list[Joined | None] = []
    for line, candidates in enumerate(results):
        texts = [each.text for each in candidates]
        if score and candidates:
            rank_by_agreement(candidates, score)
        best.append(joined[line][texts.index(candidates[0].text)] if candidates else None)
        # A line that should be an image and is not has no parts either
        blank = not cut[line].parts and (not tokenizer.patches or is_blank(lines[line]))
        make_as_many(candidates, settings.n_best, Candidate(cut[line].end, 0.0) if blank else None)
    note_omissions(translator, cut, best, note)
    return results


def _require_lists(**given: object) -> None:
    """Check that no text stands where a list of texts should; ValueError if one does."""
    for name, value in given.items():
        if isinstance(value, str):
            raise ValueError(f"{name} is the str '{shown(value)}', each character of which would count; give a list")


def _cutter(translator: Translator, mode: str, note: Callable[[Note], None]) -> LineCutter:
    if mode not in SENTENCES:
        raise ValueError(f"unknown division into sentences '{mode}': choose {', '.join(SENTENCES)}")
    return LineCutter(
        translator.tokenizer,
        language=str(translator.meta["src_lang"]),
        statistics=translator.statistics,
        mode=mode,
        max_len=translator.max_len,
        tags=translator.tags,
        note=note,
    )


def _search(
    translator: Translator, parts: list[Part], job: Job, note: Callable[[Note], None]
) -> Iterator[tuple[int, list[Hypothesis]]]:
    """Yield the number of each part and its translations, none where its search fails."""
    # Longest first: what is searched together has similar lengths, and what enters is no longer than what leaves
    waiting = [sorted(range(len(parts)), key=lambda i: -len(parts[i].source.ids))]
    while waiting:
        rows = waiting.pop()
        left = dict.fromkeys(rows)
        reason = ""
        try:
            for number, hypotheses in _stream(translator, [parts[i].source for i in rows], job):
                del left[rows[number]]
                yield rows[number], hypotheses
        except (RuntimeError, ValueError, MemoryError) as error:
            reason = first_line(error)
        # After the handler, whose exception keeps the memory of the search
        if reason and len(left) == 1:
            (number,) = left
            note(Note.failed(parts[number].line, reason))
            yield number, []
        elif reason:
            # Out of memory, or one bad line among good ones: smaller batches settle both
            waiting += reversed(halves(list(left)))


def _stream(translator: Translator, sources: list[Source], job: Job) -> Iterator[tuple[int, list[Hypothesis]]]:
    return search_stream(
        translator.model,
        sources,
        special=translator.special,
        settings=job.settings,
        rows=lambda width: search_rows(translator, width, job.settings, len(sources)),
        device=torch.device(translator.device),
        selection=job.selection,
        suppress=job.suppress,
        shortlist=translator.shortlist,
        graphs=translator.graphs,
    )
