"""Segments of a document: texts with inline marks, which are translated and put back into place. Imports no torch."""

from __future__ import annotations

import itertools
import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from seq2seq.system.characters import UNSPACED_OF_ANY_WIDTH

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
# Accents and vowel signs, which follow their letter
_SIGNS = "".join(sign for sign in map(chr, range(0x300, 0x1E00)) if unicodedata.category(sign)[0] == "M")
# Each character of an unspaced script is a token by itself
_SPACED = rf"[^\W{UNSPACED_OF_ANY_WIDTH}]"
_TOKEN = re.compile(rf"(?:{_SPACED}[{_SIGNS}]*)+|\S[{_SIGNS}]*")
# Words in these may follow an address without a space, and so may Korean particles
_GLUED = rf"{UNSPACED_OF_ANY_WIDTH}\uac00-\ud7a3"
LETTER = rf"[^\W{_GLUED}]"
_ADDRESS = re.compile(
    rf"(?<!{LETTER})(?={LETTER})(?:(?:https?://|www\.)[^\s<>\"()\[\]{_GLUED}]{{0,2000}}(?:{LETTER}|/)|"
    rf"[\w.+-]{{1,64}}@(?:{LETTER}|-){{1,64}}\.(?:{LETTER}|[.-]){{0,200}}{LETTER})"
)


class Mark(NamedTuple):
    """Mark around the characters `start` to `end` of a text; a mark between characters (a code) has only an opening.

    Attributes:
        space: The mark replaces the space after it, as a tab does.
        inner: A code at the beginning of another mark, with the space after it; other codes have the space before them.
        depth: Number of marks around it.
    """

    start: int
    end: int
    opening: str
    closing: str = ""
    space: bool = False
    inner: bool = False
    depth: int = 0


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
    """Replace the segments of a file by their translations; ones without text or a change stay as they are."""
    texts = [each for each in segments if each.text]
    found = iter(translate([each.text for each in texts], [bool(each.marks) for each in texts]))
    edits = []
    for segment in segments:
        text, alignment = next(found) if segment.text else ("", None)
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

    A mark covers the words that are aligned with its words, from the first to the last, and at least one word. Marks
    stay nested, or apart. Without an alignment, the words at the same place of the text count as aligned.
    """
    source, target = ([match.span() for match in _TOKEN.finditer(each)] for each in (segment.text, text))
    marks = segment.marks
    linked = _links(segment.text, text, source, target, alignment)
    source, target, linked = _cut_words(segment, text, source, target, linked)
    ranges, parents = _ranges(segment, text, source, target, linked)
    starts: dict[int, list[int]] = defaultdict(list)
    for mark, (low, _) in enumerate(ranges):
        starts[low].append(mark)
    pieces: list[str] = []
    plain = [segment.spaces[0]]
    # The open marks, and where each ends; -1 is the whole text
    ends = [(len(target) + 1, -1)]

    def put(raw: str) -> None:
        pieces.extend(["".join(plain), raw])
        plain.clear()

    def begin(number: int, mark: int) -> None:
        # Marks without a word stay apart, too
        while ends[-1][0] <= number and ends[-1][1] != parents[mark]:
            put(marks[ends.pop()[1]].closing)
        put(marks[mark].opening)
        if marks[mark].start < marks[mark].end:
            ends.append((min(ranges[mark][1], ends[-1][0]), mark))

    at = 0
    for number, (start, end) in enumerate([*target, (len(text), len(text))]):
        waiting: dict[int, list[int]] = defaultdict(list)
        for mark in reversed(starts[number]):
            waiting[parents[mark]].append(mark)
        while ends[-1][0] <= number:
            if inner := waiting[ends[-1][1]]:
                begin(number, inner.pop())
            else:
                put(marks[ends.pop()[1]].closing)
        # Marks that begin here, each with its codes, and codes of other marks
        real: dict[int, list[int]] = {}
        codes: list[int] = []
        for mark in sorted(itertools.chain(*waiting.values())):
            if marks[mark].start < marks[mark].end:
                real[mark] = [mark]
            else:
                real.get(parents[mark], codes).append(mark)
        # Codes stand before the space before a word, and marks after it, unless they hold such a code
        others = list(itertools.chain(*real.values()))
        held = [place for place, mark in enumerate(others, 1) if mark not in real and not marks[mark].inner]
        cut = max(held, default=0)
        for mark in [*codes, *others[:cut]]:
            begin(number, mark)
        # A space between a code and the first word is a part of the text; a code that has moved there needs one, except
        # from inside or before a word
        moved = [segment.text[marks[mark].start :][:1] for mark in codes if marks[mark].start]
        apart = segment.text.startswith(" ") or any(not re.match(_SPACED, following) for following in moved)
        between = " " if codes and not number and apart else text[at:start]
        plain.append("" if any(marks[mark].space for mark in starts[number]) else between)
        for mark in others[cut:]:
            begin(number, mark)
        while ends[-1][0] <= number:
            put(marks[ends.pop()[1]].closing)
        plain.append(text[start:end])
        at = end
    return [*pieces, "".join(plain) + segment.spaces[1]]


def _cut_words(
    segment: Segment,
    text: str,
    source: list[tuple[int, int]],
    target: list[tuple[int, int]],
    linked: list[list[int]],
) -> tuple[list[tuple[int, int]], list[tuple[int, int]], list[list[int]]]:
    """Cut words within which a mark begins or ends, as in H<sub>2</sub>O, if the translation has them, too."""
    places = sorted({place for mark in segment.marks for place in (mark.start, mark.end)})
    inner = [places[bisect_right(places, start) : bisect_left(places, end)] for start, end in source]
    if not any(inner):
        return source, target, linked
    same: dict[str, list[int]] = defaultdict(list)
    for j, (start, end) in reversed([*enumerate(target)]):
        same[text[start:end]].append(j)
    # The target token of each source token that is cut, and the places in it where it is cut
    partners: dict[int, int] = {}
    cuts: dict[int, list[int]] = {}
    for i, (start, end) in enumerate(source):
        word = segment.text[start:end]
        near = [j for j in linked[i] if text[slice(*target[j])] == word] if inner[i] else []
        while inner[i] and i not in partners and (near or same[word]):
            j = near.pop() if near else same[word].pop()
            if j not in cuts:
                partners[i] = j
                cuts[j] = [place - start for place in inner[i]]
    pieces = [_cut(span, cuts.get(j, [])) for j, span in enumerate(target)]
    first = [0, *itertools.accumulate(map(len, pieces))]
    spans: list[tuple[int, int]] = []
    links: list[list[int]] = []
    for i, span in enumerate(source):
        own = _cut(span, cuts[partners[i]] if i in partners else [])
        spans += own
        if i in partners:
            links += [[first[partners[i]] + number] for number in range(len(own))]
        else:
            links.append([each for j in linked[i] for each in (first[j], first[j + 1] - 1)])
    return spans, list(itertools.chain(*pieces)), links


def _cut(span: tuple[int, int], offsets: Sequence[int]) -> list[tuple[int, int]]:
    start, end = span
    return list(itertools.pairwise([start, *(start + each for each in offsets), end]))


def _ranges(
    segment: Segment,
    text: str,
    source: list[tuple[int, int]],
    target: list[tuple[int, int]],
    linked: list[list[int]],
) -> tuple[list[tuple[int, int]], list[int]]:
    """Return the target tokens of each mark, from the first to before the last, and the number of the mark around it.

    A code has a place but no tokens. The number is -1 for a mark outside all others.
    """
    begins, stops = [start for start, _ in source], [end for _, end in source]
    words = [j for j, (start, _) in enumerate(target) if text[start].isalnum()]
    # Where what follows a number of source tokens stands
    after = [0]
    for (start, end), each in zip(source, linked, strict=True):
        place = after[-1]
        same = place < len(target) and segment.text[start:end] == text[slice(*target[place])]
        after.append(max(each) + 1 if each else place + same)
    after[-1] = len(target)
    ranges: list[tuple[int, int]] = []
    parents: list[int] = []
    # The marks that each mark contains
    inside: dict[int, list[int]] = {-1: []}
    outer = [(-1, -1, len(segment.text) + 1)]
    for number, mark in enumerate(segment.marks):
        while mark.depth <= outer[-1][1] or mark.start > outer[-1][2]:
            outer.pop()
        parents.append(outer[-1][0])
        inside[parents[-1]].append(number)
        inside[number] = []
        first, last = bisect_right(stops, mark.start), bisect_left(begins, mark.end)
        found = [j for i in range(first, last) for j in linked[i]]
        low = high = after[first]
        if last - first == len(source):
            low, high = 0, len(target)
        elif found:
            low, high = min(found), max(found) + 1
            # Punctuation at the ends of a mark, as in <b>Note:</b>
            signs = [not segment.text[start].isalnum() for start, _ in source[first:last]]
            for _ in itertools.takewhile(bool, signs):
                low -= low > 0 and not text[target[low - 1][0]].isalnum()
            for _ in itertools.takewhile(bool, reversed(signs)):
                high += high < len(target) and not text[target[high][0]].isalnum()
        elif words and any(segment.text[start].isalnum() for start, _ in source[first:last]):
            low = words[min(bisect_left(words, low), len(words) - 1)]
            high = low + 1
        ranges.append((low, high))
        if mark.end > mark.start:
            outer.append((number, mark.depth, mark.end))
    for number, members in inside.items():
        low, high = ranges[number] if number >= 0 else (0, len(target))
        real = [each for each in members if ranges[each][0] < ranges[each][1]]
        apart = _apart([ranges[each] for each in real], low, high)
        for each, own in zip(real, apart, strict=True):
            ranges[each] = own
        order = sorted(zip(apart, real, strict=True))
        for each in {*members} - {*real}:
            place = low if number >= 0 and segment.marks[each].inner else min(max(ranges[each][0], low), high)
            # Not within a mark that does not contain it
            at = bisect_left(order, place, key=lambda pair: pair[0][0]) - 1
            if at >= 0 and order[at][0][1] > place:
                place = order[at][0][segment.marks[each].start >= segment.marks[order[at][1]].end]
            ranges[each] = place, place
    return ranges, parents


def _apart(ranges: list[tuple[int, int]], low: int, high: int) -> list[tuple[int, int]]:
    """Move ranges into low to high so that none overlaps another, each with one token at least while there is room."""
    order = sorted(range(len(ranges)), key=ranges.__getitem__)
    found = [*ranges]
    place = low
    for i, following in itertools.zip_longest(order, order[1:]):
        start = max(ranges[i][0], place)
        limit = high if following is None else ranges[following][0]
        place = max(start + 1, min(ranges[i][1], limit))
        found[i] = start, place
    place = high
    for i in reversed(order):
        end = min(found[i][1], place)
        place = max(low, min(found[i][0], end - 1))
        found[i] = place, max(end, place)
    return found


def _links(
    text: str, other: str, source: list[tuple[int, int]], target: list[tuple[int, int]], alignment: Alignment | None
) -> list[list[int]]:
    """Return the target tokens of each source token; punctuation has none."""
    found: list[list[int]] = [[] for _ in source]
    left_words, right_words = [], []
    if alignment is not None:
        left_words, right_words = _places(alignment.source, text, source), _places(alignment.target, other, target)
    # Words in another Unicode form are not found
    if alignment is None or not any(left_words) or not any(right_words):
        left = [i for i, (start, _) in enumerate(source) if text[start].isalnum()]
        right = [j for j, (start, _) in enumerate(target) if other[start].isalnum()]
        for place, i in enumerate(left):
            same = place * len(right) // len(left)
            found[i] = right[same : same + 1]
        return found
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

    @property
    def is_inside(self) -> bool:
        """True if a mark is open."""
        return bool(self._open)

    def clear(self) -> None:
        """Forget the open text, which stays as it is."""
        self.parts: list[str] = []
        self.length = 0
        self.span: tuple[int, int] | None = None
        self.marks: list[Mark] = []
        self._open: list[tuple[int, str]] = []  # number of the mark, name
        self._gap: int | None = None  # number of the last mark, if it has taken a space
        self._inner: int | None = None  # number of the last mark, if it takes the next space

    def _take(self, start: int, end: int, raw: str | None) -> str:
        self.span = (self.span or (start, end))[0], end
        return self.content[start:end] if raw is None else raw

    def add(self, text: str) -> None:
        """Add text that the file does not have."""
        if text and self._gap is not None:
            # A code that took the space before it must not join two words
            if not text[0].isspace() and unicodedata.category(text[0]) not in ("Pe", "Pf", "Po"):
                self.marks[self._gap] = self.marks[self._gap]._replace(space=not re.match(f"[{_GLUED}]", text))
                text = f" {text}"
            self._gap = None
        if text and self._inner is not None:
            rest = text.lstrip()
            if gap := text[: len(text) - len(rest)]:
                own = self.marks[self._inner]
                self.marks[self._inner] = own._replace(opening=own.opening + self.write([gap]))
            text, self._inner = rest, None
        if text:
            self.parts.append(text)
            self.length += len(text)

    def text(self, start: int, end: int) -> None:
        """Add text without soft hyphens; its addresses are codes."""
        for match in _ADDRESS.finditer(self.content, start, end):
            self.text(start, match.start())
            start = match.end()
            # A language with spaces writes one before an address
            space = " " * bool(self.parts and re.match(f"[{_GLUED}]", self.parts[-1][-1]))
            self.code(match.start(), start, self.write([space + self.read(match[0])]))
        self.add(self.read(self._take(start, end, None)).replace("\xad", ""))

    def code(self, start: int, end: int, raw: str | None = None, *, space: bool = False) -> None:
        """Add what is not translated, with a space; see `Mark`."""
        self._code(self._take(start, end, raw), space=space)

    def _code(self, raw: str, *, space: bool = False) -> None:
        if self._open and self.marks[self._open[-1][0]].start == self.length and not space:
            self.marks.append(Mark(self.length, self.length, raw, inner=True, depth=len(self._open)))
            self._inner = len(self.marks) - 1
            return
        gap = self._take_spaces(self.marks[-1].start if self.marks else 0)
        if not self.marks and not self.length:
            self.add(gap)
            gap = ""
        raw = (self.write([gap]) if gap else "") + raw
        self.marks.append(Mark(self.length, self.length, raw, space=space, depth=len(self._open)))
        self.add(" " if space else "")
        self._gap = len(self.marks) - 1 if gap and not space else self._gap

    def open(self, name: str, start: int, end: int, raw: str | None = None) -> None:
        """Begin a mark."""
        self.marks.append(Mark(self.length, self.length, self._take(start, end, raw), depth=len(self._open)))
        if len(self._open) < _DEEPEST:
            self._open.append((len(self.marks) - 1, name))

    def reopen(self, name: str) -> None:
        """Continue the last mark, which has ended."""
        self._open.append((len(self.marks) - 1, name))

    def close(self, name: str, start: int, end: int, raw: str | None = None) -> None:
        """End the mark of this name that began last; marks that began after it have no end."""
        place = next((i for i in reversed(range(len(self._open))) if self._open[i][1] == name), None)
        if place is None:
            return self.code(start, end, raw)
        raw = self._take(start, end, raw)
        number = self._open[place][0]
        begin = self.marks[number].start
        del self._open[place:]
        spaces = self._take_spaces(begin)
        if self.length > begin:
            self.marks[number] = self.marks[number]._replace(end=self.length, closing=raw)
            return self.add(spaces)
        # A mark without words is a code, with the codes and the spaces in it
        inside = self.marks[number:]
        del self.marks[number:]
        own = spaces[sum(mark.space for mark in inside) :]
        whole = "".join(mark.opening for mark in inside) + (self.write([own]) if own else "") + raw
        apart = bool(spaces) or (self._gap is not None and self._gap >= number)
        self._inner = None
        self._code(whole)
        if apart:
            self._gap, self._inner = len(self.marks) - 1, None
        return None

    def _take_spaces(self, start: int) -> str:
        """Remove the white space at the end of the text, back to `start`, and return it."""
        taken: list[str] = []
        kept = ""
        while self.length > start and not kept:
            piece = self.parts.pop()
            kept = piece.rstrip()
            taken.append(piece[len(kept) :])
            self.length -= len(taken[-1])
        self.parts += [kept] if kept else []
        return "".join(reversed(taken))

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
