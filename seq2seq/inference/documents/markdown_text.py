"""Texts of Markdown: its blocks are found by markdown-it, its inline marks by a pattern."""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from seq2seq.inference.documents.segments import LETTER, Pieces, Translate, replace
from seq2seq.system.packages import require

_FRONT = re.compile(
    r"\ufeff?(?:(?:---[ \t]*\r?\n(?:(?!---|\.\.\.).*+\r?\n)*+(?:---|\.\.\.)|"
    r"\+\+\+[ \t]*\r?\n(?:(?!\+\+\+).*+\r?\n)*+\+\+\+)[ \t]*\r?\n)?"
)
# A line that begins or ends a box: ::: warning, !!! note "Title"
_BOX = (
    r"""(?::{3,200}[^\r\n]*|(?:!!!|\?\?\?\+?)[ \t]{1,9}[a-z]{1,50}(?:[ \t]{1,9}"[^"\r\n]{0,500}")?[ \t]*(?![^\r\n]))"""
)
# All repetitions are bounded: the time is linear. A longer one is text.
_MARKS = re.compile(
    r"(?P<escape>\\[!-/:-@\[-`{-~])|(?P<hard>(?:(?<! ) {2,200}|\\)\r?\n[ \t>]*|"
    r"(?<![ \t])[ \t]{0,200}<[bB][rR][ \t]{0,9}/?>[ \t]*|"
    rf"(?:\r?\n[ \t>]*{_BOX})+(?:\r?\n[ \t>]*)?|"
    r"\r?\n[ \t>]*(?:\[\^[^\[\]\s]{1,100}\]:|:(?=[ \t]))[ \t]*)|"
    r"(?P<soft>(?:(?<![ \t])[ \t]{1,200}|)\r?\n[ \t>]*)|"
    r"(?P<code>(?P<ticks>`+)(?!`).{1,2000}?(?<!`)(?P=ticks)(?!`)|<!--.{0,2000}?-->|"
    r"<(?:https?:|mailto:|[\w.+-]{1,64}@)[^<>\s]{1,2000}>|(?i:<(?:img|input|wbr)\b)[^<>]{0,2000}>|"
    # Signs that are raised or lowered, as in m<sup>2</sup>
    rf"<(?P<script>su[bp])>(?:(?![<>])[\W\d_]){{1,50}}</(?P=script)>(?!{LETTER})|"
    r"!\[[^\[\]]{0,2000}\](?:\([^()]{0,2000}\)|\[[^\[\]]{0,500}\])|\[\^[^\[\]\s]{1,100}\])|"
    r"(?P<open>\[)|(?P<close>\](?:\((?:[^()\n]|\([^()\n]{0,200}\)){0,2000}\)|\[[^\[\]]{0,500}\])?)|"
    r"<(?P<end>/?)(?P<tag>[a-zA-Z][\w-]{0,50})[^<>]{0,2000}>|"
    r"(?P<emphasis>\*+|_+|(?<!~)~~(?!~))",
    re.DOTALL,
)
# What begins an item of a list of tasks, a footnote, or a box such as > [!NOTE]
_LEAD = re.compile(
    rf"\[[ xX]\]\s+|\[\^[^\[\]\s]{{1,100}}\]:\s*|(?:(?:{_BOX}|\[![A-Za-z]{{1,50}}\][ \t]*)(?:\r?\n[ \t>]*|\Z))+"
)
# Begins a footnote or a box, to which the indented lines after it belong
_HOLDER = re.compile(r" {0,3}(?:\[\^[^\[\]\s]{1,100}\]:|(?:!!!|\?\?\?\+?)[ \t])")
_FENCE = re.compile(r" {0,3}(?:```|~~~)")
_LINE = re.compile(r"[^\r\n]*(?:\r\n?|\n|\Z)")
_READ = re.compile(r"\\([!-/:-@\[-`{-~])|&#?\w{1,40};")
# Ends of links that are named by their text
_SHORT = ("]", "[]", "][]")
# Delimiters before a closing one in which its partner is searched, so that the time is linear
_FAR = 100


def translate_markdown(content: str, translate: Translate, language: str) -> str:
    """Translate headings, paragraphs, lists and tables; a translated paragraph becomes one line."""
    library = require("markdown_it", "Markdown", extra="documents")
    normalized = require("markdown_it.common.utils", "Markdown", extra="documents").normalizeReference
    # The inline marks of this parser have no places
    parser = library.MarkdownIt("commonmark").enable("table").disable("inline")
    pieces = Pieces(content, _read, _written)
    begin = match.end() if (match := _FRONT.match(content)) else 0
    known: dict[str, Any] = {}
    lines = [match.span() for match in _LINE.finditer(content, begin)]
    tokens = parser.parse("".join(_dedented(content[slice(*line)] for line in lines)), known)
    labels = known.get("references", {})
    done = 0
    for token in tokens:
        texts = token.content.split("\n")
        if token.type != "inline" or not token.map or not token.content:
            continue
        first, last = lines[token.map[0]], lines[token.map[0] + len(texts) - 1]
        # Cells of a table are on one line, in which | is written \|
        for written in (texts[0], texts[0].replace("|", "\\|")):
            start = content.find(written, max(first[0], done), first[1])
            if start >= 0:
                done = start + len(written) if len(texts) == 1 else last[0] + len(content[slice(*last)].rstrip())
                lead = _LEAD.match(content, start, done)
                _collect(pieces, lead.end() if lead else start, done, lambda label: normalized(label) in labels)
                break
    return replace(content, pieces.found, translate)


def _dedented(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines, ones of footnotes and boxes without their indentation, which CommonMark would take for code."""
    held = fenced = False
    for line in lines:
        indent = re.match(r" {4}|\t|[ \t]*(?=[\r\n]|\Z)", line)
        inside = held and indent
        fenced ^= not inside and bool(_FENCE.match(line))
        begins = not fenced and _HOLDER.match(line)
        held = bool(begins or inside)
        yield line[inside.end() :] if inside and not begins else line


def _collect(pieces: Pieces, start: int, end: int, is_label: Callable[[str], bool]) -> None:
    """Collect the texts of a paragraph, a heading or a cell."""
    content = pieces.content
    links: list[int] = []
    matches = [match for match in _MARKS.finditer(content, start, end) if not match["escape"]]
    marks = [(match.span(), match) for match in matches if not match["emphasis"]]
    for place, match in sorted([*marks, *_emphasis(matches, is_label)], key=lambda mark: mark[0]):
        if place[0] > start:
            pieces.text(start, place[0])
        start = place[1]
        if isinstance(match, bool):
            (pieces.open if match else pieces.close)(content[slice(*place)], *place)
        elif match["hard"]:
            pieces.segment()
            links = []
        elif match["soft"]:
            pieces.text(start, start)
            pieces.add(" ")
        elif match["open"]:
            links.append(start)
            pieces.open("[", *place)
        elif match["close"]:
            label = content[links.pop() : place[0]] if links else ""
            pieces.close("[", *place, f"][{label}]" if match[0] in _SHORT and is_label(label) else None)
        elif match["tag"]:
            (pieces.close if match["end"] else pieces.open)(match["tag"].lower(), *place)
        else:
            pieces.code(*place)
    pieces.text(start, end)
    pieces.segment()


class _Delimiters:
    """Run of equal delimiters: its place without the paired ones, and whether it may open and close emphasis."""

    def __init__(self, match: re.Match[str]) -> None:
        self.start, self.end = match.span()
        self.size = self.end - self.start
        self.char = match[0][0]
        around = match.string[max(0, self.start - 1) : self.start] or " ", match.string[self.end : self.end + 1] or " "
        (blank_before, blank_after), (sign_before, sign_after) = (
            [each.isspace() for each in around],
            [unicodedata.category(each)[0] in "PS" for each in around],
        )
        left = not blank_after and (not sign_after or blank_before or sign_before)
        right = not blank_before and (not sign_before or blank_after or sign_after)
        within = self.char == "_" and left and right
        self.opens = left and (not within or sign_before)
        self.closes = right and (not within or sign_after)

    def opens_for(self, closer: _Delimiters) -> bool:
        """Return whether a run that closes emphasis closes what this one opens."""
        odd = (self.size + closer.size) % 3 == 0 and self.size % 3 != 0
        return self.char == closer.char and not (odd and (self.closes or closer.opens))


def _emphasis(matches: Sequence[re.Match[str]], is_label: Callable[[str], bool]) -> list[tuple[tuple[int, int], bool]]:
    """Pair the delimiters of emphasis as CommonMark does; return the place of each, and whether it opens."""
    found: list[tuple[tuple[int, int], bool]] = []
    links = _links(matches, is_label)
    # Runs that may open, and how many there were where each open link begins
    runs: list[_Delimiters] = []
    levels = [0]
    for match in matches:
        if match.start() in links:
            if match["open"]:
                levels.append(len(runs))
            else:
                del runs[levels.pop() :]
        elif match["emphasis"]:
            run = _Delimiters(match)
            while run.closes and run.start < run.end:
                near = reversed(range(max(levels[-1], len(runs) - _FAR), len(runs)))
                place = next((i for i in near if runs[i].opens_for(run)), None)
                if place is None:
                    break
                del runs[place + 1 :]
                opener = runs[place]
                size = min(2, opener.end - opener.start, run.end - run.start)
                found += [((opener.end - size, opener.end), True), ((run.start, run.start + size), False)]
                opener.end -= size
                run.start += size
                if opener.start == opener.end:
                    runs.pop()
            if run.opens and run.start < run.end:
                runs.append(run)
    return found


def _links(matches: Sequence[re.Match[str]], is_label: Callable[[str], bool]) -> set[int]:
    """Return where links and their ends begin; emphasis does not cross them."""
    found: set[int] = set()
    opened: list[re.Match[str]] = []
    for match in matches:
        if match["open"]:
            opened.append(match)
        elif match["close"] and opened:
            first = opened.pop()
            if match[0] not in _SHORT or is_label(match.string[first.end() : match.start()]):
                found |= {first.start(), match.start()}
    return found


def _read(raw: str) -> str:
    """Read escapes and entities."""
    return _READ.sub(lambda match: match[1] or html.unescape(match[0]), raw)


def _written(pieces: Sequence[str]) -> str:
    """Write texts without characters that would be marks, and what is between them; see `Write`."""
    found = []
    for number, piece in enumerate(pieces):
        if number % 2 == 0:
            piece = re.sub(r"[\\`*\[\]<|~]|(?<!\w)_|_(?!\w)|&(?=#?\w{1,40};)", r"\\\g<0>", piece)
            # What would begin a list, a heading or a quotation
            piece = piece if number else re.sub(r"^(\s*\d*)([-+#>=.)])", r"\1\\\2", piece)
        found.append(piece)
    return "".join(found)
