"""Context of a sentence: the sources before it in its document, joined by a separator (`data.context`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from seq2seq.data.marks import SEPARATOR, unmarked
from seq2seq.data.ragged import Ragged
from seq2seq.data.text_files import is_blank
from seq2seq.settings.data import MOST_CONTEXT


class ContextWindow:
    """Puts the last `size` sources of the document before each source; a blank line ends a document.

    Only sources are joined; the target translates the last sentence alone: x_(n-2) <sep> x_(n-1) <sep> x_n -> y_n.
    Translations of a document are therefore independent of each other, and can be searched in one batch.
    """

    def __init__(self, size: int) -> None:
        self.previous: deque[str] = deque(maxlen=size)

    def __call__(self, line: str) -> str:
        """Return the next line with its context."""
        if is_blank(line):
            self.previous.clear()
            return line
        line = unmarked(line)
        joined = SEPARATOR.join([*self.previous, line])
        self.previous.append(line)
        return joined


def sentence_of(line: str) -> str:
    """Return a source without its context."""
    return line.rpartition(SEPARATOR)[2]


def sentence_start(ids: Sequence[int], separator: int | None, tags: Sequence[int]) -> int:
    """Return where the sentence begins in the ids of a source, after its tags and its context."""
    places = [place for place, number in enumerate(ids) if number == separator]
    return places[-1] + 1 if places else len(tags)


def sentence_lengths(src: Ragged, separator: int | None) -> np.ndarray:
    """Count the ids of each source without its context, (N,)."""
    if separator is None:
        return src.lengths
    lengths = src.lengths.copy()
    # A million rows at a time, so that temporaries stay small
    for start in range(0, len(lengths), 1 << 20):
        part = Ragged.joined([src.select(np.arange(start, min(start + (1 << 20), len(lengths))))])
        places = np.flatnonzero(part.ids == separator)
        rows = np.searchsorted(part.starts, places, side="right") - 1
        # Of several separators in a row, numpy assigns the last
        lengths[start + rows] = (part.starts + part.lengths)[rows] - places - 1
    return lengths


def fit_context(pieces: Sequence[int], separator: int | None, longest: int) -> list[int]:
    """Drop the first sentences of a context until at most `longest` ids are left; the last sentence stays whole."""
    pieces = list(pieces)
    while len(pieces) > longest and separator in pieces:
        pieces = pieces[pieces.index(separator) + 1 :]
    return pieces


def context_size(meta: Mapping[str, Any]) -> int:
    """Read the number of sentences before a source from an untrusted description; 0 without context."""
    size = meta.get("context")
    return size if type(size) is int and 0 < size <= MOST_CONTEXT else 0
