"""Prepare the parts of lines for the search, with prefixes, phrases and seeds; join their translations to text."""

from __future__ import annotations

import functools
import hashlib
import itertools
import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from seq2seq.data.marks import SEPARATOR
from seq2seq.data.sentences import sentences
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.inference.encoding import source_end, target_pieces, whole_characters
from seq2seq.inference.glossary import Term, has_words
from seq2seq.inference.notes import Note
from seq2seq.inference.parts import LineCutter, SourceLine
from seq2seq.search import Constrained, Drawn, Hypothesis, Selection, Source, Words, length_divisor, target_limit
from seq2seq.search.hypothesis import longest_target
from seq2seq.settings.search import SamplingSettings, SearchSettings, require_one_group
from seq2seq.settings.values import shown
from seq2seq.system.characters import UNSPACED


class Part(NamedTuple):
    """Part of a line, which is translated by itself; most lines have one. `line` counts from 0.

    Attributes:
        terms: Target ids of the terms of a glossary that the part has, as far as they can be required.
    """

    line: int
    source: Source
    terms: Sequence[list[int]] = ()


class Joined(NamedTuple):
    """Translation of a line: the ids of each part, the score of the whole, and whether a length limit ended a part.

    Attributes:
        mean: Mean log-probability of a token, the end of each part included.
    """

    ids: list[list[int]]
    score: float
    mean: float
    limited: bool = False


class TranslatedText(NamedTuple):
    """Translation with its length-normalized log-probability (natural logarithm).

    Attributes:
        parts: Text and translation of each part, if there are several or if one has a context, with which its text then
            begins (see `seq2seq.data.context.sentence_of`); else empty.
        mean: Mean log-probability of a token, the end of each part included; None for a line without a translation.
        terms: Terms of the glossary that the line has.
        limited: A limit of its length has ended a part of the translation.
    """

    text: str
    score: float
    parts: tuple[tuple[str, str], ...] = ()
    mean: float | None = None
    terms: tuple[Term, ...] = ()
    limited: bool = False


def choose_selection(
    settings: SearchSettings, tokenizer: Tokenizer, sampling: SamplingSettings | None, *, constrained: bool
) -> Selection | None:
    """Return how a search selects hypotheses; None selects by the settings alone.

    Raises:
        ValueError: The options cannot be combined.
    """
    require_one_group(settings, sampling, phrases=constrained)
    if constrained:
        return Constrained(tokenizer.eos_id, _words(tokenizer))
    if sampling is None:
        return None
    return Drawn(tokenizer.eos_id, sampling.temperature, sampling.top_k, sampling.top_p)


@functools.lru_cache(maxsize=4)
def _words(tokenizer: Tokenizer) -> Words:
    # Cached: a pass over the vocabulary is too slow for every request
    pieces = target_pieces(tokenizer, range(tokenizer.tgt_vocab_size))
    for piece, byte in tokenizer.byte_of.items():
        # A character without a piece is taken for a letter
        pieces[piece] = chr(byte) if byte < 128 else "x"
    return Words.of(pieces)


def unplaceable(
    lines: int, tokenizer: Tokenizer, prefixes: Sequence[str] | None, phrases: Sequence[Sequence[str]] | None, lang: str
) -> set[int]:
    """Return the positions of lines whose prefix or phrases cannot be assigned to one of several parts.

    These are the lines with phrases, and those with a prefix of several sentences.
    """
    found = set()
    if phrases is not None:
        # A phrase of only spaces requires nothing
        found |= {i for i in range(lines) if any(_without_end(tokenizer, phrases[i]))}
    if prefixes is not None:
        # Lengthen the last word: a single letter may be the beginning of a word
        begun = [f"{prefix.rstrip(' ')}xx" for prefix in prefixes]
        found |= {i for i in range(lines) if "\n" in begun[i] or len(sentences(begun[i], lang)) > 1}
    return found


def make_parts(
    lines: Sequence[SourceLine],
    cutter: LineCutter,
    *,
    settings: SearchSettings,
    sampling: SamplingSettings | None = None,
    prefixes: Sequence[str] | None = None,
    phrases: Sequence[Sequence[str]] | None = None,
    whole: Collection[int] = (),
    suppress: Collection[int] = (),
) -> list[Part]:
    """Return the parts of all lines, each with its prefix, its phrases, its terms and the seed of its samples.

    A line is noted and not translated if its prefix or phrases cannot be placed, contain a character that the
    vocabulary lacks, or are longer than its translation may be.

    Args:
        cutter: What has cut the lines.
        whole: Positions of the lines that `unplaceable` has found.
        suppress: Tokens that are never generated; a term that has one is not required.
    """
    tokenizer, tags, note = cutter.tokenizer, cutter.translator.tags, cutter.note
    begins = _without_end(tokenizer, prefixes or ())
    never = {tokenizer.unk_id, *suppress}
    limits = (settings, SearchSettings())
    parts: list[Part] = []
    for number, line in enumerate(lines):
        begin = begins[number] if begins else []
        texts = [prefixes[number] if prefixes else "", *(phrases[number] if phrases is not None else ())]
        rows = [begin, *_phrase_ids(tokenizer, texts[1:])]
        wanted = [row for row in rows[1:] if row]
        lacking = [text for text, row in zip(texts, rows, strict=True) if tokenizer.unk_id in row]
        reason = ""
        if number in whole and len(line.parts) > 1:
            remedy = "leave out sentences=split, or give its lines one by one"
            # Neither line breaks nor the user divide it
            if cutter.mode != "split" and not any("\n" in part.before for part in line.parts):
                remedy = f"it has more pieces than the {cutter.longest:,} that are translated at once: shorten it"
            placed = next((text for text, row in zip(texts, rows, strict=True) if row), texts[0])
            reason = f"it is translated in parts, among which '{shown(placed)}' cannot be placed: {remedy}"
        elif lacking:
            reason = f"'{shown(lacking[0])}' has a character that the vocabulary lacks: leave it out"
        if line.parts and reason:
            note(Note.failed(number, reason))
            continue
        for place, part in enumerate(line.parts):
            ids = [*tags.source, *part.ids(tokenizer.separator, cutter.longest), *source_end(tokenizer)]
            # The seed depends on the ids and not on the line's position in the text; also on the place, so that equal
            # parts of a line get different samples
            seed = 0
            if sampling is not None:
                digest = hashlib.blake2b(repr((sampling.seed + place, ids)).encode(), digest_size=8).digest()
                seed = int.from_bytes(digest, "little") >> 1
            prefix = [] if place else begin
            source = Source(ids=ids, prefix=prefix, phrases=wanted, seed=seed, start=tags.target)
            required = len(source.given) + sum(map(len, wanted))
            # Required tokens may exceed a low limit of the user (see `target_limit`), but not the default one too. Only
            # a first part has any
            most = max(longest_target(len(ids), each) for each in limits)
            if required >= most:
                reason = f"its prefix and phrases have {required:,} pieces, and its translation has fewer than {most:,}"
                note(Note.failed(number, f"{reason}: leave some out, or raise max_len_ratio or max_len_extra"))
                break
            asked: list[list[int]] = []
            for row in _phrase_ids(tokenizer, [term.target for term in part.terms]):
                fits = required + len(row) < most
                if row and never.isdisjoint(row) and row not in (*wanted, *asked) and fits:
                    required += len(row)
                    asked.append(row)
            # A shortlist knows the words of sources, and marks hold words of targets
            allowed = list(itertools.chain.from_iterable(asked)) if part.marked else []
            parts.append(Part(number, source._replace(allowed=allowed), asked))
    return parts


def _without_end(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Return the target ids of texts without eos; [] for a text without any piece, such as a space."""
    return [row[:-1] for row in tokenizer.encode_tgt(list(map(whole_characters, texts)))] if texts else []


def _phrase_ids(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Return the target ids of phrases, without a separate space before a script that has none between words."""
    space = tokenizer.tgt.piece_to_id("▁")
    rows = zip(texts, _without_end(tokenizer, texts), strict=True)
    return [row[1:] if row[:1] == [space] and re.match(f"\\s*[{UNSPACED}]", text) else row for text, row in rows]


def join_parts(
    parts: Sequence[Part],
    found: Mapping[int, list[Hypothesis]],
    count: int,
    settings: SearchSettings,
    *,
    drawn: bool = False,
) -> list[list[Joined]]:
    """Join the translations of each line's parts: the best with the best, the second with the second, and so on.

    Args:
        found: Hypotheses of each part, best first. A line has no translation if one of its parts has none.
        drawn: The hypotheses are samples, which are joined in the order in which they were drawn: joined by rank,
            they would not be samples of the whole line.
    """
    by_line: dict[int, list[int]] = defaultdict(list)
    for number, part in enumerate(parts):
        by_line[part.line].append(number)
    joined = []
    for line in range(count):
        own = [found.get(number, []) for number in by_line[line]]
        if drawn:
            own = [sorted(row, key=lambda each: each.row) for row in own]
        sources = [parts[number].source for number in by_line[line]] if all(own) else []
        row = [_joined(each, sources, settings) for each in zip(*own, strict=False)]
        joined.append(sorted(row, key=lambda each: -each.score))
    return joined


def _joined(parts: Sequence[Hypothesis], sources: Sequence[Source], settings: SearchSettings) -> Joined:
    # Each part has its own tags and eos
    lengths = [len(source.start) + len(part.ids) + 1 for part, source in zip(parts, sources, strict=True)]
    score = parts[0].score
    log_prob = sum(part.log_prob for part in parts)
    if len(parts) > 1:
        score = log_prob / length_divisor(sum(lengths), settings)
    # At the last position within the limit, only eos is allowed
    ended = (length >= target_limit(source, settings) for length, source in zip(lengths, sources, strict=True))
    # The label of a classifier always ends there
    limited = settings.max_len != 2 and any(ended)
    # A tag that the target begins with is not chosen, but given
    return Joined([part.ids for part in parts], score, log_prob / sum(len(part.ids) + 1 for part in parts), limited)


def as_text(
    tokenizer: Tokenizer, translations: list[list[Joined]], lines: Sequence[SourceLine], *, spaces: bool
) -> list[list[TranslatedText]]:
    """Turn the translations of each line into text; see `SourceLine.join`."""
    # One call for all translations: the tokenizer's overhead is per call
    texts = iter(tokenizer.decode([ids for row in translations for each in row for ids in each.ids]))
    found = []
    targets = sorted({term.target for line in lines for part in line.parts for term in part.terms})
    # As the tokenizer writes them, in its own Unicode form, if it can
    rows = _without_end(tokenizer, targets)
    texts_of = zip(targets, rows, tokenizer.decode(rows), strict=True)
    written = {target: target if tokenizer.unk_id in row else text for target, row, text in texts_of}
    for line, row in zip(lines, translations, strict=True):
        found.append([])
        for each in row:
            own = [next(texts) for _ in each.ids]
            several = len(own) > 1 or any(part.context for part in line.parts)
            # As `Tokenizer.encode_src` reads them
            sources = (SEPARATOR.join(each.text for each in (*part.context, part)) for part in line.parts)
            pairs = zip(sources, own, strict=True) if several else ()
            used = (
                Term(term.source, term.target, has_words(text, written[term.target].strip()))
                for text, part in zip(own, line.parts, strict=True)
                for term in part.terms
            )
            text = line.join(own, spaces=spaces)
            found[-1].append(
                TranslatedText(
                    text,
                    float(each.score),
                    parts=tuple(pairs),
                    mean=float(each.mean),
                    terms=tuple(used),
                    limited=each.limited,
                )
            )
    return found
