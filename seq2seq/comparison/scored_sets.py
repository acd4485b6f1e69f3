"""Sort runs by the test or validation set that they were scored on: only scores on one set can be compared."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from seq2seq.runs.results import RunResult
from seq2seq.settings.dicts import flat
from seq2seq.settings.values import written


class ScoredSet(NamedTuple):
    """Runs that were scored in the same way on the same sentences.

    Attributes:
        title: Corpora, languages and number of sentences, unlike the title of any other set.
        runs: The runs, in the order in which they were found.
    """

    title: str
    runs: list[RunResult]


def scored_sets(runs: Sequence[RunResult], split: str) -> list[ScoredSet]:
    """Sort runs by their set, in order of appearance.

    A test set is known by its text, which runs save; one without it, and every validation set, by its settings.

    Args:
        split: "test" or "valid".
    """
    sets: dict[str, list[RunResult]] = {}
    for run in runs:
        text = run.test_digest() if split == "test" else None
        key = json.dumps([run.signatures(split), text or _settings(run, split)], default=str)
        sets.setdefault(key, []).append(run)
    titles = _titles(list(sets.values()), split)
    return [ScoredSet(title, each) for title, each in zip(titles, sets.values(), strict=True)]


def _settings(run: RunResult, split: str) -> dict[str, Any]:
    """Return the settings that decide which sentences a split has, by `section.name`."""
    data = run.config.get("data", {})
    keys = ("name", "src", "tgt", "path", "config", "data_dir", "revision", "languages", "columns", "format", split)
    values: dict[str, Any] = {key: data.get(key) for key in keys}
    if data.get(split) is None:
        # What is held out of training depends on the training text, and on the rules of cleaning that act before
        rules = data.get("clean") or {}
        values |= {key: data.get(key) for key in ("train", "holdout")}
        values["clean"] = {key: rules.get(key) for key in ("invalid_utf8", "empty", "same", "duplicates")}
    # Corpora that are mixed with it may have sets of their own
    values |= {f"corpora.{name}.{split}": (each or {}).get(split) for name, each in (data.get("corpora") or {}).items()}
    bound = run.config.get("trainer", {}).get("val_sentences") if split == "valid" else None
    return flat({"data": values, "trainer": {"val_sentences": bound}})


def _titles(sets: Sequence[Sequence[RunResult]], split: str) -> list[str]:
    """Name every set by its corpora and, where that is not enough, by what it has unlike others of the same name."""
    titles = [_corpora(runs, split) for runs in sets]
    # The text of a validation set is not saved
    facts = (_settings_shown, _signature) if split == "valid" else (_signature, _text, _settings_shown)
    for fact in facts:
        known = [fact(runs[0], split) for runs in sets]
        alike = [[theirs for theirs, other in zip(known, titles, strict=True) if other == title] for title in titles]
        titles = [
            ", ".join([title, *(each for each in mine if any(each not in other for other in others))])
            for title, mine, others in zip(titles, known, alike, strict=True)
        ]
    return titles


def _corpora(runs: Sequence[RunResult], split: str) -> str:
    names = dict.fromkeys(run.corpus for run in runs)
    lines = runs[0].test_lines("src") if split == "test" else None
    count = "" if lines is None else f", {len(lines):,} sentences"
    return " = ".join(names) + count


def _signature(run: RunResult, split: str) -> list[str]:
    return [first_signature(run, split)]


def _text(run: RunResult, split: str) -> list[str]:
    digest = run.test_digest()
    return [f"text {digest[:8]}" if digest else "text not saved"]


def _settings_shown(run: RunResult, split: str) -> list[str]:
    return [f"{key}={written(value)}" for key, value in _settings(run, split).items()]


def first_signature(run: RunResult, split: str) -> str:
    """Return the signature of a run's BLEU."""
    return (run.signatures(split) or ["no signature"])[0]


def text_differences(sets: Sequence[ScoredSet]) -> list[str]:
    """Describe in a line each how test sets of one corpus differ; none for sets of different corpora."""
    lines = []
    first: dict[str, RunResult] = {}
    for run in (each.runs[0] for each in sets):
        other = first.setdefault(run.corpus, run)
        if run.test_digest() and other is not run and (line := _difference(other, run)):
            lines.append(line)
    return lines


def _difference(one: RunResult, other: RunResult) -> str:
    """Describe the first difference between the test sets of two runs; "" if they differ in their signatures alone."""
    for side, name in (("src", "source"), ("ref", "reference")):
        mine = one.test_lines(side) or []
        theirs = other.test_lines(side) or []
        # First, since with a sentence missing all later lines would differ as well
        if len(mine) != len(theirs):
            return f"the test sets differ: {one.name} has {len(mine):,} sentences, {other.name} {len(theirs):,}"
        for number, (my_line, their_line) in enumerate(zip(mine, theirs, strict=True), 1):
            if my_line != their_line:
                return f"the test sets of {one.name} and {other.name} differ, first in {name} {number:,}"
    return ""
