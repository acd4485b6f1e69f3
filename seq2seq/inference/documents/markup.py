"""Texts of HTML, and the tokens of HTML and XML. Loads no entities."""

from __future__ import annotations

import functools
import html
import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple
from xml.parsers import expat

from seq2seq.inference.documents.segments import LETTER, Pieces, Segment, Translate, replace

_CODES = re.compile("code|kbd|samp|var")
_INLINE = re.compile(
    "a|abbr|acronym|b|bdi|bdo|big|cite|data|del|dfn|em|font|i|img|ins|label|mark|q|s|small|span|strike|strong|sub|sup|"
    f"time|tt|u|wbr|{_CODES.pattern}"
)
# A raised or lowered text
_SCRIPT = re.compile(
    r"<(?P<name>su[bp])\b[^<>]*>(?P<text>(?:[^<>]|<(?!/?su[bp]\b)[^<>]*>){0,500})</(?P=name)>", re.IGNORECASE
)
_LETTER = re.compile(LETTER)
_VOID = re.compile("area|base|br|col|embed|hr|input|link|meta|source|track")
# Elements whose end tag may be left out, and those that end them where they begin.
_ENDS = {
    name: starts.split()
    for names, starts in [
        ("li", "li"), ("dt dd", "dt dd"), ("rt rp", "rt rp"), ("option", "option optgroup"), ("optgroup", "optgroup"),
        ("td th", "td th tr tbody tfoot"), ("tr", "tr tbody tfoot"), ("thead tbody tfoot", "tbody tfoot"),
        ("colgroup", "thead tbody tr"),
        ("p", "address article aside blockquote details div dl fieldset figure footer form h1 h2 h3 h4 h5 h6 header "
         "main nav ol p pre section table ul"),
    ]
    for name in names.split()
}  # fmt: skip
_DROPPED = re.compile("pre|svg|math|template|noscript|iframe|object")
# Comments, tags, scripts, and codes of subtitles. What has no end reaches to the end of the file: the time is linear.
_MARKUP = re.compile(
    r"<!--(?:(?!-->).)*+(?:-->|\Z)|<[!?][^>]*+(?:>|\Z)|\{\\[^{}\n]{1,99}\}|<\d[\d:.]*+>|"
    r"<(?P<raw>script|style|textarea)\b(?:(?!</(?P=raw)).)*+|"
    r"""<(?P<end>/?)(?P<name>[a-z][\w:-]*+)(?:"[^"]*+(?:"|\Z)|'[^']*+(?:'|\Z)|[^>"'])*+(?:>|\Z)""",
    re.IGNORECASE | re.DOTALL,
)
_SHOWN = re.compile(r"""\s(?:alt|title|placeholder|aria-label)\s*=\s*(?:"([^"]*)"|'([^']*)')""", re.IGNORECASE)
_UNTRANSLATED = re.compile(r"""\stranslate\s*=\s*["']?no\b|\smtype\s*=\s*["']protected""", re.IGNORECASE)
_LANG = re.compile(r"""\slang\s*=\s*["']?([\w-]+)""", re.IGNORECASE)


class Event(NamedTuple):
    """Token of a file: its place, and whether it is text, the open or close of an element, void, code or other."""

    start: int
    end: int
    kind: str
    name: str = ""


def escaped(pieces: Sequence[str], *, quote: bool = False) -> str:
    """Write texts of HTML or XML, and what is between them; see `Write`."""
    return "".join(piece if i % 2 else html.escape(piece, quote) for i, piece in enumerate(pieces))


def events(content: str, start: int, end: int) -> Iterator[Event]:
    """Split a range of HTML or XML into its tokens; names are in lower case."""
    for match in _MARKUP.finditer(content, start, end):
        yield Event(start, match.start(), "text")
        start = match.end()
        name = (match["name"] or match["raw"] or "").lower()
        kind = "close" if match["end"] else "open" if match["name"] else "other"
        yield Event(match.start(), start, "void" if name in ("img", "wbr") else kind, name)
        if kind == "open" and match[0].endswith("/>"):
            yield Event(start, start, "close", name)
    yield Event(start, end, "text")


def ended(content: str, chosen: Callable[[Event], Any]) -> Iterator[Event]:
    """Split a page into its tokens, with the end tags that HTML lets a page leave out.

    A chosen inline element that has no end ends with its block.
    """
    tokens = list(events(content, 0, len(content)))
    opened: dict[str, list[int]] = defaultdict(list)
    for event in tokens:
        if event.kind == "open" and _INLINE.fullmatch(event.name):
            opened[event.name].append(event.start)
        elif event.kind == "close" and opened[event.name]:
            opened[event.name].pop()
    unended = set(itertools.chain(*opened.values()))
    loose: list[str] = []
    around: list[str] = []
    for event in tokens:
        name, close = event.name, event.kind == "close"
        if event.start in unended and event.kind == "open" and chosen(event):
            loose.append(name)
        if name and not _VOID.fullmatch(name) and not _INLINE.fullmatch(name):
            while loose:
                yield Event(event.start, event.start, "close", loose.pop())
            while around and around[-1] in _ENDS and (name != around[-1] if close else name in _ENDS[around[-1]]):
                yield Event(event.start, event.start, "close", around.pop())
            if not close:
                around.append(name)
            elif around and around[-1] == name:
                around.pop()
        yield event


def joined(found: Iterable[Event], chosen: Callable[[Event], Any]) -> Iterator[Event]:
    """Join each chosen element, with all that is inside, to one event of the kind code."""
    first: Event | None = None
    depth = 0
    for event in found:
        if first is None and not (event.kind == "open" and chosen(event)):
            yield event
            continue
        first = first or event
        depth += (event.name == first.name) * {"open": 1, "close": -1}.get(event.kind, 0)
        if not depth:
            yield first._replace(end=event.end, kind="code")
            first = None


def collect(pieces: Pieces, found: Iterable[Event], inline: re.Pattern[str]) -> None:
    """Collect the texts of a range; elements that are not inline end a text."""
    for event in found:
        known = inline.fullmatch(event.name)
        if event.kind == "text":
            pieces.text(event.start, event.end)
        elif known and event.kind in ("open", "close"):
            (pieces.open if event.kind == "open" else pieces.close)(event.name, event.start, event.end)
        elif known or not event.name:
            pieces.code(event.start, event.end)
        else:
            pieces.segment()


def checked(content: str) -> str:
    """Check XML, and return it with its CDATA as plain text.

    Raises:
        ValueError: The text is not well-formed XML, or declares entities.
    """

    def refuse(name: str, *_: object) -> None:
        raise ValueError(f"it declares the entity {name!r}; for safety, entities that a file declares are not read")

    parser = expat.ParserCreate("utf-8")
    parser.EntityDeclHandler = refuse
    try:
        parser.Parse(content.encode(), True)
    except expat.ExpatError as error:
        raise ValueError(f"it is not XML ({error}): is the file complete?") from None
    section = re.compile(r"<!--.*?-->|<!\[CDATA\[(.*?)\]\]>", re.DOTALL)
    return section.sub(lambda match: match[0] if match[1] is None else html.escape(match[1], quote=False), content)


def _is_sign(content: str, event: Event) -> bool:
    """Return whether an element is a raised or lowered text without letters that ends a word, as in m<sup>2</sup>."""
    match = _SCRIPT.match(content, event.start) if event.name in ("sub", "sup") else None
    if match is None:
        return False
    text = html.unescape(re.sub("<[^<>]*>", "", match["text"]))
    # Without its digit, H<sub>2</sub>O would be another word
    within = _LETTER.match(content, match.end()) and _LETTER.match(content, max(0, event.start - 1))
    return bool(text) and text == text.strip() and not within and not any(map(str.isalpha, text))


def translate_html(content: str, translate: Translate, language: str) -> str:
    """Translate the texts of a page, and its attributes that are shown; replace its language."""

    def kept(event: Event) -> bool:
        if _VOID.fullmatch(event.name):
            return False
        untranslated = _UNTRANSLATED.search(content, event.start, event.end)
        return bool(untranslated or _CODES.fullmatch(event.name) or _DROPPED.fullmatch(event.name))

    # Tags are parts of texts, so their attributes come first
    pieces = Pieces(content, html.unescape, functools.partial(escaped, quote=True))
    for event in joined(ended(content, kept), kept):
        # The text of a text area is no part of its tag
        end = content.find(">", event.start) if event.name == "textarea" else event.end
        shown = event.kind in ("open", "void") or event.name == "textarea"
        if not shown or _UNTRANSLATED.search(content, event.start, end):
            continue
        if event.name == "html" and (match := _LANG.search(content, event.start, event.end)):
            pieces.found.append(Segment(0, 0, put=(*match.span(1), language, "")))
        for match in _SHOWN.finditer(content, event.start, end):
            pieces.text(*match.span(match.lastindex or 0))
            pieces.segment()
    content = replace(content, pieces.found, translate)
    pieces = Pieces(content, html.unescape, escaped)
    found = joined(ended(content, kept), lambda event: kept(event) or _is_sign(content, event))
    collect(pieces, found, _INLINE)
    pieces.segment()
    return replace(content, pieces.found, translate)
