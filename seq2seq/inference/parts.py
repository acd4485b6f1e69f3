"""Cut lines into parts that are translated separately, and join the translations with the white space of the line."""

from __future__ import annotations

import dataclasses
import itertools
import re
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Container, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sentencepiece import SentencePieceProcessor

from seq2seq.data.context import fit_context
from seq2seq.data.factors import read_factors
from seq2seq.data.marks import unmarked
from seq2seq.data.sentences import sentences
from seq2seq.data.text_files import is_blank
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.inference.encoding import begins_word, encode_pieces, longest_part, source_pieces, whole_characters
from seq2seq.inference.glossary import Term
from seq2seq.inference.limits import MOST_PARTS, SENTENCES
from seq2seq.inference.notes import Note
from seq2seq.settings.tokenizer import FACTOR
from seq2seq.system.errors import LineError

if TYPE_CHECKING:
    from seq2seq.inference.translator import Translator

# A match begins with the first white space, so that a line of white space takes linear time.
LINE_BREAKS = re.compile(r"((?<!\s)\s*\n\s*)")


class SourcePart(NamedTuple):
    """Part of a line: its pieces, text, white space before it, its context, its terms, and the pieces with them."""

    pieces: list[int]
    text: str
    before: str = ""
    context: tuple[SourcePart, ...] = ()
    terms: Sequence[Term] = ()
    marked: Sequence[int] = ()

    def ids(self, separator: int | None, longest: int) -> list[int]:
        """Return the pieces behind as much of the context as `longest` ids can hold."""
        own = self.marked or self.pieces
        if separator is None:
            return list(own)
        before = [piece for each in self.context for piece in (*each.pieces, separator)]
        return fit_context([*before, *own], separator, longest)


class SourceLine(NamedTuple):
    """Parts of a line (none for a blank line), and the white space after the last part."""

    parts: list[SourcePart]
    after: str = ""

    def join(self, texts: Sequence[str], *, spaces: bool) -> str:
        """Join the translations of all parts with the white space of the line; `spaces` of the target language."""
        joined = ""
        for part, text in zip(self.parts, texts, strict=True):
            # Line breaks always stay, other white space only between parts
            gap = part.before
            if "\n" in gap:
                joined += gap
            elif joined and text:
                # Some readers take these for the end of a line
                gap = re.sub("[\r\v\f\x1c-\x1f\x85\u2028\u2029]", " ", gap)
                joined += (gap or " ") if spaces or gap.strip(" ") else ""
            joined += text
        return joined + self.end

    @property
    def end(self) -> str:
        """Line breaks after the last part."""
        return self.after if "\n" in self.after else ""


@dataclasses.dataclass(kw_only=True)
class LineCutter:
    """Cuts lines into parts that are as long as the model's training lines, whose statistics the translator has.

    A line is always cut at line breaks. A part that is longer than the longest source is cut after a sentence, else
    after a clause, else after a word.

    Args:
        mode: One of SENTENCES. `auto` cuts a line that has more sentences or pieces than most training lines, `split`
            cuts after every sentence, `keep` does not cut.
        note: Called for a line that is cut for its length, that is not translated as a whole, that fails, or that
            `keep` leaves whole though `auto` would cut it.

    Raises:
        ValueError: The mode is unknown.
    """

    translator: Translator
    mode: str
    note: Callable[[Note], None]

    def __post_init__(self) -> None:
        if self.mode not in SENTENCES:
            raise ValueError(f"unknown division into sentences '{self.mode}': choose {', '.join(SENTENCES)}")
        self.tokenizer = self.translator.tokenizer
        self.longest = longest_part(self.translator.max_len, self.translator.tags.source)

    def __call__(self, lines: Sequence[str], whole: Collection[int] = ()) -> list[SourceLine]:
        """Cut lines; `auto` does not cut the lines at the positions `whole`."""
        # Images have no sentences
        if self.tokenizer.patches:
            found = encode_pieces(self.tokenizer, lines, note=self.note)
            return [SourceLine([SourcePart(row, "")] if row else []) for row in found]
        rows = [LINE_BREAKS.split(unmarked(whole_characters(line))) for line in lines]
        factors = self.tokenizer.factors
        for i, line in enumerate(lines):
            try:
                if factors:
                    read_factors([line], factors)
                elif FACTOR in line:
                    self.note(Note.of_kind(i, "marked"))
            except LineError as error:
                self.note(Note.failed(i, error.reason))
                rows[i] = [""]
        # One call for all lines: the tokenizer's overhead is per call
        pieces = iter(encode_pieces(self.tokenizer, [text for row in rows for text in row[::2]], note=self.note))
        return [self._line(i, row, pieces, keep=i in whole) for i, row in enumerate(rows)]

    def _line(self, position: int, row: Sequence[str], pieces: Iterator[list[int]], *, keep: bool) -> SourceLine:
        """Cut a line; `row` alternates between text and line breaks."""
        parts: list[SourcePart] = []
        before = ""
        for text, gap in zip(row[::2], [*row[1::2], ""], strict=True):
            own = self._parts(position, text, next(pieces), keep=keep)
            if own:
                parts += [own[0]._replace(before=before), *own[1:]]
                before = ""
            before += gap
        # Only input that is not text reaches this limit
        ends = list(itertools.accumulate(len(part.pieces) for part in parts))
        fitting = bisect_right(ends, MOST_PARTS * self.longest)
        if fitting < len(parts):
            self.note(Note.cut(position, ends[-1], ends[fitting - 1]))
        return SourceLine(parts[:fitting], before)

    def _parts(self, position: int, text: str, pieces: list[int], *, keep: bool) -> list[SourcePart]:
        """Cut text without line breaks."""
        if not pieces:
            return []
        known = self.translator.statistics
        too_long = len(pieces) > self.longest
        found = sentences(text, self.translator.src_lang)
        if self.tokenizer.factors:
            # No word ends as a sentence does: a line is cut only if it must be, after any word
            found = re.findall(r"\s*\S+", text) if too_long else [text]
        several = len(found) > 1 and not self.tokenizer.factors
        unusual = several and not known.covers(len(found), len(pieces))
        wanted = unusual if self.mode == "auto" else several and self.mode == "split"
        if not too_long:
            has = f"has {len(found)} sentences"
            if keep and wanted and self.mode == "auto":
                reason = "which are translated as one: its prefix or phrases cannot be placed"
                self.note(Note(position, "whole", f"{has}, {reason}"))
                wanted = False
            if self.mode == "keep" and unusual:
                most = f"{known.most_sentences} and {known.most_pieces}" if known.most_pieces else known.most_sentences
                said = f"{has} and {len(pieces):,} pieces; most training lines have no more than {most}"
                self.note(Note(position, "beyond", said))
            if not wanted:
                return [SourcePart(pieces, text)]
        if wanted:
            most = 1 if self.mode == "split" else known.sentences
            parts = self._grouped(found, most, min(self.longest, known.most_pieces or self.longest))
        else:
            parts = self._grouped(found, len(found), self.longest)
        if too_long and (self.mode == "keep" or len(parts) > len(found)):
            self.note(Note(position, "split", f"is split: {len(pieces):,} pieces, translated in {len(parts)} parts"))
        return parts

    def _grouped(self, found: Sequence[str], most: int, room: int) -> list[SourcePart]:
        """Join sentences into parts of at most `most` sentences; a part of several has at most `room` pieces."""
        counts = map(len, encode_pieces(self.tokenizer, found, note=self.note))
        groups: list[list[str]] = []
        size = 0
        for sentence, count in zip(found, counts, strict=True):
            if groups and len(groups[-1]) < most and size + count <= room:
                groups[-1].append(sentence)
                size += count
            else:
                groups.append([sentence])
                size = count
        texts = [_trimmed("".join(group)) for group in groups]
        encoded = encode_pieces(self.tokenizer, [text for _, text, _ in texts], note=self.note)
        parts: list[SourcePart] = []
        before = ""
        for (left, text, right), pieces in zip(texts, encoded, strict=True):
            rows = split(self.tokenizer, pieces, self.longest) if pieces else []
            texts_of_rows = [text] if len(rows) == 1 else _texts(self.tokenizer, text, rows)
            for place, (row, own) in enumerate(zip(rows, texts_of_rows, strict=True)):
                parts.append(SourcePart(row, own, "" if place else before + left))
            before = right if rows else before + right
        return parts


def add_context(lines: Sequence[SourceLine], size: int, *, begins: Container[int]) -> list[SourceLine]:
    """Give each part the `size` parts before it as context, up to a blank line.

    Args:
        begins: Positions of lines with which a document begins.
    """
    found = []
    previous: deque[SourcePart] = deque(maxlen=size)
    for number, line in enumerate(lines):
        if number in begins or not line.parts:
            previous.clear()
        parts = []
        for part in line.parts:
            # A blank line inside a text
            if part.before.count("\n") > 1:
                previous.clear()
            parts.append(part._replace(context=tuple(previous)))
            previous.append(part)
        found.append(line._replace(parts=parts))
    return found


def _trimmed(text: str) -> tuple[str, str, str]:
    """Split a text into the white space before it, its content without blank ends, and the white space after it."""
    shown = [i for i, character in enumerate(text) if not is_blank(character)]
    start, end = (shown[0], shown[-1] + 1) if shown else (0, 0)
    left, right = ("".join(filter(str.isspace, edge)) for edge in (text[:start], text[end:]))
    return left, text[start:end], right


def _texts(tokenizer: Tokenizer, text: str, rows: Sequence[Sequence[int]]) -> list[str]:
    """Return the characters of a text that became each row of its ids."""
    *starts, count = itertools.accumulate(map(len, rows))
    places: list[int] = []
    # Neither factors nor the words of Moses are places of the text
    if isinstance(tokenizer.src, SentencePieceProcessor) and not tokenizer.factors:
        proto: Any = SentencePieceProcessor.encode(tokenizer.src, text, out_type="immutable_proto")
        places = [piece.begin for piece in proto.pieces]
    if len(places) != count:
        return [tokenizer.src.decode(source_pieces(tokenizer, row)) for row in rows]
    bounds = [0, *(places[start] for start in starts), len(text)]
    return [text[begin:end].strip() for begin, end in itertools.pairwise(bounds)]


def split(tokenizer: Tokenizer, pieces: Sequence[int], longest: int) -> list[list[int]]:
    """Split the ids of a sentence into parts of at most `longest`.

    Each part ends after the last clause that ends in its second half, else before a word, else before a character.
    """
    texts = source_pieces(tokenizer, pieces)
    parts: list[list[int]] = []
    start = 0
    while len(pieces) - start > longest:
        ends = range(start + longest, start + longest // 2, -1)
        end = next((end for fits in _BOUNDARIES for end in ends if fits(texts[end - 1], texts[end])), start + longest)
        parts.append(list(pieces[start:end]))
        start = end
    return [*parts, list(pieces[start:])]


def _between_clauses(before: str, after: str) -> bool:
    last = before.removesuffix("▁")[-1:]
    return last in tuple("，；：、。！？") or (last in tuple(".!?…,;:–—") and begins_word(before, after))


def _between_characters(before: str, after: str) -> bool:
    # The bytes 80 to BF continue a character
    return not re.fullmatch(r"<0x[89AB].>", after)


_BOUNDARIES = (_between_clauses, begins_word, _between_characters)
