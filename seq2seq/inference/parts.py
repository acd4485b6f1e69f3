"""Cut lines into parts that are translated by themselves, and join the translations as the parts stood."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

from seq2seq.data.characters import is_blank
from seq2seq.data.line_statistics import LineStatistics
from seq2seq.data.sentences import sentences
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.inference.encoding import encode_pieces, longest_part, whole_characters
from seq2seq.inference.limits import MOST_PARTS, SENTENCES
from seq2seq.inference.notes import Note

# It begins with the first white space, so that a line of white space alone takes linear time.
_LINE_BREAKS = re.compile(r"((?<!\s)\s*\n\s*)")


class SourcePart(NamedTuple):
    """Part of a line: its pieces, its text, and what stands before it in the line, which is white space or nothing."""

    pieces: list[int]
    text: str
    before: str = ""


class SourceLine(NamedTuple):
    """Parts of a line, none if it is blank, and the white space after the last one."""

    parts: list[SourcePart]
    after: str = ""

    def join(self, texts: Sequence[str], *, spaces: bool) -> str:
        """Join the translations of all parts as the parts stand in the line.

        Args:
            spaces: The language of the translation has spaces between sentences.
        """
        joined = ""
        for part, text in zip(self.parts, texts, strict=True):
            # Line breaks stay wherever they are, other white space between parts alone
            gap = part.before
            if "\n" in gap:
                joined += gap
            elif joined and text:
                # For some readers a carriage return ends a line
                gap = gap.replace("\r", " ")
                joined += (gap or " ") if spaces or gap.strip(" ") else ""
            joined += text
        return joined + self.end

    @property
    def end(self) -> str:
        """Line breaks after the last part."""
        return self.after if "\n" in self.after else ""


class LineCutter:
    """Cuts lines into parts that are as long as the training lines of a model were.

    A line that has line breaks is cut there in any case, and a part that is longer than the longest source after a
    sentence, else a clause, else a word.

    Args:
        language: Code of the source's language.
        statistics: Of the training lines, which say what is cut by `auto`, and into how much.
        mode: One of SENTENCES: `auto` cuts a line that has more sentences or pieces than most training lines,
            `split` after every sentence, `keep` none.
        max_len: Ids of the longest source, its tags and eos counted.
        note: Called for a line that is cut for its length, for one that is not translated as a whole, for one that
            `keep` leaves as it is though `auto` would cut it, and for one that fails.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        language: str,
        statistics: LineStatistics,
        mode: str,
        max_len: int,
        tags: Sequence[int],
        note: Callable[[Note], None],
    ) -> None:
        if mode not in SENTENCES:
            raise ValueError(f"unknown division into sentences '{mode}': choose {', '.join(SENTENCES)}")
        self.tokenizer = tokenizer
        self.language = language
        self.statistics = statistics
        self.mode = mode
        self.longest = longest_part(max_len, tags)
        self.note = note

    def __call__(self, lines: Sequence[str], whole: Collection[int] = ()) -> list[SourceLine]:
        """Cut lines; those at the positions `whole` stay whole where `mode` is `auto`."""
        # Pictures have no sentences
        if self.tokenizer.patches:
            found = encode_pieces(self.tokenizer, lines, note=self.note)
            return [SourceLine([SourcePart(row, "")] if row else []) for row in found]
        rows = [_LINE_BREAKS.split(whole_characters(line)) for line in lines]
        # One call for all of them: the tokenizer's overhead is per call
        pieces = iter(encode_pieces(self.tokenizer, [text for row in rows for text in row[::2]], note=self.note))
        return [self._line(i, row, pieces, keep=i in whole) for i, row in enumerate(rows)]

    def _line(self, position: int, row: Sequence[str], pieces: Iterator[list[int]], *, keep: bool) -> SourceLine:
        """Cut a line, of which `row` has the lines inside and the line breaks between them in turns."""
        parts: list[SourcePart] = []
        before = ""
        for text, gap in zip(row[::2], [*row[1::2], ""], strict=True):
            own = self._parts(position, text, next(pieces), keep=keep)
            if own:
                parts += [own[0]._replace(before=before), *own[1:]]
                before = ""
            before += gap
        return SourceLine(self._within_reason(position, parts), before)

    def _parts(self, position: int, text: str, pieces: list[int], *, keep: bool) -> list[SourcePart]:
        """Cut a line without line breaks."""
        if not pieces:
            return []
        too_long = len(pieces) > self.longest
        found = sentences(text, self.language)
        beyond = len(found) > 1 and not self.statistics.covers(len(found), len(pieces))
        wanted = beyond if self.mode == "auto" else len(found) > 1 and self.mode == "split"
        has = f"has {len(found)} sentences"
        if keep and wanted and self.mode == "auto" and not too_long:
            asked = "which are translated as one: its prefix or phrases cannot be placed"
            self.note(Note(position, "whole", f"{has}, {asked}"))
            wanted = False
        if self.mode == "keep" and beyond and not too_long:
            known = self.statistics
            most = f"{known.most_sentences} and {known.most_pieces}" if known.most_pieces else known.most_sentences
            said = f"{has} and {len(pieces):,} pieces; most training lines have no more than {most}"
            self.note(Note(position, "beyond", said))
        if not wanted and not too_long:
            return [SourcePart(pieces, text)]
        most = 1 if self.mode == "split" else self.statistics.sentences
        room = min(self.longest, self.statistics.most_pieces or self.longest)
        if not wanted:
            most, room = len(found), self.longest
        parts = self._grouped(found, most, room)
        if too_long and (self.mode == "keep" or len(parts) > len(found)):
            self.note(Note(position, "split", f"is split: {len(pieces):,} pieces, translated in {len(parts)} parts"))
        return parts

    def _grouped(self, found: Sequence[str], most: int, room: int) -> list[SourcePart]:
        """Join sentences to parts of at most `most` of them, and of at most `room` pieces where they have no more."""
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
        texts = ["".join(group) for group in groups]
        parts: list[SourcePart] = []
        before = ""
        edges = [_edges(text) for text in texts]
        shown = [text[start:end] for text, (start, end) in zip(texts, edges, strict=True)]
        encoded = encode_pieces(self.tokenizer, shown, note=self.note)
        for text, (start, end), pieces in zip(texts, edges, encoded, strict=True):
            if pieces:
                parts += self._fitting(SourcePart(pieces, text[start:end], before + _spaces(text[:start])))
                before = ""
            before += _spaces(text[end:])
        return parts

    def _fitting(self, part: SourcePart) -> list[SourcePart]:
        """Cut a part that is longer than the longest source."""
        if len(part.pieces) <= self.longest:
            return [part]
        decode = self.tokenizer.src.decode
        first, *rest = split(self.tokenizer, part.pieces, self.longest)
        return [part._replace(pieces=first, text=decode(first)), *(SourcePart(row, decode(row)) for row in rest)]

    def _within_reason(self, position: int, parts: list[SourcePart]) -> list[SourcePart]:
        """Drop, with a note, what is beyond a limit that only lines reach which are no text."""
        sizes = [len(part.pieces) for part in parts]
        kept = 0
        for number, size in enumerate(sizes):
            if kept + size > MOST_PARTS * self.longest:
                self.note(Note.cut(position, sum(sizes), kept))
                return parts[:number]
            kept += size
        return parts


def _edges(text: str) -> tuple[int, int]:
    """Return where text begins and ends that shows something."""
    seen = [i for i, character in enumerate(text) if not is_blank(character)]
    return (seen[0], seen[-1] + 1) if seen else (0, 0)


def _spaces(text: str) -> str:
    """Return the white space of blank text, without characters that have no width."""
    return "".join(filter(str.isspace, text))


def split(tokenizer: Tokenizer, pieces: Sequence[int], longest: int) -> list[list[int]]:
    """Split the ids of a sentence into parts of at most `longest`, where a reader would.

    Each part ends after the last clause that ends in its second half; if there is none, before a word, else before a
    character.
    """
    texts = [tokenizer.src.id_to_piece(piece) for piece in pieces]
    parts: list[list[int]] = []
    start = 0
    while len(pieces) - start > longest:
        ends = range(start + longest, start + longest // 2, -1)
        end = next((end for fits in _BOUNDARIES for end in ends if fits(texts[end - 1], texts[end])), start + longest)
        parts.append(list(pieces[start:end]))
        start = end
    return [*parts, list(pieces[start:])]


def _between_clauses(before: str, after: str) -> bool:
    return before[-1:] in tuple("，；：、。！？") or (before[-1:] in tuple(".!?…,;:–—") and after.startswith("▁"))


def _between_words(before: str, after: str) -> bool:
    return after.startswith("▁")


def _between_characters(before: str, after: str) -> bool:
    # The bytes 80 to BF go on with a character
    return not re.fullmatch(r"<0x[89AB].>", after)


_BOUNDARIES = (_between_clauses, _between_words, _between_characters)
