"""Turn lines of any content into ids of the source's vocabulary."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from seq2seq.data.images import ImageError
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.inference.limits import MOST_PARTS

_TOKENIZED_CHARACTERS = 1 << 20  # of text that is tokenized at a time


class Note(NamedTuple):
    """Problem with one line: its translation in parts, of only `kept` of its `pieces`, or its failure with `error`."""

    position: int  # of the line, from 0
    pieces: int
    kept: int
    error: str = ""
    parts: int = 1

    def __str__(self) -> str:
        if self.error:
            return f"was not translated and is empty ({self.error})"
        if self.kept < self.pieces:
            return f"is cut: {self.pieces:,} pieces, the first {self.kept:,} are translated"
        return f"is split: {self.pieces:,} pieces, translated in {self.parts} parts"


def encode_lines(
    tokenizer: Tokenizer,
    lines: Sequence[str],
    *,
    max_len: int,
    tags: Sequence[int],
    note: Callable[[Note], None],
) -> list[list[int]]:
    """Tokenize every line to at most `max_len` ids, the tags first, the last one eos; [] for one without any piece."""
    cut = encode_parts(tokenizer, lines, max_len=max_len, tags=tags, note=note, most=1)
    return [parts[0] if parts else [] for parts in cut]


def encode_parts(
    tokenizer: Tokenizer,
    lines: Sequence[str],
    *,
    max_len: int,
    tags: Sequence[int],
    note: Callable[[Note], None],
    most: int = MOST_PARTS,
) -> list[list[list[int]]]:
    """Tokenize every line into parts of at most `max_len` ids, each with the tags first and eos last.

    Args:
        note: Called for a line of several parts, for one of more than `most`, which is cut, and for one that fails.

    Returns:
        For every line its parts, as `split` makes them; none if it has no piece.
    """
    ids: list[list[list[int]]] = [[] for _ in lines]
    # A window of huge lines must fit in memory
    for chunk in _chunks(lines, _TOKENIZED_CHARACTERS):
        for i, row in _source_ids(tokenizer, {i: whole_characters(lines[i]) for i in chunk}, note):
            *pieces, eos = row
            longest = max(1, max_len - len(tags) - 1)
            parts = [pieces] if pieces else []
            # Images have a fixed size and stay whole
            if len(pieces) > longest and not tokenizer.patches:
                # A row of a single part is cut where it must be, and none of it is lost at an earlier boundary
                parts = [pieces[:longest]] if most == 1 else split(tokenizer, pieces, longest)[:most]
                note(Note(i, len(pieces), sum(map(len, parts)), parts=len(parts)))
            # A row of eos alone has no piece: the line stays empty, tags or not
            ids[i] = [[*tags, *part, eos] for part in parts]
    return ids


def split(tokenizer: Tokenizer, pieces: Sequence[int], longest: int) -> list[list[int]]:
    """Split the ids of a source into parts of at most `longest`, where a reader would.

    Each part ends after the last sentence that ends in its second half; if there is none, after a comma or the like,
    else before a word, else before a character.
    """
    texts = [tokenizer.src.id_to_piece(piece) for piece in pieces]
    parts: list[list[int]] = []
    start = 0
    while len(pieces) - start > longest:
        ends = range(start + longest, start + longest // 2, -1)
        end = next((end for fits in _BOUNDARIES for end in ends if fits(texts[start:end], texts[end])), start + longest)
        parts.append(list(pieces[start:end]))
        start = end
    return [*parts, list(pieces[start:])]


def _between_sentences(before: Sequence[str], after: str) -> bool:
    # Closing quotes and brackets belong to the sentence
    mark = "".join(before[-4:]).rstrip("\"'»”’)]")[-1:]
    # Chinese and Japanese have no spaces
    return mark in tuple("。！？") or (mark in tuple(".!?…") and after.startswith("▁"))


def _between_clauses(before: Sequence[str], after: str) -> bool:
    mark = before[-1][-1:]
    return mark in tuple("，；：、") or (mark in tuple(",;:–—") and after.startswith("▁"))


def _between_words(before: Sequence[str], after: str) -> bool:
    return after.startswith("▁")


def _between_characters(before: Sequence[str], after: str) -> bool:
    # The bytes 80 to BF go on with a character
    return not re.fullmatch(r"<0x[89AB].>", after)


_BOUNDARIES = (_between_sentences, _between_clauses, _between_words, _between_characters)


def _source_ids(
    tokenizer: Tokenizer, lines: dict[int, str], note: Callable[[Note], None]
) -> Iterator[tuple[int, list[int]]]:
    """Yield the number and ids of each line; note and leave out a line that should be an image and is not."""
    try:
        yield from zip(lines, tokenizer.encode_src(list(lines.values())), strict=True)
    except ImageError as error:
        if len(lines) == 1:
            note(Note(next(iter(lines)), 0, 0, error.reason))
            return
        for half in halves(list(lines)):
            yield from _source_ids(tokenizer, {i: lines[i] for i in half}, note)


def halves(rows: list[int]) -> tuple[list[int], list[int]]:
    """Split rows in the middle."""
    middle = len(rows) // 2
    return rows[:middle], rows[middle:]


def whole_characters(line: str) -> str:
    """Replace lone surrogates, which no UTF-8 tokenizer takes."""
    try:
        # Encoding fails for lone surrogates alone
        line.encode()
    except UnicodeEncodeError:
        return line.encode("utf-8", "replace").decode()
    return line


def _chunks(lines: Sequence[str], size: int) -> Iterator[list[int]]:
    """Yield positions of the lines that are not blank, in runs of at most `size` characters (or of one line)."""
    chunk: list[int] = []
    total = 0
    for i, line in enumerate(lines):
        if not line.strip():
            continue
        # A single line longer than `size` is a chunk by itself
        if chunk and total + len(line) > size:
            yield chunk
            chunk, total = [], 0
        chunk.append(i)
        total += len(line)
    if chunk:
        yield chunk
