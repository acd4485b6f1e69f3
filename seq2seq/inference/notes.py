"""Notes about lines that are not translated as they are, or of whose content something may be missing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

# Kinds of notes that are reported once, with the number of lines: what is said of one of them, and of several.
_SAID = {
    "beyond": (
        "has",
        "have",
        "more sentences or pieces than most training lines (sentences=auto cuts such lines)",
    ),
    "long": ("is", "are", "longer than any training line"),
    "limit": ("has", "have", "a translation that the limit of its length ended (max_len_ratio, max_len_extra)"),
    "unread": ("has", "have", "a part that hardly any word of the translation reads"),
    "whole": (
        "has",
        "have",
        "several sentences translated as one, since a prefix or phrases cannot be placed among them",
    ),
}


class Note(NamedTuple):
    """Note about one line.

    Attributes:
        position: Of the line, from 0.
        kind: "failed", "cut" or "split", each of which is reported by itself, or one that is counted.
        text: Says it of the line, as in "is cut: ...".
        reason: Why a line failed.
    """

    position: int
    kind: str
    text: str
    reason: str = ""

    @classmethod
    def failed(cls, position: int, reason: str) -> Note:
        """Return the note about a line that has no translation."""
        return cls(position, "failed", f"was not translated and is empty ({reason})", reason)

    @classmethod
    def cut(cls, position: int, pieces: int, kept: int) -> Note:
        """Return the note about a line of which only the first pieces are translated."""
        return cls(position, "cut", f"is cut: {pieces:,} pieces, the first {kept:,} are translated")

    def __str__(self) -> str:
        return self.text


class Notes:
    """Collects the notes of many lines: reports what concerns one line at once, and all others in a line for each kind.

    Args:
        warn: Called with one line of text.
        what: What a line is called.
        failed: Numbers of lines that failed before.

    Attributes:
        failed: Numbers, from 1, of lines that were not translated.
        counted: Numbers of lines by the kind of their notes.
        texts: What is noted of each line that did not fail, by its number.
    """

    def __init__(self, warn: Callable[[str], None], *, what: str = "line", failed: Iterable[int] = ()) -> None:
        self.warn = warn
        self.what = what
        self.failed = set(failed)
        self.counted: dict[str, list[int]] = {}
        self.texts: dict[int, list[str]] = {}

    def add(self, note: Note) -> None:
        """Collect a note."""
        number = note.position + 1
        if note.kind == "failed":
            # Parts of a line fail as one
            if number in self.failed:
                return
            self.failed.add(number)
        else:
            self.texts.setdefault(number, []).append(str(note))
        if note.kind in _SAID:
            self.counted.setdefault(note.kind, []).append(number)
        else:
            self.warn(f"{self.what} {number} {note}")

    def report(self, total: int, more: str = "") -> None:
        """Report the notes that are counted, of so many lines."""
        for kind, numbers in self.counted.items():
            different = sorted(set(numbers))
            listed = ", ".join(map(str, different[:8])) + (", ..." if len(different) > 8 else "")
            one, several, said = _SAID[kind]
            verb, plural = (one, "") if len(different) == 1 else (several, "s")
            shown = f"{self.what}{plural} {listed}"
            self.warn(f"{len(different):,} of {total:,} {self.what}s {verb} {said}: {shown}{more}")
