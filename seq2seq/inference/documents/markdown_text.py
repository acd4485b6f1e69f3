"""Texts of Markdown: its blocks are found by markdown-it, its inline marks by a pattern."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Sequence
from typing import Any

from seq2seq.inference.documents.segments import Pieces, Translate, replace
from seq2seq.system.packages import require

_FRONT = re.compile(r"\ufeff?(?:---[ \t]*\r?\n(?:(?!---|\.\.\.).*+\r?\n)*+(?:---|\.\.\.)[ \t]*\r?\n)?")
# All repetitions are bounded: the time is linear. A longer one is text.
_MARKS = re.compile(
    r"(?P<escape>\\[!-/:-@\[-`{-~])|(?P<hard>(?:(?<! ) {2,200}|\\)\r?\n[ \t>]*|"
    r"(?<![ \t])[ \t]{0,200}<[bB][rR][ \t]{0,9}/?>[ \t]*|"
    r"\r?\n[ \t>]*\[\^[^\[\]\s]{1,100}\]:[ \t]*)|"
    r"(?P<soft>(?:(?<![ \t])[ \t]{1,200}|)\r?\n[ \t>]*)|"
    r"(?P<code>(?P<ticks>`+)(?!`).{1,2000}?(?<!`)(?P=ticks)(?!`)|<!--.{0,2000}?-->|"
    r"<(?:https?:|mailto:|[\w.+-]{1,64}@)[^<>\s]{1,2000}>|(?i:<(?:img|input|wbr)\b)[^<>]{0,2000}>|"
    r"!\[[^\[\]]{0,2000}\](?:\([^()]{0,2000}\)|\[[^\[\]]{0,500}\])|\[\^[^\[\]\s]{1,100}\])|"
    r"(?P<open>\[)|(?P<close>\](?:\((?:[^()\n]|\([^()\n]{0,200}\)){0,2000}\)|\[[^\[\]]{0,500}\])?)|"
    r"<(?P<end>/?)(?P<tag>[a-zA-Z][\w-]{0,50})[^<>]{0,2000}>|"
    r"(?P<emphasis>(?<!\s)\*{1,3}|\*{1,3}(?!\s)|(?<!\w)_{1,3}(?=\w)|(?<=\S)_{1,3}(?!\w)|~~)",
    re.DOTALL,
)
# What begins an item of a list of tasks, or a footnote
_LEAD = re.compile(r"\[[ xX]\]\s+|\[\^[^\[\]\s]{1,100}\]:\s*")


def translate_markdown(content: str, translate: Translate, language: str) -> str:
    """Translate headings, paragraphs, lists and tables; a translated paragraph becomes one line."""
    library = require("markdown_it", "Markdown", extra="documents")
    normalized = require("markdown_it.common.utils", "Markdown", extra="documents").normalizeReference
    # The inline marks of this parser have no places
    parser = library.MarkdownIt("commonmark").enable("table").disable("inline")
    pieces = Pieces(content, html.unescape, _written)
    begin = match.end() if (match := _FRONT.match(content)) else 0
    known: dict[str, Any] = {}
    tokens = parser.parse(content[begin:], known)
    labels = known.get("references", {})
    lines = [match.span() for match in re.compile(r"[^\r\n]*(?:\r\n?|\n|\Z)").finditer(content, begin)]
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


def _collect(pieces: Pieces, start: int, end: int, is_label: Callable[[str], bool]) -> None:
    """Collect the texts of a paragraph, a heading or a cell."""
    content = pieces.content
    marks: list[str] = []
    links: list[int] = []
    for match in _MARKS.finditer(content, start, end):
        if match.start() > start:
            pieces.text(start, match.start())
        start = match.end()
        place = match.span()
        if match["escape"]:
            pieces.text(start, start)
            pieces.add(match[0][1:])
        elif match["hard"]:
            pieces.segment()
            marks, links = [], []
        elif match["soft"]:
            pieces.text(start, start)
            pieces.add(" ")
        elif match["open"]:
            links.append(start)
            pieces.open("[", *place)
        elif match["close"]:
            label = content[links.pop() : place[0]] if links else ""
            short = match[0] in ("]", "[]", "][]") and is_label(label)
            pieces.close("[", *place, f"][{label}]" if short else None)
        elif match["tag"]:
            (pieces.close if match["end"] else pieces.open)(match["tag"].lower(), *place)
        elif match["emphasis"] and match[0] in marks:
            del marks[marks.index(match[0]) :]
            pieces.close(match[0], *place)
        elif match["emphasis"]:
            marks.append(match[0])
            pieces.open(match[0], *place)
        else:
            pieces.code(*place)
    pieces.text(start, end)
    pieces.segment()


def _written(pieces: Sequence[str]) -> str:
    """Write texts without characters that would be marks, and what is between them; see `Write`."""
    found = []
    for number, piece in enumerate(pieces):
        if number % 2 == 0:
            piece = re.sub(r"[\\`*\[\]<|~]|(?<!\w)_|_(?!\w)", r"\\\g<0>", piece)
            # What would begin a list, a heading or a quotation
            piece = piece if number else re.sub(r"^(\s*\d*)([-+#>=.)])", r"\1\\\2", piece)
        found.append(piece)
    return "".join(found)
