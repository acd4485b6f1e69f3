"""Formats of documents: where the texts of HTML and of subtitles are. Imports no torch, and loads no entities."""

from __future__ import annotations

import functools
import html
import re
from collections.abc import Callable

from seq2seq.inference.documents.segments import Pieces, Segment, Translate, replace

# Elements inside a sentence. The content of _KEPT, which are inside a sentence, too, and of _DROPPED is not translated.
_KEPT = re.compile("code|kbd|samp|var")
_DROPPED = re.compile("script|style|pre|textarea|svg|math|template|noscript|iframe|object")
_INLINE = re.compile(
    "a|abbr|acronym|b|bdi|bdo|big|cite|code|data|del|dfn|em|font|i|img|ins|kbd|label|mark|q|s|samp|small|span|strike|"
    "strong|sub|sup|time|tt|u|var|wbr"
)
# Comments, tags, addresses, and codes of subtitles. What has no end reaches to the end of the file: the time is linear.
_MARKUP = re.compile(
    r"<!--(?:(?!-->).)*+(?:-->|\Z)|<[!?][^>]*+(?:>|\Z)|"
    r"""<(?P<end>/?)(?P<name>[a-z][\w:-]*+)(?:"[^"]*+(?:"|\Z)|'[^']*+(?:'|\Z)|[^>"'])*+(?:>|\Z)|"""
    r"(?P<code>\b(?:https?://|www\.)[^\s<>\"]*[\w/]|\b[\w.+-]{1,64}@[\w-]+\.[\w.-]*\w|\{\\[^{}\n]{1,99}\}|<\d[\d:.]*>)",
    re.IGNORECASE | re.DOTALL,
)
_SHOWN = re.compile(r"""\s(?:alt|title|placeholder|aria-label)\s*=\s*(?:"([^"]*)"|'([^']*)')""", re.IGNORECASE)
_UNTRANSLATED = re.compile(r"""\stranslate\s*=\s*["']?no\b""", re.IGNORECASE)
_LANG = re.compile(r"""(<html\b[^>]*?\slang\s*=\s*["']?)[\w-]+""", re.IGNORECASE)
# A line of times, and the lines of its cue.
_CUE = re.compile(r"^[^\n]*-->[^\n]*\n((?:[^\n]*\S[^\n]*(?:\n|\Z))+)", re.MULTILINE)


def _collect(pieces: Pieces, content: str, at: int, end: int, *, cue: bool = False) -> list[Segment]:
    """Collect the texts of a range of a file, and return its attributes that are shown.

    Args:
        cue: All elements are inside a sentence.
    """
    shown: list[Segment] = []
    kept = ""
    depth = since = 0
    done = at
    while match := _MARKUP.search(content, at, end):
        raw, start, at = match[0], match.start(), match.end()
        name = (match["name"] or "").lower()
        inline = cue or _INLINE.fullmatch(name)
        if kept:
            depth += (name == kept) * (-1 if match["end"] else 1)
            if not depth:
                if _INLINE.fullmatch(kept):
                    pieces.code(content[since:at], since)
                kept, done = "", at
            continue
        text = content[done:start]
        pieces.add(text, done, html.unescape(text))
        done = at
        if not name:
            # Comments outside of texts stay where they are
            if match["code"] or pieces.text:
                pieces.code(raw, start)
            continue
        if match["end"]:
            pieces.close(name, raw, start) if inline else pieces.segment()
            continue
        for each in _SHOWN.finditer(raw):
            first, last = each.span(each.lastindex or 0)
            if any(map(str.isalpha, text := raw[first:last])):
                shown.append(Segment(start + first, start + last, html.unescape(text), write=html.escape))
        if not inline:
            pieces.segment()
        void = name in ("img", "wbr", "br", "hr", "input", "meta", "link", "source")
        if not cue and not void and (_UNTRANSLATED.search(raw) or _KEPT.fullmatch(name) or _DROPPED.fullmatch(name)):
            kept, depth, since = name, 1, start
            if name in ("script", "style"):
                # Their content is not markup
                closing = re.compile(f"</{name}", re.IGNORECASE).search(content, at, end)
                at = closing.start() if closing else end
        elif inline:
            pieces.code(raw, start) if void else pieces.open(name, raw, start)
    if not kept:
        pieces.add(content[done:end], done, html.unescape(content[done:end]))
    return shown


def translate_html(content: str, translate: Translate, language: str) -> str:
    """Translate the texts of a page, and its attributes that are shown; replace its language."""
    write = functools.partial(html.escape, quote=False)
    # Tags are parts of texts, so their attributes come first
    content = replace(content, _collect(Pieces(write), content, 0, len(content)), translate)
    pieces = Pieces(write)
    _collect(pieces, content, 0, len(content))
    pieces.segment()
    return _LANG.sub(lambda match: match[1] + language, replace(content, pieces.found, translate), count=1)


def translate_subtitles(content: str, translate: Translate, language: str) -> str:
    """Translate the cues of SubRip or WebVTT, each in its number of lines."""
    pieces = Pieces(
        functools.partial(html.escape, quote=False) if content.lstrip("\ufeff").startswith("WEBVTT") else str
    )
    for cue in _CUE.finditer(content):
        for number, line in enumerate(re.finditer(r"[^\r\n]+", cue[1])):
            if number:
                pieces.line("\r\n" if "\r\n" in cue[1] else "\n")
            start = cue.start(1)
            _collect(pieces, content, start + line.start(), start + line.end(), cue=True)
        pieces.segment()
    return replace(content, pieces.found, translate)


FORMATS: dict[str, Callable[[str, Translate, str], str]] = {
    ".html": translate_html,
    ".htm": translate_html,
    ".srt": translate_subtitles,
    ".vtt": translate_subtitles,
}
