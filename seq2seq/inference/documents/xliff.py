"""Texts of XLIFF."""

from __future__ import annotations

import html
import re

from seq2seq.data.languages import primary_subtag
from seq2seq.inference.documents.markup import Event, checked, collect, escaped, events, joined
from seq2seq.inference.documents.segments import Pieces, Segment, Translate, replace

_ATTRIBUTE = r"""\s{}\s*=\s*(?:"([^"]*)"|'([^']*)')"""
# The end of a tag, and the attributes that are written anew.
_REST = re.compile(r"\s*/?>\Z|" + _ATTRIBUTE.format("state(?:-qualifier)?"))
_AROUND = re.compile(r"(?:[\w-]+:)?(?:g|pc|mrk)")
_OTHER = re.compile(r"(?:[\w-]+:)?(?:alt-trans|matches|glossary|notes?|originaldata)")
_KEPT = re.compile(r"""\s(?:translate\s*=\s*["']no|mtype\s*=\s*["']protected)["']""")
_MARKERS = re.compile(r"</?(?:[\w-]+:)?mrk\b[^<>]*>")
_SENTENCE = re.compile(r"""\smtype\s*=\s*["']seg["']""")


def translate_xliff(content: str, translate: Translate, language: str) -> str:
    """Fill the empty or missing targets of XLIFF 1 or 2; set their states, and the language if it is missing.

    Raises:
        ValueError: It is not XML, declares entities, or has another target language.
    """
    content = checked(content)
    found: list[Segment] = []
    old = False
    unit: Event | None = None
    # The first opening tag and the last closing tag of each name in a unit
    opened: dict[str, Event] = {}
    closed: dict[str, Event] = {}

    def left(event: Event) -> bool:
        return bool(_OTHER.fullmatch(event.name) or _KEPT.search(content, event.start, event.end))

    for event in joined(events(content, 0, len(content)), left):
        name = event.name.rpartition(":")[2]
        if event.kind == "open" and name == "xliff":
            old = (_attribute(content, event, "version") or "").startswith("1")
        if event.kind == "open" and name == ("file" if old else "xliff"):
            key = "target-language" if old else "trgLang"
            given = _attribute(content, event, key)
            # de and deu are the same
            if given and primary_subtag(given) != primary_subtag(language):
                raise ValueError(f"{key} is {given}, and the model translates into {language}: correct the file")
            if given is None:
                found.append(Segment(0, 0, put=(event.end - 1, event.end - 1, f' {key}="{language}"', "")))
        elif event.kind == "open" and name in ("trans-unit", "segment"):
            unit, opened, closed = event, {}, {}
        elif event.kind == "open" and unit:
            opened.setdefault(name, event)
        elif event.kind == "close" and name in opened:
            closed[name] = event
        elif event.kind == "close" and unit and name in ("trans-unit", "segment"):
            found += _fill(content, unit, opened, closed, old)
            unit, opened = None, {}
    return replace(content, found, translate)


def _attribute(content: str, event: Event, name: str) -> str | None:
    match = re.compile(_ATTRIBUTE.format(name)).search(content, event.start, event.end)
    return match[match.lastindex or 0] if match else None


def _fill(content: str, unit: Event, opened: dict[str, Event], closed: dict[str, Event], old: bool) -> list[Segment]:
    """Return the edits of a unit that has no translation."""
    name = "seg-source" if "seg-source" in closed else "source"
    target = opened.get("target")
    if name not in closed or (
        # Empty segments are no translation
        target and _MARKERS.sub("", content[target.end : closed["target"].start]).strip()
    ):
        return []
    first, last = opened[name], closed[name]
    pieces = _source(content, first.end, last.start)
    tag = f"{content[first.start + 1 : first.start + 1 + len(first.name) - len(name)]}target"
    if target:
        opening = _REST.sub("", content[target.start : target.end])
        start, end = target.start, closed["target"].end
    else:
        before = content[max(0, first.start - 200) : first.start]
        opening = f"{before[len(before.rstrip()) :]}<{tag}"
        start = end = last.end
    opening += ' state="needs-review-translation" state-qualifier="mt-suggestion">' if old else ">"
    found = []
    # Without letters it is copied
    texts = pieces.found or [Segment(last.start, last.start)]
    done = first.end
    for number, each in enumerate(texts):
        after = f"{content[each.end : last.start]}</{tag}>" if number == len(texts) - 1 else ""
        found.append(each._replace(put=(start, end, opening + content[done : each.start], after)))
        done, start, opening = each.end, end, ""
    if not old and _attribute(content, unit, "state") in (None, "initial"):
        text = f'{_REST.sub("", content[unit.start : unit.end])} state="translated">'
        found.append(Segment(0, 0, put=(unit.start, unit.end, text, "")))
    return found


def _source(content: str, start: int, end: int) -> Pieces:
    """Collect the texts of a source, one for each sentence that it marks."""
    pieces = Pieces(content, html.unescape, escaped)
    sentences: list[bool] = []

    def code(event: Event) -> bool:
        return not _AROUND.fullmatch(event.name) or bool(_KEPT.search(content, event.start, event.end))

    for event in joined(events(content, start, end), code):
        name = "" if event.kind == "code" else event.name
        if event.kind == "open":
            sentences.append(bool(_SENTENCE.search(content, event.start, event.end)))
        if event.kind in ("open", "close"):
            # An element that is not inline ends a text
            name = "mrk.seg" if sentences[-1] else name
        if event.kind == "close":
            sentences.pop()
        collect(pieces, [event._replace(name=name)], _AROUND)
    pieces.segment()
    return pieces
