"""Segments of a document: texts with inline marks, which are translated and put back into place. Imports no torch."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from seq2seq.inference.forced_text import Alignment

# Translates texts, and aligns the words of those for which the second argument says so.
Translate = Callable[[Sequence[str], Sequence[bool]], "Sequence[tuple[str, Alignment | None]]"]
# Writes a translation as its file does, given as texts (0, 2, ...) with what the file writes between them (1, 3, ...).
Write = Callable[[Sequence[str]], str]

# Marks inside each other; deeper ones stay as codes, so that the time is linear.
_DEEPEST = 100
# Characters in which the next word of an alignment is searched.
_FAR = 200
_TOKEN = re.compile(r"\w+|[^\w\s]")
_ADDRESS = re.compile(r"\b(?:https?://|www\.)[^\s<>\"()\[\]]{0,2000}[\w/]|\b[\w.+-]{1,64}@[\w-]{1,64}\.[\w.-]{0,200}\w")


class Mark(NamedTuple):
    """Mark around the characters `start` to `end` of a text; one between characters (a code) has an opening alone.

    Attributes:
        space: The mark replaces the space after it, as a tab does.
    """

    start: int
    end: int
    opening: str
    closing: str = ""
    space: bool = False


class Segment(NamedTuple):
    """Text to translate: its place in the file, its marks, outer ones first, and the spaces around it.

    Attributes:
        put: Start and end of what the translation replaces instead, and what stands before and after it.
    """

    start: int
    end: int
    text: str = ""
    marks: Sequence[Mark] = ()
    write: Write = "".join
    spaces: tuple[str, str] = ("", "")
    put: tuple[int, int, str, str] | None = None


def replace(content: str, segments: Sequence[Segment], translate: Translate) -> str:
    """Replace the segments of a file by their translations; unchanged ones stay as they are."""
    found = translate([each.text for each in segments], [bool(each.marks) for each in segments])
    edits = []
    for segment, (text, alignment) in zip(segments, found, strict=True):
        start, end, before, after = segment.put or (segment.start, segment.end, "", "")
        same = text == segment.text
        new = content[segment.start : segment.end] if same else segment.write(_written(segment, text, alignment))
        edits.append((start, end, before, new, after))
    written = []
    done = 0
    for start, end, *new in sorted(edits, key=lambda edit: edit[0]):
        written += [content[done:start], *new]
        done = end
    return "".join([*written, content[done:]])


def _written(segment: Segment, text: str, alignment: Alignment | None) -> list[str]:
    """Put the marks of a segment into its translation, which becomes the argument of `Segment.write`.

    A mark covers the words that are aligned with its words, from the first to the last. Marks stay nested: one that
    would cross another ends with it. Without an alignment, the words at the same place of the text count as aligned.
    """
    source, target = ([match.span() for match in _TOKEN.finditer(each)] for each in (segment.text, text))
    linked = _links(segment.text, text, source, target, alignment)
    begins, stops = [start for start, _ in source], [end for _, end in source]
    # Where what follows a number of source tokens stands
    after = [0]
    for (start, end), each in zip(source, linked, strict=True):
        place = after[-1]
        same = place < len(target) and segment.text[start:end] == text[slice(*target[place])]
        after.append(max(each) + 1 if each else place + same)
    after[-1] = len(target)
    starts: dict[int, list[tuple[int, Mark]]] = defaultdict(list)
    outer = [(0, len(target), len(segment.text) + 1)]
    for mark in segment.marks:
        while mark.start >= outer[-1][2]:
            outer.pop()
        first, last = bisect_right(stops, mark.start), bisect_left(begins, mark.end)
        found = [j for i in range(first, last) for j in linked[i]]
        low = high = after[first]
        if last - first == len(source):
            low, high = 0, len(target)
        elif found:
            low, high = min(found), max(found) + 1
            # Punctuation at the end of a mark, as in <b>Note:</b>
            both = high < len(target) and not segment.text[source[last - 1][0]].isalnum()
            high += both and not text[target[high][0]].isalnum()
        low, high = (min(max(each, outer[-1][0]), outer[-1][1]) for each in (low, high))
        starts[low].append((high, mark))
        if mark.end > mark.start:
            outer.append((low, high, mark.end))
    pieces: list[str] = []
    plain = [segment.spaces[0]]
    # Where each open mark ends, and how
    ends = [(len(target) + 1, "")]

    def put(raw: str) -> None:
        pieces.extend(["".join(plain), raw])
        plain.clear()

    at = 0
    for number, (start, end) in enumerate([*target, (len(text), len(text))]):
        while ends[-1][0] <= number:
            put(ends.pop()[1])
        codes = [mark for _, mark in starts[number] if mark.start == mark.end]
        for mark in codes:
            put(mark.opening)
        # A space between a code and the first word is a part of the text
        between = " " if codes and not number and segment.text.startswith(" ") else text[at:start]
        plain.append("" if any(mark.space for mark in codes) else between)
        for high, mark in starts[number]:
            if mark.start < mark.end:
                put(mark.opening)
                ends.append((min(high, ends[-1][0]), mark.closing))
        while ends[-1][0] <= number:
            put(ends.pop()[1])
        plain.append(text[start:end])
        at = end
    return [*pieces, "".join(plain) + segment.spaces[1]]


def _links(
    text: str, other: str, source: list[tuple[int, int]], target: list[tuple[int, int]], alignment: Alignment | None
) -> list[list[int]]:
    """Return the target tokens of each source token; punctuation has none."""
    found: list[list[int]] = [[] for _ in source]
    if alignment is None:
        left = [i for i, (start, _) in enumerate(source) if text[start].isalnum()]
        right = [j for j, (start, _) in enumerate(target) if other[start].isalnum()]
        for place, i in enumerate(left):
            same = place * len(right) // len(left)
            found[i] = right[same : same + 1]
        return found
    left_words, right_words = _places(alignment.source, text, source), _places(alignment.target, other, target)
    for one, two in alignment.links:
        for i in left_words[one]:
            # The first and the last one are enough, and a word may have many
            found[i] += [*right_words[two][:1], *right_words[two][-1:]]
    return found


def _places(words: Sequence[str], text: str, tokens: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Return the tokens of each word of an alignment, except punctuation; none if its Unicode form is another one."""
    starts, ends = [start for start, _ in tokens], [end for _, end in tokens]
    found = []
    at = 0
    for word in words:
        # A word that is not found must not cost a search of the whole text
        start = text.find(word, at, at + len(word) + _FAR) if word else -1
        at = start + len(word) if start >= 0 else at
        own = range(bisect_right(ends, start), bisect_left(starts, at)) if start >= 0 else ()
        found.append([i for i in own if text[starts[i]].isalnum()])
    return found


class Pieces:
    """Collects pieces of a text, read by `read`, in the order of the file; `segment` ends it and begins the next."""

    def __init__(self, content: str, read: Callable[[str], str], write: Write) -> None:
        self.content = content
        self.read = read
        self.write = write
        self.found: list[Segment] = []
        self.clear()

    def clear(self) -> None:
        """Forget the open text, which stays as it is."""
        self.parts: list[str] = []
        self.length = 0
        self.span: tuple[int, int] | None = None
        self.marks: list[Mark] = []
        self._open: list[tuple[int, str]] = []  # number of the mark, name
        self._gap: int | None = None  # number of the last mark, if it has taken a space

    def _take(self, start: int, end: int, raw: str | None) -> str:
        self.span = (self.span or (start, end))[0], end
        return self.content[start:end] if raw is None else raw

    def add(self, text: str) -> None:
        """Add text that the file does not have."""
        # A code that took the space before it must not join two words
        if text and self._gap is not None:
            if text[0].isalnum():
                self.marks[self._gap] = self.marks[self._gap]._replace(space=True)
                text = f" {text}"
            self._gap = None
        self.parts.append(text)
        self.length += len(text)

    def text(self, start: int, end: int) -> None:
        """Add text; its addresses are codes."""
        for match in _ADDRESS.finditer(self.content, start, end):
            self.text(start, match.start())
            start = match.end()
            self.code(match.start(), start, self.write([self.read(match[0])]))
        self.add(self.read(self._take(start, end, None)))

    def code(self, start: int, end: int, raw: str | None = None, *, space: bool = False) -> None:
        """Add what is not translated, with the space before it; see `Mark`."""
        raw = self._take(start, end, raw)
        before = self.parts.pop() if self.parts else ""
        self.length -= len(before)
        kept = before.rstrip() if self.length or self.marks or before.strip() else before
        self.add(kept)
        gap = before[len(kept) :]
        self.marks.append(Mark(self.length, self.length, (self.write([gap]) if gap else "") + raw, space=space))
        self.add(" " if space else "")
        self._gap = len(self.marks) - 1 if gap and not space else self._gap

    def open(self, name: str, start: int, end: int, raw: str | None = None) -> None:
        """Begin a mark."""
        self.marks.append(Mark(self.length, self.length, self._take(start, end, raw)))
        if len(self._open) < _DEEPEST:
            self._open.append((len(self.marks) - 1, name))

    def close(self, name: str, start: int, end: int, raw: str | None = None) -> None:
        """End the mark of this name that began last; marks that began after it have no end."""
        place = next((i for i in reversed(range(len(self._open))) if self._open[i][1] == name), None)
        if place is None:
            return self.code(start, end, raw)
        raw = self._take(start, end, raw)
        number = self._open[place][0]
        own = self.marks[number]._replace(end=self.length, closing=raw)
        self.marks[number] = own if own.end > own.start else own._replace(opening=own.opening + raw)
        del self._open[place:]

    def segment(self) -> None:
        """End the text; one without letters is no segment."""
        whole = "".join(self.parts)
        if self.span and any(map(str.isalpha, whole)):
            # Spaces after a first code stay in the text
            lead = min([len(whole) - len(whole.lstrip()), *(mark.start for mark in self.marks[:1])])
            end = len(whole.rstrip())
            marks = [
                each._replace(start=min(each.start, end) - lead, end=min(each.end, end) - lead) for each in self.marks
            ]
            text = re.sub(r"\s", " ", whole[lead:end])
            self.found.append(Segment(*self.span, text, marks, self.write, (whole[:lead], whole[end:])))
        self.clear()
