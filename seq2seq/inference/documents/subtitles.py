"""Texts of SubRip and WebVTT."""

from __future__ import annotations

import functools
import html
import itertools
import re
import textwrap
from collections.abc import Sequence

from seq2seq.inference.documents.markup import collect, escaped, events
from seq2seq.inference.documents.segments import Pieces, Segment, Translate, Write, replace

# Begins the line of another speaker, which is a text of its own.
_SPEAKER = re.compile(r"(?:<[^>]{0,99}>|\{[^}]{0,99}\}){0,9}\s*[-–—]\s*|")
# Begins the words of a voice of WebVTT
_VOICE = re.compile(r"<v[\s.]")
_NUMBER = re.compile(r"[ \t]*\d+[ \t]*(?:\r\n?|\n)[^\r\n]*-->")


def translate_subtitles(content: str, translate: Translate, language: str) -> str:
    """Translate the cues of SubRip or WebVTT, each in no more lines than before, and each speaker's line alone."""
    web = content.lstrip("\ufeff").startswith("WEBVTT")
    write = escaped if web else "".join
    pieces = Pieces(content, html.unescape if web else str, write)
    found: list[Segment] = []
    lines = 0
    cue = False
    wrap = functools.partial(_wrapped, write=write, end="\r\n" if "\r\n" in content else "\n")

    def end_text() -> None:
        nonlocal lines
        pieces.segment()
        found.extend(each._replace(write=functools.partial(wrap, lines=lines)) for each in pieces.found)
        pieces.found = []
        lines = 0

    for match in re.finditer(r"([^\r\n]*)(?:\r\n?|\n|\Z)", content):
        line = match[1]
        dash = _SPEAKER.match(line)
        assert dash
        if not line.strip() or "-->" in line or dash[0]:
            end_text()
        # A cue of SubRip may have empty lines
        ended = not line.strip() if web else _NUMBER.match(content, match.start())
        cue = "-->" in line or (cue and not ended)
        if cue and line.strip() and "-->" not in line:
            # The model does not know dashes, so they stay as they are
            start = match.start(1) + dash.end()
            voices = [voice.start() for voice in _VOICE.finditer(content, start, match.end(1))]
            for number, (begin, end) in enumerate(itertools.pairwise([start, *voices, match.end(1)])):
                if number:
                    end_text()
                if text := content[begin:end].rstrip():
                    pieces.add(" " * bool(lines))
                    collect(pieces, events(content, begin, begin + len(text)), re.compile(".+"))
                    lines += 1
    return replace(content, found, translate)


def _wrapped(pieces: Sequence[str], *, write: Write, lines: int, end: str) -> str:
    """Write a cue in even lines, in which a tag counts as one character."""
    text = "\0".join(write([each.replace("\0", "")]) for each in pieces[::2])
    width = len(text) // lines + 1
    while len(found := textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)) > lines:
        width += width // 8 + 1
    tags = iter(pieces[1::2])
    return re.sub("\0", lambda _: next(tags), end.join(found))
