"""Reader of TMX (Translation Memory eXchange), which keeps one block in memory."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path
from xml.parsers import expat

from seq2seq.data.readers import LanguageColumns, in_blocks
from seq2seq.data.text_files import open_bytes, read_blocks

# Inline elements whose content is a code of another format. All others, such as hi (highlighted), contain text.
_CODES = {"bpt", "ept", "ph", "it", "ut", "sub"}
# Inline elements that may stand for a break, which becomes a space between two words.
_PLACEHOLDERS = {"ph", "it", "ut", "x"}
_BREAK_CODE = re.compile(r"\s*(?:<br\b[^>]*>|\\[nt]|line ?break)\s*|[\n\t]+", re.IGNORECASE)
_BREAK = "\0"  # never in XML
_BREAKS = re.compile(rf"(?<=\w){_BREAK}+(?=\w)")
# Remedies by error of the XML parser.
_REMEDIES = {
    "reference to invalid character number": "XML allows no control characters; remove the reference",
    "not well-formed (invalid token)": "is there a bare & or <, or a control character?",
}
# Number of units after which reading fails if none of them has both languages.
_SEARCHED = 100_000
_LINE_BREAK = re.compile(r"[ \t\r]*\n\s*")


@in_blocks
def tmx_pairs(path: Path, columns: LanguageColumns) -> Iterator[tuple[str, str]]:
    """Read the pairs of a TMX file, one from each translation unit that has both languages.

    A language is found by its exact code or, if a unit lacks it, by its first variant (`de` finds de-DE). Formatting
    codes (bpt, ept, ph, it, ut) are dropped with their content, and the text in other inline elements stays. Line
    breaks become spaces, as do codes that stand for a break between two letters.

    Raises:
        ValueError: The file is not well-formed XML, declares entities, or lacks a language.
    """
    src, tgt = (str(name).lower().replace("_", "-") for name in columns.both)
    seen: dict[str, None] = {}
    units = found = 0
    for unit in _units(path):
        units += 1
        texts = _variant(unit, src), _variant(unit, tgt)
        if texts[0] is not None and texts[1] is not None:
            found += 1
            yield texts[0], texts[1]
        elif not found:
            seen |= dict.fromkeys(unit)
            if units >= _SEARCHED:
                break
    if not units:
        raise ValueError(f"{path} has no translation units (<tu>): is it TMX?")
    if not found:
        first = "" if units < _SEARCHED else f"first {units:,} "
        listed = ", ".join(map(repr, list(seen)[:8])) or "none"
        raise ValueError(
            f"{path}: none of its {first}translation units has both {src} and {tgt}; the languages there are {listed}: "
            "set data.src and data.tgt, or data.columns={<language>: <code in the file>}"
        )


def _variant(unit: dict[str, str], language: str) -> str | None:
    """Return the text of a language in a unit."""
    if language in unit:
        return unit[language]
    return next((text for name, text in unit.items() if name.startswith(f"{language}-")), None)


def _units(path: Path) -> Iterator[dict[str, str]]:
    """Parse the translation units of a file, each as texts by language."""
    reader = _UnitReader()
    parser = reader.parser
    try:
        for block in read_blocks(open_bytes(path)):
            # A block may hold thousands of units: smaller steps save memory
            for start in range(0, len(block), 1 << 16):
                parser.Parse(block[start : start + (1 << 16)], False)
                yield from reader.take()
        parser.Parse(b"", True)
        yield from reader.take()
    except expat.ExpatError as error:
        reason = expat.errors.messages.get(error.code, "not well-formed")
        remedy = _REMEDIES.get(reason, "is the file complete?")
        raise ValueError(f"{path}: line {error.lineno} is not XML: {reason}; {remedy}") from error
    except _RefusedError as error:
        raise ValueError(f"{path}: line {parser.CurrentLineNumber}: {error}") from None


class _RefusedError(ValueError):
    """Error of an entity that is not read."""


class _UnitReader:
    """Handler of expat's events, which collects translation units."""

    def __init__(self) -> None:
        self.parser = expat.ParserCreate(namespace_separator=None)
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self.start
        self.parser.EndElementHandler = self.end
        self.parser.CharacterDataHandler = self.characters
        self.parser.EntityDeclHandler = self.refuse_entity
        self.parser.SkippedEntityHandler = self.skipped
        self.done: list[dict[str, str]] = []
        self.unit: dict[str, str] = {}
        self.language = ""
        self.parts: list[str] | None = None  # of the open segment
        self.codes = 0  # open inline elements whose content is not text
        self.placeholder = False  # the last opened element is a placeholder

    def take(self) -> list[dict[str, str]]:
        """Return the complete units, and forget them."""
        done, self.done = self.done, []
        return done

    def start(self, name: str, attributes: dict[str, str]) -> None:
        if name == "tu":
            self.unit = {}
        elif name == "tuv":
            language = attributes.get("xml:lang", attributes.get("lang", ""))
            self.language = language.lower().replace("_", "-")
        elif name == "seg":
            self.parts, self.codes = [], 0
        elif name in _CODES:
            self.codes += 1
        self.placeholder = name in _PLACEHOLDERS
        if self.placeholder and attributes.get("type") == "lb":
            self.mark_break()

    def end(self, name: str) -> None:
        if name == "tu":
            self.done.append(self.unit)
        elif name == "seg" and self.parts is not None:
            text = _BREAKS.sub(" ", "".join(self.parts)).replace(_BREAK, "")
            text = _LINE_BREAK.sub(" ", text).strip(" ")
            # Keep the first of two variants with the same language
            self.unit.setdefault(self.language, text)
            self.parts = None
        elif name in _CODES:
            self.codes -= 1

    def characters(self, text: str) -> None:
        if self.codes and self.placeholder and _BREAK_CODE.fullmatch(text):
            self.mark_break()
        if self.parts is not None and not self.codes:
            self.parts.append(text)

    def mark_break(self) -> None:
        if self.parts is not None:
            self.parts.append(_BREAK)

    def refuse_entity(self, name: str, *_: object) -> None:
        raise _RefusedError(f"it declares the entity {name!r}; for safety, entities that a file declares are not read")

    def skipped(self, name: str, is_parameter: bool) -> None:
        # An entity of an external document type: the entities of HTML are known, but others would be lost
        text = html.unescape(f"&{name};")
        if not is_parameter and text == f"&{name};":
            raise _RefusedError(f"the entity {text} is not known")
        self.characters(text)
