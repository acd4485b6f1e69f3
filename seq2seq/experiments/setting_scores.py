"""BLEU by the value of a setting: of a sweep over learning rates, say, or over sizes of the training data."""

from __future__ import annotations

import difflib
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from seq2seq.experiments.comparison_table import mean_and_deviation
from seq2seq.experiments.figures import draw_means, new_figure, save
from seq2seq.experiments.groups import group_runs
from seq2seq.experiments.results import RunResult
from seq2seq.experiments.tables import markdown_table

# From this ratio of the largest value to the least on, an axis is logarithmic.
_WIDE = 5


class SettingScores(NamedTuple):
    """BLEU of runs by the value of one setting.

    Attributes:
        key: The setting, `section.name`.
        values: Its values as text, numbers first and in order.
        scores: By a group's label and by value, the BLEU of every run.
    """

    key: str
    values: list[str]
    scores: dict[str, dict[str, list[float]]]


def score_by_setting(runs: Sequence[RunResult], key: str, split: str) -> SettingScores:
    """Collect the scores of runs by the value of a setting.

    Runs of one value are grouped as in the table of the comparison; groups of the same label are one row.

    Args:
        key: The setting, `section.name`; runs without it, of other mixers, are left out.
        split: The scores, "test" or "valid".

    Raises:
        ValueError: No run has such a setting; names similar ones.
    """
    settings = [run.resolved() for run in runs]
    of_value: dict[str, list[RunResult]] = {}
    for value, run in sorted(
        ((each[key], run) for each, run in zip(settings, runs, strict=True) if key in each),
        key=lambda pair: _order(pair[0]),
    ):
        of_value.setdefault(_text(value), []).append(run)
    if not of_value:
        known = sorted({name for each in settings for name in each})
        similar = difflib.get_close_matches(key, known, n=3, cutoff=0.5)
        similar += [name for name in known if name.endswith(f".{key}") and name not in similar]
        hint = f"; did you mean {' or '.join(similar)}?" if similar else ", such as optim.peak_lr or data.limit"
        raise ValueError(f"--by {key}: no run has this setting{hint}")
    scores: dict[str, dict[str, list[float]]] = {}
    for value, members in of_value.items():
        for group in group_runs(members):
            scores.setdefault(group.label, {}).setdefault(value, []).extend(group.values(split, "bleu"))
    return SettingScores(key, list(of_value), scores)


def setting_table(scores: SettingScores) -> str:
    """Format the scores as a Markdown table with a row for each group, and the value of its best mean."""
    rows = []
    for label, by_value in scores.scores.items():
        best = max(by_value, key=lambda value: statistics.fmean(by_value[value]))
        cells = [mean_and_deviation(by_value[value]) if value in by_value else "" for value in scores.values]
        rows.append([label, *cells, best])
    columns = [*scores.values, "best"]
    table = markdown_table([scores.key, *columns], rows, right=columns, padded=True)
    return f"BLEU by {scores.key}:\n\n{table}\n"


def draw_by_setting(scores: SettingScores, stem: Path, *, title: str | None = None) -> Path:
    """Write `stem`.png and `stem`.svg with a curve for each group, and return the path of the first.

    Numbers are drawn to scale, logarithmic where they span a wide range; other values side by side.
    """
    figure = new_figure(6, 4.2)
    axes = figure.subplots()
    if title:
        axes.set_title(title, fontsize=10)
    numbers = [_number(value) for value in scores.values]
    positions = [float(i) if number is None else number for i, number in enumerate(numbers)]
    if None in numbers:
        positions = [float(i) for i in range(len(numbers))]
    elif min(positions) > 0 and max(positions) / min(positions) >= _WIDE:
        axes.set_xscale("log")
    axes.set_xticks(positions, scores.values)
    axes.minorticks_off()
    place = dict(zip(scores.values, positions, strict=True))
    rows = scores.scores.items()
    draw_means(axes, {label: [(place[value], each) for value, each in row.items()] for label, row in rows})
    axes.set_xlabel(scores.key)
    return save(figure, stem, dpi=150)


def _order(value: Any) -> tuple[bool, float, str]:
    number = _number(_text(value))
    return number is None, number or 0.0, _text(value)


def _text(value: Any) -> str:
    return "null" if value is None else str(value)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
