"""BLEU by the length of the source: the table and the figure of Bahdanau et al. 2015, figure 2."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from seq2seq.data.languages import has_spaces
from seq2seq.evaluation.metrics import bleu
from seq2seq.experiments.comparison import scoring
from seq2seq.experiments.comparison_table import mean_and_deviation
from seq2seq.experiments.figures import add_title, draw_means, new_figure, save
from seq2seq.experiments.groups import Group, seed_means
from seq2seq.experiments.results import RunResult
from seq2seq.experiments.tables import markdown_table

# A bucket of fewer sentences has no BLEU worth drawing: the last one takes all that are longer.
_FEWEST = 20


class LengthScores(NamedTuple):
    """BLEU of groups of runs on parts of one test set, whose sources are of similar length.

    Attributes:
        unit: The lengths are in "words", or in "characters" where the script has no spaces.
        names: The parts, such as "11-20".
        counts: Sentences of each.
        centers: Mean length of each.
        values: By a group's label, for each part the BLEU of every seed whose run saved its translations.
    """

    unit: str
    names: list[str]
    counts: list[int]
    centers: list[float]
    values: dict[str, list[list[float]]]


def score_by_length(groups: Sequence[Group], width: int) -> LengthScores | None:
    """Score the test translations of runs on one test set, in parts of similar source length.

    Args:
        width: A part's lengths: 1 to width words (characters where the script has no spaces), and so on.

    Returns:
        None if no run saved its translations and their sources.
    """
    saved = {group.label: [run for run in group.runs if run.translated and run.test_lines("src")] for group in groups}
    saved = {label: runs for label, runs in saved.items() if runs}
    if not saved:
        return None
    first = next(iter(saved.values()))[0]
    unit, lengths = _lengths(first)
    parts = _parts(lengths, width)
    rows = list(parts.values())
    return LengthScores(
        unit=unit,
        names=list(parts),
        counts=[len(each) for each in rows],
        centers=[statistics.fmean(lengths[i] for i in each) for each in rows],
        values={
            label: [[*seed_means((run.seed, _bleu(run, each)) for run in runs).values()] for each in rows]
            for label, runs in saved.items()
        },
    )


def _lengths(run: RunResult) -> tuple[str, list[int]]:
    words = [line.split() for line in run.test_lines("src") or []]
    if not has_spaces(str(run.config["data"].get("src") or "")):
        return "characters", [sum(map(len, line)) for line in words]
    return "words", [len(line) for line in words]


def _parts(lengths: Sequence[int], width: int) -> dict[str, list[int]]:
    """Return the sentences of each part by its name, shortest first."""
    # The last edge that leaves enough sentences beyond it
    last = width
    while sum(length > last for length in lengths) >= _FEWEST:
        last += width
    # Part i has the lengths i width + 1 to (i + 1) width; an empty source counts as the shortest
    final = last // width - 1
    parts: dict[str, list[int]] = {}
    for part in range(final + 1):
        rows = [i for i, length in enumerate(lengths) if min(max(0, math.ceil(length / width) - 1), final) == part]
        longest = max((lengths[i] for i in rows), default=0)
        # Named by what it holds, where it holds what is longer than its last edge
        end = max(longest, (part + 1) * width) if part == final else (part + 1) * width
        if rows:
            parts[f"{part * width + 1}-{end}"] = rows
    return parts


def _bleu(run: RunResult, rows: Sequence[int]) -> float:
    tokenize, lowercase = scoring(run)
    hypotheses, references = (run.test_lines(side) or [] for side in ("hyp", "ref"))
    chosen = [hypotheses[i] for i in rows], [references[i] for i in rows]
    return bleu(*chosen, tokenize=tokenize, lowercase=lowercase).value


def length_table(scores: LengthScores) -> str:
    """Format the scores as a Markdown table with a row for each group."""
    rows = [["sentences", *(f"{count:,}" for count in scores.counts)]]
    rows += [[label, *map(mean_and_deviation, values)] for label, values in scores.values.items()]
    table = markdown_table(["source length", *scores.names], rows, right=scores.names, padded=True)
    return f"BLEU by length of the source, in {scores.unit}:\n\n{table}\n"


def draw_by_length(scores: LengthScores, stem: Path, *, title: str | None = None) -> Path:
    """Write `stem`.png and `stem`.svg with a curve for each group, and return the path of the first."""
    figure = new_figure(6, 4.2)
    axes = figure.subplots()
    if title:
        add_title(figure, title, size=10)
    draw_means(
        figure, axes, {label: list(zip(scores.centers, each, strict=True)) for label, each in scores.values.items()}
    )
    axes.set_xlabel(f"length of the source ({scores.unit})")
    axes.set_ylim(bottom=0)
    return save(figure, stem, dpi=150)
