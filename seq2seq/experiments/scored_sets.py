"""Sort runs by the test or validation set that they were scored on: only scores on one set can be compared."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from seq2seq.experiments.results import RunResult
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

    Runs save the text of the test set only. One without it, and every validation set, is known by its settings.

    Args:
        split: "test" or "valid".
    """
    sets: dict[str, list[RunResult]] = {}
    # Runs with the text first: those without it join them
    for run in sorted(runs, key=lambda run: run.test_digest() is None):
        sets.setdefault(_set_of(run, split, sets), []).append(run)
    order = {id(run): position for position, run in enumerate(runs)}
    sorted_sets = [sorted(each, key=lambda run: order[id(run)]) for each in sets.values()]
    sorted_sets.sort(key=lambda each: order[id(each[0])])
    titles = _titles(sorted_sets, split)
    return [ScoredSet(title, each) for title, each in zip(titles, sorted_sets, strict=True)]


def _set_of(run: RunResult, split: str, sets: dict[str, list[RunResult]]) -> str:
    """Return the key of a run's set among those known so far."""
    # The text of a validation set is not saved, and that of the test set says nothing of it
    digest = run.test_digest() if split == "test" else None
    scored = run.signatures(split)
    if digest:
        return json.dumps([scored, digest])
    settings = _settings(run, split)
    # It joins the one set that its settings may mean
    fitting = [
        key
        for key, members in sets.items()
        if any(_settings(each, split) == settings and each.signatures(split) == scored for each in members)
    ]
    return fitting[0] if len(fitting) == 1 else json.dumps([scored, settings], default=str)


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
    """Name every set as shortly as tells it from the others."""
    titles = [_corpora(runs, split) for runs in sets]
    # The text of a validation set is not saved
    facts = (_settings_shown, _signature) if split == "valid" else (_signature, _text, _settings_shown)
    for fact in facts:
        known = [fact(runs, split) for runs in sets]
        alike = [[other for other, theirs in zip(known, titles, strict=True) if theirs == title] for title in titles]
        titles = [
            ", ".join([title, *_telling(mine, others)])
            for title, mine, others in zip(titles, known, alike, strict=True)
        ]
    return [f"{title} ({titles[:n].count(title) + 1})" if titles.count(title) > 1 else title
            for n, title in enumerate(titles)]  # fmt: skip


def _telling(mine: list[str], others: Sequence[list[str]]) -> list[str]:
    """Return the first facts of a set that tell it from all others, as far as facts do."""
    telling = []
    rest = [other for other in others if other is not mine]
    for text in mine:
        if any(text not in other for other in rest):
            telling.append(text)
            rest = [other for other in rest if text in other]
    return telling


def _corpora(runs: Sequence[RunResult], split: str) -> str:
    names = dict.fromkeys(run.corpus for run in runs)
    lines = next((lines for run in runs if (lines := run.test_lines("src")) is not None), None)
    count = f", {len(lines):,} sentences" if split == "test" and lines is not None else ""
    return " = ".join(names) + count


def _signature(runs: Sequence[RunResult], split: str) -> list[str]:
    return [first_signature(runs[0], split)]


def _text(runs: Sequence[RunResult], split: str) -> list[str]:
    digest = next((digest for run in runs if (digest := run.test_digest())), None)
    return [f"text {digest[:8]}" if digest else "text not saved"]


def _settings_shown(runs: Sequence[RunResult], split: str) -> list[str]:
    return [f"{key}={written(value)}" for key, value in _settings(runs[0], split).items()]


def first_signature(run: RunResult, split: str) -> str:
    """Return the signature of a run's BLEU."""
    return (run.signatures(split) or ["no signature"])[0]


def text_differences(sets: Sequence[ScoredSet]) -> list[str]:
    """Describe in a line each how test sets of one corpus differ; none for sets of different corpora."""
    lines = []
    first: dict[str, RunResult] = {}
    for each in sets:
        run = next((run for run in each.runs if run.test_digest()), None)
        if run is None:
            continue
        other = first.setdefault(run.corpus, run)
        if other is not run and (line := _difference(other, run)):
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
