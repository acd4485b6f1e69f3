"""Texts of DOCX."""

from __future__ import annotations

import functools
import html
import io
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Sequence

from seq2seq.inference.documents.markup import Event, checked, events, joined
from seq2seq.inference.documents.segments import LETTER, Pieces, Translate, replace

# Bytes of all files in a DOCX file.
_MOST = 1 << 28
_PARTS = re.compile(r"word/(document|header\d*|footer\d*|footnotes|endnotes)\.xml")
_CONTROL = ("w:sdt", "w:sdtcontent")
_AROUND = (
    "w:hyperlink", "w:ins", "w:moveto", "w:smarttag", "w:fldsimple", "w:customxml", "w:dir", "w:bdo", *_CONTROL,
)  # fmt: skip
_IGNORED = ("w:ppr", "w:sdtpr", "w:sdtendpr", "w:prooferr", "w:lastrenderedpagebreak", "w:softhyphen")
_SPACES = ("w:tab", "w:br", "w:cr")
_FIELD = re.compile(r'<w:fldChar\b[^>]*\sw:fldCharType="(\w+)"')
_RAISED = re.compile(r'<w:vertAlign\b[^>]*\sw:val="su(?:per|b)script"')
# The first character of the next text in a paragraph
_NEXT = re.compile(r"(?:(?!</w:p>|<w:t[ >]).){0,5000}<w:t(?: [^>]*)?>" + LETTER, re.DOTALL)
# Begins the opening of a mark that is a style.
_STYLE = "\0"
_NONE = "<w:rPr/>"


def translate_docx(data: bytes, translate: Translate, language: str) -> bytes:
    """Translate the paragraphs of a Word document, also in tables, text boxes, headers, footers and notes."""
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
        if (size := sum(entry.file_size for entry in archive.infolist())) > _MOST:
            raise ValueError(f"its parts have {size:,} bytes, and at most {_MOST:,} are read: remove large pictures")
        parts = [(entry, archive.read(entry)) for entry in archive.infolist()]
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError, EOFError, OSError, zlib.error) as error:
        raise ValueError(f"it is not a DOCX file ({error}): save it again, without a password") from None
    if not any(entry.filename == "word/document.xml" for entry, _ in parts):
        raise ValueError("it has no word/document.xml: save it as DOCX")
    translated = [
        _translate_part(part.decode(), translate).encode() if _PARTS.fullmatch(entry.filename) else part
        for entry, part in parts
    ]
    if translated == [part for _, part in parts]:
        return data
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as written:
        for (entry, _), part in zip(parts, translated, strict=True):
            written.writestr(entry, part, entry.compress_type)
    return file.getvalue()


def _translate_part(content: str, translate: Translate) -> str:
    """Translate the paragraphs of a part, first the ones in text boxes, which lie inside other paragraphs."""
    content = checked(content)
    found = joined(events(content, 0, len(content)), lambda event: event.name == "w:txbxcontent")
    boxes = [(event.start, event.end) for event in found if event.name == "w:txbxcontent"]
    for inner in (True, False):
        pieces = Pieces(content, lambda raw: "-" if raw.startswith("<") else html.unescape(raw), _runs)
        for start, end in boxes if inner else [(0, len(content))]:
            _collect_paragraphs(pieces, start, end)
        content = replace(content, pieces.found, translate)
    return content


def _collect_paragraphs(pieces: Pieces, start: int, end: int) -> None:
    """Collect the texts of paragraphs: each run of characters is a mark with its style."""
    content = pieces.content
    inside = shown = False
    style = ""
    # Start of the open run, or of its rest after a break
    run: int | None = None
    # Closes the run in which a text begins after a break
    lead = ""
    # Where the last control begins or ends
    control = start
    # Length of the text after the last run of characters
    done = 0
    # The beginning of a field, up to what it shows
    field: list[str] = []
    nested = 0

    def opaque(event: Event) -> bool:
        return inside and event.name not in ("w:r", "w:t", "w:p", *_AROUND)

    for event in joined(events(content, start, end), opaque):
        name, kind, place = event.name, event.kind, (event.start, event.end)
        raw = content[event.start : event.end]
        text = (kind == "text" and shown and raw) or name == "w:nobreakhyphen"
        if name == "w:p":
            # A field may begin in one paragraph and show its text in the next
            if field:
                pieces.clear()
            else:
                _end_text(pieces, lead)
            lead = ""
            inside = kind == "open"
            field = []
        elif not inside or name in _IGNORED:
            continue
        elif name == "w:r":
            if kind == "close" and pieces.span and run is not None:
                pieces.span = min(pieces.span[0], run), event.end
            lead = lead if pieces.span else ""
            run, style = event.start if kind == "open" else None, _NONE
        elif name == "w:t":
            shown = kind == "open"
        elif name == "w:rpr":
            style = raw
        elif (name, kind) in (("w:sdt", "open"), ("w:sdtcontent", "close")):
            control = event.start
        elif name == "w:customxmlpr" and pieces.marks:
            # Belongs to the opening before it
            last = pieces.marks[-1]
            pieces.marks[-1] = last._replace(opening=last.opening + raw)
        elif name in _AROUND:
            # Both elements of a control, and its properties, are one mark
            name, begin = ("w:sdt", control) if name in _CONTROL else (name, event.start)
            (pieces.open if kind == "open" else pieces.close)(name, begin, event.end)
            done = -1
        elif text and not field and _RAISED.search(style) and _is_sign(pieces, raw, event.end):
            sign = pieces.read(raw)
            pieces.add(sign[: len(sign) - len(sign.lstrip())])
            pieces.code(*place, _runs([sign.strip()], style))
            pieces.add(sign[len(sign.rstrip()) :])
        elif text and field:
            field.append(_runs([pieces.read(raw)], style))
        elif text:
            pieces.write = functools.partial(_runs, style=style)
            if pieces.marks and pieces.marks[-1].opening == _STYLE + style and pieces.length == done:
                pieces.reopen(_STYLE)
            else:
                pieces.open(_STYLE, *place, _STYLE + style)
            pieces.text(*place)
            pieces.close(_STYLE, *place, _STYLE)
            done = pieces.length
            # Addresses and spaces alone, which are written in their style, need no mark
            if (last := pieces.marks[-1]).start == last.end:
                only = last.opening.replace(_STYLE + style, "").replace(_STYLE, "")
                pieces.marks[-1] = last._replace(opening=only)
        elif name in _SPACES and run is not None and not field and not pieces.is_inside:
            # Lines of an address, or columns, are no sentence
            tail = ""
            if pieces.span and pieces.span[1] > run:
                pieces.span = min(pieces.span[0], run), event.start
                tail = f"<w:r>{style}"
            _end_text(pieces, lead, tail)
            run, lead = event.end, "</w:r>"
        elif kind == "code":
            step = "".join(_FIELD.findall(raw)[:1])
            raw = raw if run is None else f"<w:r>{style}{raw}</w:r>"
            nested = (nested + 1 if field else 1) if step == "begin" else nested
            if step == "begin" or field:
                pieces.text(event.start, event.start)
                field.append(raw)
                if nested == 1 and step in ("separate", "end"):
                    whole = "".join(field)
                    field = []
                    _ = pieces.open(name, *place, whole) if step == "separate" else pieces.code(*place, whole)
                nested -= step == "end"
            elif step == "end":
                pieces.close(name, *place, raw)
            else:
                pieces.code(event.start, event.end, raw, space=name in _SPACES)


def _is_sign(pieces: Pieces, raw: str, end: int) -> bool:
    """Return whether a raised or lowered text has no letters and ends a word, as in square meters."""
    text = pieces.read(raw)
    if not text.strip() or any(map(str.isalpha, text)):
        return False
    within = text == text.strip() and pieces.parts and re.fullmatch(LETTER, pieces.parts[-1][-1])
    return not (within and _NEXT.match(pieces.content, end))


def _end_text(pieces: Pieces, lead: str = "", tail: str = "") -> None:
    """End a text; the style of most of its characters is no mark.

    Args:
        lead: Closes the run in which the text begins.
        tail: Opens the run in which the text ends again.
    """
    sizes = Counter[str]()
    for mark in pieces.marks:
        if mark.opening.startswith(_STYLE):
            sizes[mark.opening] += mark.end - mark.start
    if sizes:
        base = sizes.most_common(1)[0][0]
        pieces.marks = [mark for mark in pieces.marks if mark.opening != base]
        pieces.write = functools.partial(_runs, style=base[1:], lead=lead, tail=tail)
    pieces.segment()
    pieces.write = _runs


def _runs(pieces: Sequence[str], style: str = _NONE, lead: str = "", tail: str = "") -> str:
    """Write texts as runs of their styles, and what is between them; see `Write`."""
    written = [lead]
    now = style
    for number, piece in enumerate(pieces):
        if number % 2 and piece.startswith(_STYLE):
            now = piece[1:] or style
        elif number % 2:
            written.append(piece)
        elif piece:
            text = html.escape(piece, quote=False)
            written.append(f'<w:r>{now}<w:t xml:space="preserve">{text}</w:t></w:r>')
    return "".join([*written, tail])
