"""Translate lines in parts: cut them, search the parts in order of length, and put the translations together."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from seq2seq.data.languages import has_spaces
from seq2seq.faults import first_line
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
    want_all_to_join,
)
from seq2seq.search import Hypothesis, search_stream
from seq2seq.settings.search import SamplingSettings, SearchSettings
from seq2seq.settings.values import shown

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
    _require_one_each(len(lines), prefixes=prefixes, phrases=phrases)
    # The caller chooses how to search; the number of positions is the model's
    settings = dataclasses.replace(settings, max_len=translator.settings.max_len)
    failed: set[int] = set()
    note = _and_keep_failures(note, failed)
    constrained = phrases is not None
    score = agreement(mbr, translator.meta, translator.tgt_lang) if mbr else None
    job = make_job(settings, tokenizer=translator.tokenizer, sampling=sampling, mbr=mbr, constrained=constrained)
    job = job._replace(suppress=target_ids(translator.tokenizer, suppress))
    whole = unplaceable(len(lines), translator.tokenizer, prefixes, phrases, translator.tgt_lang)
    # Tokenize all, search in order of length, and write each result to its line's place
    cut = _cutter(translator, sentences, note)(lines, whole)
    asked: dict[str, Any] = {"sampling": sampling, "prefixes": prefixes, "phrases": phrases, "whole": whole}
    parts = make_parts(cut, translator.tokenizer, tags=translator.tags, **asked, note=note)
    job = want_all_to_join(job, parts)
    # Longest first: what is searched together has similar lengths, and what enters is no longer than what leaves
    rows = sorted(range(len(parts)), key=lambda i: -len(parts[i].source.ids))
    found: dict[int, list[Hypothesis]] = {}
    _search_parts(translator, found, parts, rows, job, note, _by_line(parts, progress))
    joined = join_parts(parts, found, len(lines), job)
    results = as_text(translator.tokenizer, joined, cut, spaces=has_spaces(translator.tgt_lang))
    best: list[Joined | None] = []
    for line, candidates in enumerate(results):
        texts = [each.text for each in candidates]
        if score and candidates:
            rank_by_agreement(candidates, score)
        best.append(joined[line][texts.index(candidates[0].text)] if candidates else None)
        blank = not cut[line].parts and line not in failed
        make_as_many(candidates, settings.n_best, Candidate(cut[line].end, 0.0) if blank else None)
    note_omissions(translator, cut, best, note)
    return results


def _require_lists(**given: object) -> None:
    """Check that no text stands where a list of texts should; ValueError if one does."""
    for name, value in given.items():
        if isinstance(value, str):
            raise ValueError(f"{name} is the str '{shown(value)}', each character of which would count; give a list")


def _require_one_each(count: int, **beside: Sequence[object] | None) -> None:
    """Check that what is given beside so many lines has an entry for each; ValueError if it has not."""
    for name, entries in beside.items():
        if entries is not None and len(entries) != count:
            raise ValueError(f"{name} has {len(entries):,} entries for {count:,} lines; give one for each")


def _cutter(translator: Translator, mode: str, note: Callable[[Note], None]) -> LineCutter:
    """Return what divides lines into parts, by `mode` of SENTENCES."""
    if mode not in SENTENCES:
        raise ValueError(f"unknown division into sentences '{mode}': choose {', '.join(SENTENCES)}")
    known: dict[str, Any] = {"language": str(translator.meta["src_lang"]), "statistics": translator.statistics}
    return LineCutter(
        translator.tokenizer, **known, mode=mode, max_len=translator.max_len, tags=translator.tags, note=note
    )


def _by_line(parts: Sequence[Part], progress: Callable[[int], None]) -> Callable[[int], None]:
    """Count lines whose last part is done."""
    left = Counter(part.line for part in parts)

    def done(line: int) -> None:
        left[line] -= 1
        if not left[line]:
            progress(1)

    return done


def _and_keep_failures(note: Callable[[Note], None], failed: set[int]) -> Callable[[Note], None]:
    """Add the lines that fail to `failed`, and pass all notes on."""

    def passed_on(told: Note) -> None:
        if told.kind == "failed":
            failed.add(told.position)
        note(told)

    return passed_on


def _search_parts(
    translator: Translator,
    found: dict[int, list[Hypothesis]],
    parts: list[Part],
    rows: list[int],
    job: Job,
    note: Callable[[Note], None],
    done: Callable[[int], None],
) -> None:
    """Find the translations of the parts `rows`; where the search fails, retry what is left in halves."""
    reason = None
    stream = search_stream(
        translator.model,
        (parts[i].source for i in rows),
        special=translator.special,
        settings=job.settings,
        rows=lambda width: search_rows(translator, width, job.settings, len(rows)),
        device=torch.device(translator.device),
        selection=job.selection,
        suppress=job.suppress,
        shortlist=translator.shortlist,
        graphs=translator.graphs,
    )
    try:
        with torch.autocast(torch.device(translator.device).type, enabled=False):
            for number, hypotheses in stream:
                found[rows[number]] = hypotheses
                done(parts[rows[number]].line)
    except (RuntimeError, ValueError, MemoryError) as error:
        reason = first_line(error)
    # After the handler, whose exception keeps the memory of the search
    if reason is None:
        return
    left = [i for i in rows if i not in found]
    if len(left) == 1:
        part = parts[left[0]]
        note(Note.failed(part.line, reason))
        done(part.line)
    # Out of memory, or one bad line among good ones: smaller batches settle both
    for half in halves(left) if len(left) > 1 else ():
        _search_parts(translator, found, parts, half, job, note, done)
