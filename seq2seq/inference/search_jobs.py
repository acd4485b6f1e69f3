"""Requests for translations of lines: their search, their beginnings and what they must have."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from seq2seq.data.sentences import sentences
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.inference.encoding import source_end, whole_characters
from seq2seq.inference.notes import Note
from seq2seq.inference.parts import SourceLine
from seq2seq.inference.pieces import target_pieces
from seq2seq.search import Constrained, Drawn, Hypothesis, Selection, Source, Words, length_divisor, target_limit
from seq2seq.settings.search import SamplingSettings, SearchSettings, require_one_group


class Job(NamedTuple):
    """Search of lines: settings, and the selection where it is not that of the settings."""

    settings: SearchSettings
    selection: Selection | None
    suppress: tuple[int, ...] = ()


def make_job(
    settings: SearchSettings,
    *,
    tokenizer: Tokenizer,
    sampling: SamplingSettings | None,
    mbr: str | None,
    constrained: bool,
) -> Job:
    """Return how to search.

    Args:
        tokenizer: Tells the end, and which pieces go on with a word.
        sampling: Draw instead of searching.
        mbr: The samples will be compared with each other.
        constrained: There are phrases that translations must have.

    Raises:
        ValueError: The options cannot be combined.
    """
    if mbr and not sampling:
        raise ValueError(f"mbr={mbr} compares samples with each other, so it needs sampling")
    require_one_group(settings, sampling, phrases=constrained)
    if constrained:
        return Job(settings, Constrained(tokenizer.eos_id, _words(tokenizer)))
    if sampling is None:
        return Job(settings, None)
    # All samples are kept: the best ones of a line's parts need not make its best
    every = dataclasses.replace(settings, n_best=settings.beam_size)
    return Job(every, Drawn(tokenizer.eos_id, sampling.temperature, sampling.top_k, sampling.top_p))


class Part(NamedTuple):
    """Part of a line, which is translated by itself; most lines have one. `line` counts from 0."""

    line: int
    source: Source


class Joined(NamedTuple):
    """Translation of a line: the ids of each part's, the score of all together, and if a limit of length ended one."""

    ids: list[list[int]]
    score: float
    limited: bool = False


def make_parts(
    lines: Sequence[SourceLine],
    tokenizer: Tokenizer,
    *,
    tags: Sequence[int] = (),
    sampling: SamplingSettings | None = None,
    prefixes: Sequence[str] | None = None,
    phrases: Sequence[Sequence[str]] | None = None,
    whole: Collection[int] = (),
    note: Callable[[Note], None],
) -> list[Part]:
    """Return the parts of all lines with what is asked of their translations.

    Args:
        whole: Positions of lines whose prefix or phrases cannot be placed among several parts.
        note: Called for a line that is not translated: what is asked of it cannot be placed, or the vocabulary lacks a
            character of it.
    """
    begins = None if prefixes is None else without_end(tokenizer, prefixes)
    parts: list[Part] = []
    for number, line in enumerate(lines):
        sources = [Source([*tags, *part.pieces, *source_end(tokenizer)]) for part in line.parts]
        begin = begins[number] if begins is not None else []
        wanted = [row for row in without_end(tokenizer, phrases[number]) if row] if phrases is not None else []
        if number in whole and len(sources) > 1:
            reason = (
                "it is translated in parts, among which its prefix or phrases cannot be placed: leave out "
                "sentences=split, or split it by hand"
            )
        elif any(tokenizer.unk_id in row for row in (begin, *wanted)):
            reason = "its beginning or a phrase has a character that the vocabulary lacks: leave it out"
        else:
            reason = ""
        if sources and reason:
            note(Note.failed(number, reason))
            continue
        if sources:
            sources[0] = sources[0]._replace(prefix=begin)
        sources = [source._replace(phrases=wanted) for source in sources]
        if sampling is not None:
            # Equal parts of a line are drawn apart
            seeds = [line_seed(sampling.seed + place, source.ids) for place, source in enumerate(sources)]
            sources = [source._replace(seed=seed) for source, seed in zip(sources, seeds, strict=True)]
        parts += [Part(number, source) for source in sources]
    return parts


def unplaceable(
    lines: int, tokenizer: Tokenizer, prefixes: Sequence[str] | None, phrases: Sequence[Sequence[str]] | None, lang: str
) -> set[int]:
    """Return the positions of lines with phrases, or with a prefix of several sentences: of which part, is not known.

    Args:
        lang: The target language.
    """
    found = set()
    if phrases is not None:
        # A phrase of spaces asks for nothing
        found |= {i for i in range(lines) if any(without_end(tokenizer, phrases[i]))}
    if prefixes is not None:
        # As if the last word went on: a letter alone may be the beginning of one
        begun = [f"{prefix.rstrip(' ')}xx" for prefix in prefixes]
        found |= {i for i in range(lines) if "\n" in begun[i] or len(sentences(begun[i], lang)) > 1}
    return found


def join_parts(
    parts: Sequence[Part], found: Mapping[int, list[Hypothesis]], count: int, job: Job
) -> list[list[Joined]]:
    """Join the translations of each line's parts: the best with the best, the second with the second.

    Samples are joined as they were drawn, or they would not be samples of the whole line.

    Args:
        found: Hypotheses of each part, best first; a line lacks them if any of its parts does.
        count: Number of lines.

    Returns:
        For every line its translations, best first.
    """
    by_line: list[list[list[Hypothesis]]] = [[] for _ in range(count)]
    limits: list[list[int]] = [[] for _ in range(count)]
    for number, part in enumerate(parts):
        own = found.get(number, [])
        by_line[part.line].append(sorted(own, key=lambda each: each.row) if isinstance(job.selection, Drawn) else own)
        limits[part.line].append(target_limit(part.source, job.settings) if own else 0)
    joined = [
        [_joined(each, limit, job.settings) for each in zip(*own, strict=False)]
        for own, limit in zip(by_line, limits, strict=True)
    ]
    return [sorted(own, key=lambda each: -each.score) for own in joined]


def _joined(parts: Sequence[Hypothesis], limits: Sequence[int], settings: SearchSettings) -> Joined:
    score = parts[0].score
    if len(parts) > 1:
        # Each part has an end
        length = sum(len(part.ids) + 1 for part in parts)
        score = sum(part.log_prob for part in parts) / length_divisor(length, settings)
    # The end is the last token that a limit leaves room for, where it alone is allowed
    limited = any(len(part.ids) + 1 >= limit for part, limit in zip(parts, limits, strict=True))
    return Joined([part.ids for part in parts], score, limited)


def line_seed(seed: int, ids: Sequence[int]) -> int:
    """Return the seed of a line's samples, which depend on the line and not on where it stands."""
    digest = hashlib.blake2b(repr((seed, list(ids))).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


@functools.lru_cache(maxsize=4)
def _words(tokenizer: Tokenizer) -> Words:
    # A pass over the vocabulary, which each request would cost
    pieces = target_pieces(tokenizer, range(tokenizer.tgt_vocab_size))
    for piece, byte in tokenizer.byte_of.items():
        # A character that has no piece is taken for a letter
        pieces[piece] = chr(byte) if byte < 128 else "x"
    return Words.of(pieces)


def without_end(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Return the ids of texts in the target's vocabulary, without eos; [] of one that has no piece, such as a space."""
    return [row[:-1] for row in tokenizer.encode_tgt(list(map(whole_characters, texts)))] if texts else []
