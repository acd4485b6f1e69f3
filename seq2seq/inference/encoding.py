"""Turn lines of any content into ids of the source's vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from seq2seq.data.images import PictureError
from seq2seq.data.tokenizer import Tokenizer

_TOKENIZED_CHARACTERS = 1 << 20  # of text that is tokenized at a time


class Note(NamedTuple):
    """Problem with one line: only `kept` of its `pieces` were translated, or it failed with `error`."""

    position: int  # of the line, from 0
    pieces: int
    kept: int
    error: str = ""

    def __str__(self) -> str:
        if self.error:
            return f"was not translated and is empty ({self.error})"
        return f"is cut: {self.pieces:,} pieces, the first {self.kept:,} are translated"


def encode_lines(
    tokenizer: Tokenizer,
    lines: Sequence[str],
    *,
    max_len: int,
    tags: Sequence[int],
    note: Callable[[Note], None],
) -> list[list[int]]:
    """Tokenize every line to at most `max_len` ids after the tags, the last one eos; [] for one without any piece."""
    ids: list[list[int]] = [[] for _ in lines]
    # a window of huge lines must fit in memory
    for chunk in _chunks(lines, _TOKENIZED_CHARACTERS):
        for i, row in _source_ids(tokenizer, {i: _unicode(lines[i]) for i in chunk}, note):
            longest = max(2, max_len - len(tags))  # at least one piece and eos
            # pictures have a fixed size and are never cut
            if len(row) > longest and not tokenizer.patches:
                note(Note(i, len(row) - 1, longest - 1))
                row = [*row[: longest - 1], row[-1]]
            # a row of eos alone has no piece: the line stays empty, tags or not
            ids[i] = [*tags, *row] if len(row) > 1 else []
    return ids


def _source_ids(
    tokenizer: Tokenizer, lines: dict[int, str], note: Callable[[Note], None]
) -> Iterator[tuple[int, list[int]]]:
    """Yield the number and ids of each line; note and leave out a line that should be a picture and is not."""
    try:
        yield from zip(lines, tokenizer.encode_src(list(lines.values())), strict=True)
    except PictureError as error:
        if len(lines) == 1:
            note(Note(next(iter(lines)), 0, 0, error.reason))
            return
        for half in halves(list(lines)):
            yield from _source_ids(tokenizer, {i: lines[i] for i in half}, note)


def halves(rows: list[int]) -> tuple[list[int], list[int]]:
    """Split rows in the middle."""
    middle = len(rows) // 2
    return rows[:middle], rows[middle:]


def _unicode(line: str) -> str:
    """Replace lone surrogates, which no UTF-8 tokenizer takes."""
    try:
        # encoding fails for lone surrogates alone
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
        # a single line longer than `size` is a chunk by itself
        if chunk and total + len(line) > size:
            yield chunk
            chunk, total = [], 0
        chunk.append(i)
        total += len(line)
    if chunk:
        yield chunk
