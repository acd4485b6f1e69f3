"""Find translations that may lack something: unread parts of the source, and translations that a limit has ended."""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from seq2seq.data.sentences import sentences
from seq2seq.inference.encoding import source_pieces
from seq2seq.inference.forced_text import force_in_batches
from seq2seq.inference.notes import Note
from seq2seq.inference.parts import SourceLine, SourcePart
from seq2seq.inference.search_parts import Joined
from seq2seq.system.errors import first_line

if TYPE_CHECKING:
    from seq2seq.inference.translator import Translator

log = logging.getLogger(__name__)

# A clause of fewer pieces may be a name or an exclamation that the translation words differently.
_LEAST_PIECES = 4
# Least mean weight of a clause's pieces, summed over the translation; in a complete translation it is about 1.
_READ = 0.5
_GLUED = re.compile(r"[^\W\d_A-Z][.!?]+[^\W\d_a-z]")
# A byte of a character that has no piece
_BYTE = re.compile("<0x..>")
_ENDS = tuple(".!?…;:,。！？；：，、؟۔।")


# Number of a line, one of its parts, and the ids of the part's doubtful translation.
_Doubt = tuple[int, SourcePart, list[int]]


def note_omissions(
    translator: Translator,
    lines: Sequence[SourceLine],
    best: Sequence[Joined | None],
    note: Callable[[Note], None],
    progress: Callable[[int], None],
) -> None:
    """Note the lines whose best translation may lack something, each with the reason.

    There are four reasons: a length limit has ended the translation; a sentence is longer than any training line; the
    attention of a doubtful translation, after which `progress` is called, does not read a part of the source; or it
    reads a source without parts, but the translation is short.
    """
    longest = translator.statistics.longest
    doubts: list[_Doubt] = []
    for number, (line, found) in enumerate(zip(lines, best, strict=True)):
        if found is None or translator.tokenizer.patches:
            continue
        if found.limited:
            note(Note.of_kind(number, "limit"))
        most = max(len(part.pieces) for part in line.parts)
        if longest and most > longest:
            note(Note(number, "long", f"has a sentence of {most:,} pieces; the longest training line has {longest:,}"))
        doubts += [
            (number, part, ids)
            for part, ids in zip(line.parts, found.ids, strict=True)
            if _is_doubtful(translator, part, ids)
        ]
    if not translator.can_force:
        return
    clauses_of: list[list[str]] = [[] for _ in doubts]
    short: set[int] = set()
    try:
        for at, clauses, whole in _unread(translator, doubts):
            progress(0)
            number, part, ids = doubts[at]
            # Its only clause is read, but by few pieces
            if whole and _is_short(translator, part, ids):
                short.add(number)
            else:
                clauses_of[at] = clauses
    # If the check fails, the translations must not be lost
    except (RuntimeError, ArithmeticError, MemoryError) as error:
        log.warning("the check for unread parts of the source failed: %s", first_line(error))
    for number in sorted(short):
        note(Note.of_kind(number, "short"))
    unread: dict[int, list[str]] = defaultdict(list)
    for (number, *_), clauses in zip(doubts, clauses_of, strict=True):
        unread[number] += [f"'{clause}'" for clause in clauses]
    for number, listed in unread.items():
        if listed:
            text = f"has a part that hardly any word of the translation reads: {', '.join(listed)}"
            note(Note(number, "unread", text))


def _is_doubtful(translator: Translator, part: SourcePart, ids: Sequence[int]) -> bool:
    """Return True if a part has unusually many sentences or pieces, or an unusually short translation."""
    known = translator.statistics
    # The rules do not split sentences without a space between them
    if _GLUED.search(part.text):
        return True
    if _is_short(translator, part, ids) or len(part.pieces) > (known.most_pieces or len(part.pieces)):
        return True
    return len(sentences(part.text, translator.src_lang)) > known.sentences


def _is_short(translator: Translator, part: SourcePart, ids: Sequence[int]) -> bool:
    """Return True if a part has an unusually short translation."""
    return len(ids) < translator.statistics.least_ratio * len(part.pieces)


def _unread(translator: Translator, doubts: list[_Doubt]) -> Iterator[tuple[int, list[str], bool]]:
    """Yield the index of each doubtful part, the longest first, with the text of its unread clauses.

    The last value is True if the part is one clause, and most of the attention is on it all the same.
    """
    order = sorted(range(len(doubts)), key=lambda at: -len(doubts[at][1].pieces))
    tokenizer, tags = translator.tokenizer, translator.tags
    end = [tokenizer.eos_id]
    pairs = (
        ([*tags.source, *part.pieces, *end], [*tags.target, *ids, *end])
        for _, part, ids in map(doubts.__getitem__, order)
    )
    found = force_in_batches(translator, pairs, align=True)
    for at, (*_, forced) in zip(order, found, strict=True):
        assert forced
        assert forced.weights is not None
        weights = forced.weights[len(tags.target) : -1, len(tags.source) : -1]
        pieces = [number % tokenizer.src_vocab_size for number in doubts[at][1].pieces]
        spans = unread_clauses(weights, source_pieces(tokenizer, pieces))
        whole = spans == [(0, len(pieces))] and bool(weights.sum() > len(weights) / 2)
        yield at, [tokenizer.src.decode(pieces[first:last]) for first, last in spans], whole


def unread_clauses(weights: Tensor, pieces: Sequence[str]) -> list[tuple[int, int]]:
    """Return the clauses of a source that the translation hardly reads, as ranges of pieces.

    A clause c of n pieces is unread if sum_t sum_(s in c) w_ts < n / 2.

    Args:
        weights: Weight of each source piece for each piece of the translation, (T, S).
        pieces: Pieces of the source; punctuation ends a clause.
    """
    read = weights.sum(0)  # (S,)
    found = []
    start = 0
    for end, piece in enumerate(pieces, 1):
        if piece.endswith(_ENDS) or end == len(pieces):
            words = sum(any(map(str.isalnum, each)) for each in pieces[start:end] if not _BYTE.fullmatch(each))
            if words >= _LEAST_PIECES and read[start:end].mean() < _READ:
                found.append((start, end))
            start = end
    return found
