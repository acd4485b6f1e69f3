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
Spans = list[tuple[int, int]]

# Marks of a text; one with more is not from a person, and stays as it is.
_MOST_MARKS = 300
# Characters in which the next word of an alignment is searched.
_FAR = 200
_TOKEN = re.compile(r"\w+|[^\w\s]")


class Mark(NamedTuple):
    """Inline mark around the characters `start` to `end` of a text, as the file writes its beginning and its end.

    A mark with `start` == `end` stands between characters and is `opening` alone, after the space `gap`.
    """

    start: int
    end: int
    opening: str
    closing: str = ""
    gap: str = ""


class Segment(NamedTuple):
    """Text to translate: the place in the file that its translation replaces, and its marks, outer ones first.

    Attributes:
        breaks: The file's line breaks, which are spaces in the text.
        write: Writes a translation as the file does, such as with & as &amp;.
    """

    start: int
    end: int
    text: str
    marks: Sequence[Mark] = ()
    breaks: Sequence[str] = ()
    write: Callable[[str], str] = str


def replace(content: str, segments: Sequence[Segment], translate: Translate) -> str:
    """Replace the segments of a file, in order, by their translations; unchanged ones stay as they are."""
    found = translate([each.text for each in segments], [bool(each.marks) for each in segments])
    written = []
    done = 0
    for segment, (text, alignment) in zip(segments, found, strict=True):
        own = content[segment.start : segment.end]
        written += [content[done : segment.start], own if text == segment.text else _written(segment, text, alignment)]
        done = segment.end
    return "".join([*written, content[done:]])


def _written(segment: Segment, text: str, alignment: Alignment | None) -> str:
    """Write the translation of a segment with its marks and its number of lines.

    A mark covers the words that are aligned with its words, from the first to the last. Marks stay nested: one that
    would cross another ends with it. Without an alignment, the words at the same place of the text count as aligned.
    """
    source = [match.span() for match in _TOKEN.finditer(segment.text)]
    target = [match.span() for match in _TOKEN.finditer(text)]
    linked = _links(segment.text, text, source, target, alignment)
    starts: dict[int, list[tuple[int, Mark]]] = defaultdict(list)
    outer = [(0, len(target), len(segment.text) + 1)]
    for mark in segment.marks:
        while mark.start >= outer[-1][2]:
            outer.pop()
        inside = [i for i, (start, end) in enumerate(source) if start < mark.end and end > mark.start]
        before = [i for i, (_, end) in enumerate(source) if end <= mark.start]
        found = [j for i in inside for j in linked[i]]
        if inside and len(inside) == len(source):
            low, high = 0, len(target)
        elif found:
            low, high = min(found), max(found) + 1
            # Punctuation at the end of a mark, as in <b>Note:</b>
            both = high < len(target) and not segment.text[source[inside[-1]][0]].isalnum()
            high += both and not text[target[high][0]].isalnum()
        else:
            low = next((max(linked[i]) + 1 for i in reversed(before) if linked[i]), 0)
            low = high = len(target) if len(before) == len(source) else low
        low, high = (min(max(each, outer[-1][0]), outer[-1][1]) for each in (low, high))
        starts[low].append((high, mark))
        if mark.end > mark.start:
            outer.append((low, high, mark.end))
    breaks = _breaks(segment.breaks, text, target)
    pieces: list[str] = []
    # Where each open mark ends, and how
    ends: list[tuple[int, str]] = []
    at = 0
    for number, (start, end) in enumerate([*target, (len(text), len(text))]):
        while ends and ends[-1][0] <= number:
            pieces.append(ends.pop()[1])
        codes = [mark.gap * bool(number) + mark.opening for _, mark in starts[number] if mark.start == mark.end]
        # A space between a code and the first word is a part of the text
        after = " " * bool(codes and not number and segment.text.startswith(" "))
        pieces += [*codes, breaks.get(number, text[at:start] or after)]
        for high, mark in starts[number]:
            if mark.start < mark.end:
                pieces.append(mark.opening)
                ends.append((min([high, *(each for each, _ in ends)]), mark.closing))
        while ends and ends[-1][0] <= number:
            pieces.append(ends.pop()[1])
        pieces.append(segment.write(text[start:end]))
        at = end
    return "".join([*pieces, *(closing for _, closing in reversed(ends))])


def _breaks(breaks: Sequence[str], text: str, target: Spans) -> dict[int, str]:
    """Choose the tokens before which a line breaks, so that the lines are about even."""
    gaps = [i for i in range(1, len(target)) if target[i][0] > target[i - 1][1]]
    found: dict[int, str] = {}
    for number, written in enumerate(breaks, 1):
        wanted = len(text) * number / (len(breaks) + 1)
        if later := [gap for gap in gaps if gap > max(found, default=0)]:
            found[min(later, key=lambda gap: abs(target[gap][0] - wanted))] = written
    return found


def _links(text: str, other: str, source: Spans, target: Spans, alignment: Alignment | None) -> list[list[int]]:
    """Return the target tokens of each source token; punctuation has none."""
    left = [i for i, (start, _) in enumerate(source) if text[start].isalnum()]
    right = [j for j, (start, _) in enumerate(target) if other[start].isalnum()]
    found: list[list[int]] = [[] for _ in source]
    if alignment is None:
        for place, i in enumerate(left):
            same = place * len(right) // len(left)
            found[i] = right[same : same + 1]
        return found
    left_words, right_words = _places(alignment.source, text, source), _places(alignment.target, other, target)
    for one, two in alignment.links:
        for i in left_words[one]:
            if text[source[i][0]].isalnum():
                found[i] += [j for j in right_words[two] if other[target[j][0]].isalnum()]
    return found


def _places(words: Sequence[str], text: str, tokens: Spans) -> list[range]:
    """Return the tokens of each word of an alignment; none for a word that the text has in another Unicode form."""
    starts, ends = [start for start, _ in tokens], [end for _, end in tokens]
    found = []
    at = 0
    for word in words:
        # A word that is not found must not cost a search of the whole text
        start = text.find(word, at, at + len(word) + _FAR) if word else -1
        at = start + len(word) if start >= 0 else at
        found.append(range(bisect_right(ends, start), bisect_left(starts, at)) if start >= 0 else range(0))
    return found


class Pieces:
    """Collects the pieces of a text in the order of the file; `segment` ends it and begins the next one."""

    def __init__(self, write: Callable[[str], str] = str) -> None:
        self.write = write
        self.found: list[Segment] = []
        self._clear()

    def _clear(self) -> None:
        self.text = ""
        self.start = self.end = -1
        self.marks: list[Mark] = []
        self.breaks: list[str] = []
        self._open: list[tuple[int, str]] = []  # number of the mark, name

    def add(self, raw: str, start: int, text: str) -> None:
        """Add text, which is `raw` and begins at `start` in the file."""
        if raw.strip():
            if self.start < 0:
                self.start, text = start + len(raw) - len(raw.lstrip()), text.lstrip()
            self.end = start + len(raw.rstrip())
        if self.start >= 0:
            self.text += re.sub(r"\s", " ", text)

    def line(self, raw: str) -> None:
        """Add a line break inside a text."""
        self.breaks.append(raw)
        self.text += " "

    def open(self, name: str, raw: str, start: int) -> None:
        """Begin a mark."""
        self.code(raw, start, gap=False)
        self._open.append((len(self.marks) - 1, name))

    def code(self, raw: str, start: int, *, gap: bool = True) -> None:
        """Add what is not translated; the space before it goes with it."""
        if len(self.marks) >= _MOST_MARKS:
            self._clear()
        self.start, self.end = start if self.start < 0 else self.start, start + len(raw)
        kept = self.text.rstrip(" ") if gap else self.text
        self.marks.append(Mark(len(kept), len(kept), raw, gap=self.text[len(kept) :]))
        self.text = kept

    def close(self, name: str, raw: str, start: int) -> None:
        """End the mark of this name that began last; marks that began after it have no end."""
        place = next((i for i in reversed(range(len(self._open))) if self._open[i][1] == name), None)
        if place is None:
            return self.code(raw, start)
        self.end = start + len(raw)
        number, own = self._open[place][0], self.marks[self._open[place][0]]
        empty = own.start >= len(self.text)
        own = own._replace(opening=own.opening + raw) if empty else own._replace(end=len(self.text), closing=raw)
        self.marks[number] = own
        del self._open[place:]

    def segment(self) -> None:
        """End the text; one without letters is no segment."""
        text = self.text.rstrip()
        if any(map(str.isalpha, text)):
            marks = [
                each._replace(start=min(each.start, len(text)), end=min(each.end, len(text))) for each in self.marks
            ]
            self.found.append(Segment(self.start, self.end, text, marks, self.breaks, self.write))
        self._clear()
