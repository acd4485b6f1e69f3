"""Glossaries: terms of the source, each with a term that its translation must contain."""

from __future__ import annotations

import itertools
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from seq2seq.data.marks import with_translations
from seq2seq.data.text_files import is_blank, read_lines
from seq2seq.search.words import in_word
from seq2seq.settings.values import shown

# Characters of a term; a file with a longer one is something else.
_LONGEST = 1000
# Terms that are named in a report.
_NAMED = 5
_HEADERS = (("source", "target"), ("src", "tgt"))


class Term(NamedTuple):
    """Term of a glossary that a text has; `found` is True if the translation of the text has its target."""

    source: str
    target: str
    found: bool = False


class Glossary:
    """Finds the terms of a glossary in texts.

    A term is found as whole words; in scripts without spaces, anywhere. The longest term takes precedence, and terms do
    not overlap. A capital letter of a term matches only itself, a small letter also its capital: `haus` is found in
    `Haus`, but `Essen` is not found in `essen`. A term with the same capitals as the text takes precedence.

    Raises:
        ValueError: A term is empty, too long, or has two targets.
    """

    def __init__(self, terms: Iterable[tuple[str, str]] = ()) -> None:
        self.terms: dict[str, str] = {}
        self._add((f"term {number}", *pair) for number, pair in enumerate(terms, 1))

    @classmethod
    def of(cls, terms: Glossary | Mapping[str, str] | Iterable[tuple[str, str]]) -> Glossary:
        """Make a glossary from a dictionary or from pairs."""
        if isinstance(terms, Glossary):
            return terms
        pairs: list[Any] = list(terms.items() if isinstance(terms, Mapping) else terms)
        for pair in pairs:
            if isinstance(pair, str) or len(pair) != 2 or not all(isinstance(each, str) for each in pair):
                raise ValueError(f"glossary has the entry {shown(str(pair))}; give pairs of a source and a target")
        return cls(pairs)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Glossary:
        """Read a file with a term in each line: source, tab, target.

        Blank lines, and lines without a tab that begin with #, are skipped; so is a first line `source<TAB>target`.

        Raises:
            ValueError: A line has no target or further columns, is not UTF-8, or contradicts an earlier line.
        """
        made = cls()
        made._add(_lines(Path(path)))
        if not made.terms:
            raise ValueError(f"{path} has no terms: write source, tab, target in each line")
        return made

    def _add(self, terms: Iterable[tuple[str, str, str]]) -> None:
        """Add terms, each with the name of its place."""
        places: dict[str, str] = {}
        for place, source, target in terms:
            source, target = source.strip(), target.strip()
            if is_blank(source) or is_blank(target):
                raise ValueError(f"{place}: the source or the target is empty; give both")
            if max(len(source), len(target)) > _LONGEST:
                raise ValueError(f"{place} has more than {_LONGEST:,} characters: is it a term?")
            if self.terms.setdefault(source, target) != target:
                raise ValueError(
                    f"{place}: '{shown(source)}' is '{shown(target)}', and '{shown(self.terms[source])}' in "
                    f"{places[source]}; keep one"
                )
            places.setdefault(source, place)
        # The lower case of some characters is longer: each is folded by itself
        self._by_fold: dict[str, list[str]] = defaultdict(list)
        for source in self.terms:
            self._by_fold[_fold(source)].append(source)
        self._sizes = sorted({len(source) for source in self.terms}, reverse=True)

    def find(self, text: str) -> list[Term]:
        """Return the terms that a text has, in order; terms with the same target once."""
        found: dict[str, Term] = {}
        for _, term in self._matches(text):
            found.setdefault(term.target, term)
        return list(found.values())

    def write_into(self, text: str) -> str:
        """Write the target of each term behind its source."""
        return with_translations(text, {end: term.target for end, term in self._matches(text)})

    def _matches(self, text: str) -> list[tuple[int, Term]]:
        """List the terms in a text, each with its end."""
        folded = _fold(text)
        # Looked up once for each size of a term
        divides = [_divides(text, position) for position in range(len(text) + 1)]
        found: list[tuple[int, Term]] = []
        starts = itertools.compress(range(len(text)), divides)
        next_start = 0
        for start, size in itertools.product(starts, self._sizes):
            end = start + size
            if start < next_start or end > len(text) or not divides[end]:
                continue
            own = text[start:end]
            if fitting := [term for term in self._by_fold.get(folded[start:end], ()) if _stands_for(term, own)]:
                source = own if own in fitting else fitting[0]
                found.append((end, Term(source, self.terms[source])))
                next_start = end
        return found

    def __len__(self) -> int:
        return len(self.terms)


class TermCounts:
    """Counts the terms that translations have, for one line at the end."""

    def __init__(self) -> None:
        self.terms = self.found = self.lines = 0
        # Numbers of the lines whose translations lack a term, by term
        self.missing: dict[Term, list[int]] = defaultdict(list)

    def add(self, number: int, terms: Iterable[Term]) -> None:
        """Count the terms of a line."""
        counted = list(terms)
        self.lines += bool(counted)
        self.terms += len(counted)
        self.found += sum(term.found for term in counted)
        for term in counted:
            if not term.found:
                self.missing[term].append(number)

    def __str__(self) -> str:
        named = [
            f"'{shown(term.source)}' as '{shown(term.target)}' (line {', '.join(map(str, lines[:3]))}"
            f"{', ...' * (len(lines) > 3)})"
            for term, lines in list(self.missing.items())[:_NAMED]
        ]
        missing = f"; not {', '.join(named)}" * bool(named) + ", ..." * (len(self.missing) > _NAMED)
        return f"{self.found:,} of {self.terms:,} terms in {self.lines:,} lines are in the translation{missing}"


def has_words(text: str, term: str) -> bool:
    """Return True if a text has a term as whole words; in scripts without spaces, anywhere."""
    # Occurrences may overlap
    starts = (match.start() for match in re.finditer(f"(?={re.escape(term)})", text))
    return bool(term) and any(_divides(text, start) and _divides(text, start + len(term)) for start in starts)


def _lines(path: Path) -> Iterator[tuple[str, str, str]]:
    for number, line in enumerate(read_lines(path), 1):
        place = f"{path}: line {number:,}"
        fields = line.split("\t")
        if is_blank(line) or (len(fields) == 1 and line.startswith("#")):
            continue
        if "\ufffd" in line:
            raise ValueError(f"{place} is not valid UTF-8; convert the file")
        if len(fields) != 2:
            raise ValueError(f"{place} has {len(fields)} columns; write source, tab, target")
        if number > 1 or (fields[0].lower(), fields[1].lower()) not in _HEADERS:
            yield place, fields[0], fields[1]


def _fold(text: str) -> str:
    """Return a text in lower case, character by character."""
    return "".join(lower if len(lower := character.lower()) == 1 else character for character in text)


def _stands_for(term: str, text: str) -> bool:
    """Return True if each letter of a term equals the text's letter or its lower case."""
    return all(own in (given, given.lower()) for own, given in zip(term, text, strict=True))


def _divides(text: str, position: int) -> bool:
    """Return True unless a position of a text is inside a word."""
    return not (0 < position < len(text) and in_word(text[position - 1]) and in_word(text[position]))
