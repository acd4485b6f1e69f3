"""Turn lines of any content into ids of the source's vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from seq2seq.data.text_files import is_blank
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.images.lines import ImageError
from seq2seq.inference.notes import Note

_TOKENIZED_CHARACTERS = 1 << 20  # of text that is tokenized at a time


def encode_lines(
    tokenizer: Tokenizer,
    lines: Sequence[str],
    *,
    max_len: int,
    tags: Sequence[int],
    note: Callable[[Note], None],
) -> list[list[int]]:
    """Tokenize every line to at most `max_len` ids, the tags first, the last one eos; [] for one without any piece.

    Args:
        note: Called for a line that is cut, and for one that fails.
    """
    longest = longest_part(max_len, tags)
    rows = []
    for position, pieces in enumerate(encode_pieces(tokenizer, lines, note=note)):
        # Images have a fixed size and stay whole
        if len(pieces) > longest and not tokenizer.patches:
            note(Note.cut(position, len(pieces), longest))
            pieces = pieces[:longest]
        rows.append([*tags, *pieces, *source_end(tokenizer)] if pieces else [])
    return rows


def longest_part(max_len: int, tags: Sequence[int]) -> int:
    """Return the most pieces of a source of `max_len` ids, of which tags and eos are some."""
    return max(1, max_len - len(tags) - 1)


def source_end(tokenizer: Tokenizer) -> list[int]:
    """Return the ids after the pieces of a source: eos, and none after those of an image."""
    return [] if tokenizer.patches else [tokenizer.eos_id]


def encode_pieces(tokenizer: Tokenizer, lines: Sequence[str], *, note: Callable[[Note], None]) -> list[list[int]]:
    """Tokenize every line, without eos; [] for a blank one, and for one that should be an image and is not."""
    pieces: list[list[int]] = [[] for _ in lines]
    # A window of huge lines must fit in memory
    for chunk in _chunks(lines, _TOKENIZED_CHARACTERS):
        for i, row in _source_ids(tokenizer, {i: whole_characters(lines[i]) for i in chunk}, note):
            pieces[i] = row[: len(row) - len(source_end(tokenizer))]
    return pieces


def _source_ids(
    tokenizer: Tokenizer, lines: dict[int, str], note: Callable[[Note], None]
) -> Iterator[tuple[int, list[int]]]:
    """Yield the number and ids of each line; note and leave out a line that should be an image and is not."""
    try:
        yield from zip(lines, tokenizer.encode_src(list(lines.values())), strict=True)
    except ImageError as error:
        if len(lines) == 1:
            note(Note.failed(next(iter(lines)), error.reason))
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
        if is_blank(line):
            continue
        # A single line longer than `size` is a chunk by itself
        if chunk and total + len(line) > size:
            yield chunk
            chunk, total = [], 0
        chunk.append(i)
        total += len(line)
    if chunk:
        yield chunk
