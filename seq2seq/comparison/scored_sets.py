"""Sort runs by the test or validation set of their scores: only scores on the same set are comparable."""

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
        title: Corpora, languages and number of sentences; unique among the sets.
        runs: The runs, in the order in which they were found.
    """

    title: str
    runs: list[RunResult]


def scored_sets(runs: Sequence[RunResult], split: str) -> list[ScoredSet]:
    """Sort runs by their set, in order of appearance.

    A test set is identified by its saved text. Without a saved text, and for validation sets, the settings identify it.

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
        # A held-out set depends on the training text and on the cleaning rules that run before the split
        rules = data.get("clean") or {}
        values |= {key: data.get(key) for key in ("train", "holdout")}
        values["clean"] = {key: rules.get(key) for key in ("invalid_utf8", "empty", "same", "language", "duplicates")}
    # Mixed corpora may have sets of their own
    values |= {f"corpora.{name}.{split}": (each or {}).get(split) for name, each in (data.get("corpora") or {}).items()}
    bound = run.config.get("trainer", {}).get("val_sentences") if split == "valid" else None
    return flat({"data": values, "trainer": {"val_sentences": bound}})


def _titles(sets: Sequence[Sequence[RunResult]], split: str) -> list[str]:
    """Name every set by its corpora; sets with the same name are told apart by the first facts that differ."""
    firsts = [runs[0] for runs in sets]
    sources = [run.test_lines("src") if split == "test" else [] for run in firsts]
    counts = [f", {len(lines):,} sentences" if lines else "" for lines in sources]
    corpora = [" = ".join(dict.fromkeys(run.corpus for run in runs)) for runs in sets]
    titles = [name + count for name, count in zip(corpora, counts, strict=True)]
    signatures = [[first_signature(run, split)] for run in firsts]
    digests = [run.test_digest() for run in firsts]
    texts = [[f"text {digest[:8]}" if digest else "text not saved"] for digest in digests]
    settings = [[f"{key}={written(value)}" for key, value in _settings(run, split).items()] for run in firsts]
    # The text of a validation set is not saved
    for known in (settings, signatures) if split == "valid" else (signatures, texts, settings):
        alike = [[theirs for theirs, other in zip(known, titles, strict=True) if other == title] for title in titles]
        titles = [
            ", ".join([title, *(each for each in mine if any(each not in other for other in others))])
            for title, mine, others in zip(titles, known, alike, strict=True)
        ]
    return titles


def first_signature(run: RunResult, split: str) -> str:
    """Return the signature of a run's BLEU."""
    return (run.signatures(split) or ["no signature"])[0]


def text_differences(sets: Sequence[ScoredSet]) -> list[str]:
    """Describe how test sets of one corpus differ, in one line each."""
    lines = []
    first: dict[str, RunResult] = {}
    for run in (each.runs[0] for each in sets):
        other = first.setdefault(run.corpus, run)
        if run.test_digest() and other is not run and (line := _difference(other, run)):
            lines.append(line)
    return lines


def _difference(one: RunResult, other: RunResult) -> str:
    """Describe the first difference between the test sets of two runs; "" if only their signatures differ."""
    for side, name in (("src", "source"), ("ref", "reference")):
        mine, theirs = one.test_lines(side), other.test_lines(side)
        # Compare the lengths first: after a missing sentence all later lines differ
        if len(mine) != len(theirs):
            return f"the test sets differ: {one.name} has {len(mine):,} sentences, {other.name} {len(theirs):,}"
        for number, (my_line, their_line) in enumerate(zip(mine, theirs, strict=True), 1):
            if my_line != their_line:
                return f"the test sets of {one.name} and {other.name} differ, first in {name} {number:,}"
    return ""
