"""Texts of HTML, and the tokens of HTML and XML. Loads no entities."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple
from xml.parsers import expat

from seq2seq.inference.documents.segments import Pieces, Segment, Translate, replace

_INLINE = re.compile(
    "a|abbr|acronym|b|bdi|bdo|big|cite|data|del|dfn|em|font|i|img|ins|label|mark|q|s|small|span|strike|strong|sub|sup|"
    "time|tt|u|wbr"
)
_CODES = re.compile("code|kbd|samp|var")
_VOID = re.compile("area|base|br|col|embed|hr|input|link|meta|source|track")
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


def escaped(pieces: Sequence[str]) -> str:
    """Write texts of HTML or XML, and what is between them; see `Write`."""
    return "".join(piece if i % 2 else html.escape(piece, quote=False) for i, piece in enumerate(pieces))


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
    """Return XML, in which CDATA is plain text; raise ValueError if it is not well-formed, or declares entities.

    Raises:
        ValueError: It is not, or does.
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


def translate_html(content: str, translate: Translate, language: str) -> str:
    """Translate the texts of a page, and its attributes that are shown; replace its language."""

    def kept(event: Event) -> bool:
        if _VOID.fullmatch(event.name):
            return False
        untranslated = _UNTRANSLATED.search(content, event.start, event.end)
        return bool(untranslated or _CODES.fullmatch(event.name) or _DROPPED.fullmatch(event.name))

    # Tags are parts of texts, so their attributes come first
    shown = []
    for event in joined(events(content, 0, len(content)), kept):
        if event.kind not in ("open", "void"):
            continue
        if event.name == "html" and (match := _LANG.search(content, event.start, event.end)):
            shown.append(Segment(0, 0, put=(*match.span(1), language, "")))
        for match in _SHOWN.finditer(content, event.start, event.end):
            text = html.unescape(match[match.lastindex or 0])
            if any(map(str.isalpha, text)):
                place = match.span(match.lastindex or 0)
                shown.append(Segment(*place, text, write=lambda pieces: html.escape("".join(pieces))))
    content = replace(content, shown, translate)
    pieces = Pieces(content, html.unescape, escaped)
    collect(pieces, joined(events(content, 0, len(content)), kept), re.compile(f"{_INLINE.pattern}|{_CODES.pattern}"))
    pieces.segment()
    return replace(content, pieces.found, translate)
