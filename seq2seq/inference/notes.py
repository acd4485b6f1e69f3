"""Notes about lines that are not translated exactly as given, or whose translation may lack something."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

# Kinds of notes that are reported once with the number of lines, and the predicate of the report.
_SAID = {
    "beyond": "has more sentences or pieces than most training lines (sentences=auto cuts such lines)",
    "long": "is longer than any training line",
    "marked": "has the sign ￨ of factors, which the model reads as text",
    "limit": "has a translation that a limit of its length ended (max_len_ratio, max_len_extra, the model's positions)",
    "unread": "has a part that hardly any word of the translation reads",
    "short": "has a translation that is unusually short for its source",
    "whole": "has several sentences translated as one, since a prefix or phrases cannot be placed among them",
}
_PLURAL = {"has": "have", "is": "are"}


class Note(NamedTuple):
    """Note about one line.

    Attributes:
        position: Position of the line, from 0.
        kind: "failed", "cut" or "split", which are reported line by line, or a kind that is counted.
        text: Predicate of a sentence about the line, such as "is cut: ...".
        reason: Reason of a failure.
        by_input: The failure has its cause in what was given, not in the machine.
    """

    position: int
    kind: str
    text: str
    reason: str = ""
    by_input: bool = False

    @classmethod
    def failed(cls, position: int, reason: str, *, by_input: bool = True) -> Note:
        """Return the note about a line that has no translation."""
        return cls(position, "failed", f"was not translated and is empty ({reason})", reason, by_input)

    @classmethod
    def cut(cls, position: int, pieces: int, kept: int) -> Note:
        """Return the note about a line of which only the first pieces are translated."""
        return cls(position, "cut", f"is cut: {pieces:,} pieces, the first {kept:,} are translated")

    @classmethod
    def of_kind(cls, position: int, kind: str) -> Note:
        """Return a note that says what the report of its kind says."""
        return cls(position, kind, _SAID[kind])


class Notes:
    """Collects the notes of many lines; reports some at once, and counts the others for one report per kind.

    Args:
        what: Word for a line in messages.
        failed: Numbers of lines that failed in an earlier run.

    Attributes:
        failed: Numbers, from 1, of lines that were not translated.
        counted: Numbers, from 1, of the lines with a note, by kind of note.
        texts: Texts of the notes about lines that did not fail, by number of the line.
    """

    def __init__(self, warn: Callable[[str], None], *, what: str = "line", failed: Iterable[int] = ()) -> None:
        self.warn = warn
        self.what = what
        self.failed = set(failed)
        self.counted: dict[str, set[int]] = {}
        self.texts: dict[int, list[str]] = {}

    def add(self, note: Note) -> None:
        """Collect a note."""
        number = note.position + 1
        if note.kind == "failed":
            # Several parts of a line may fail; the line is reported once
            if number in self.failed:
                return
            self.failed.add(number)
        else:
            self.texts.setdefault(number, []).append(note.text)
        if note.kind in _SAID:
            self.counted.setdefault(note.kind, set()).add(number)
        else:
            self.warn(f"{self.what} {number} {note.text}")

    def report(self, total: int, more: str = "", *, name: Callable[[int], str] = str) -> None:
        """Report the counted notes, out of `total` lines, by name of a line; `more` ends each message."""
        for kind, numbers in self.counted.items():
            listed = ", ".join(map(name, sorted(numbers)[:8])) + (", ..." if len(numbers) > 8 else "")
            verb, said = _SAID[kind].split(" ", 1)
            shown = f"{self.what} {listed}"
            if len(numbers) > 1:
                verb, shown = _PLURAL[verb], f"{self.what}s {listed}"
            self.warn(f"{len(numbers):,} of {total:,} {self.what}s {verb} {said}: {shown}{more}")
