"""BLEU by the value of a setting: of a sweep over learning rates, say, or over sizes of the training data."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from seq2seq.experiments.comparison_table import mean_and_deviation
from seq2seq.experiments.figures import add_title, draw_means, new_figure, save
from seq2seq.experiments.groups import group_runs, seed_means
from seq2seq.experiments.results import RunResult
from seq2seq.experiments.tables import markdown_table
from seq2seq.settings.values import near, written

# From this ratio of the largest value to the least on, an axis is logarithmic.
_WIDE = 3


class SettingScores(NamedTuple):
    """BLEU of runs by the value of one setting.

    Attributes:
        key: The setting, `section.name`.
        values: Its values as text, numbers first and in order.
        scores: By a group's label and by value, the BLEU of every seed.
    """

    key: str
    values: list[str]
    scores: dict[str, dict[str, list[float]]]


def require_setting(runs: Sequence[RunResult], key: str, option: str) -> None:
    """Check that a run has the setting that an option names.

    Raises:
        ValueError: None has; names similar ones.
    """
    known = sorted({name for run in runs for name in run.resolved()})
    if key in known:
        return
    similar = [name for name in known if name.endswith(f".{key}")] or near(key, known)
    hint = f"; did you mean {' or '.join(similar)}?" if similar else ", such as optim.peak_lr or data.limit"
    raise ValueError(f"{option} {key}: no run has this setting{hint}")


def score_by_setting(
    runs: Sequence[RunResult], key: str, split: str, ignore: Collection[str] = ()
) -> SettingScores | None:
    """Collect the scores of runs by the value of a setting.

    A row is a group of the comparison in which the setting, and settings that have its value everywhere, may differ.

    Args:
        runs: Runs on one set; those without the setting, of other mixers, are left out.
        key: The setting, `section.name`.
        split: The scores, "test" or "valid".

    Returns:
        None if none of the runs has the setting.
    """
    settings = [(run, run.resolved()) for run in runs]
    settings = [(run, each) for run, each in settings if key in each]
    if not settings:
        return None
    copies = {name for _, each in settings for name in each}
    copies = {name for name in copies if all(name in each and each[name] == each[key] for _, each in settings)}
    # With other settings of the data the corpus is another one
    corpus = {"data.corpus"} if key.startswith("data.") else set()
    values = {written(each[key]) for _, each in settings}
    scores: dict[str, dict[str, list[float]]] = {}
    for group in group_runs([run for run, _ in settings], {key, *copies, *corpus, *ignore}):
        row: dict[str, list[tuple[int, float]]] = {}
        for run in group.runs:
            row.setdefault(written(run.resolved()[key]), []).append((run.seed, run.score(split, "bleu")))
        scores[group.label] = {value: [*seed_means(row[value]).values()] for value in sorted(row, key=_order)}
    return SettingScores(key, sorted(values, key=_order), scores)


def setting_table(scores: SettingScores) -> str:
    """Format the scores as a Markdown table with a row for each group and, of several values, that of its best mean."""
    rows = []
    last = ["best"] if len(scores.values) > 1 else []
    for label, by_value in scores.scores.items():
        best = max(by_value, key=lambda value: statistics.fmean(by_value[value]))
        cells = [mean_and_deviation(by_value[value]) if value in by_value else "" for value in scores.values]
        rows.append([label, *cells, *[best for _ in last]])
    columns = [*scores.values, *last]
    table = markdown_table([scores.key, *columns], rows, right=columns, padded=True)
    return f"BLEU by {scores.key}:\n\n{table}\n"


def draw_by_setting(scores: SettingScores, stem: Path, *, title: str | None = None) -> Path:
    """Write `stem`.png and `stem`.svg with a curve for each group, and return the path of the first.

    Numbers are drawn to scale, logarithmic where they span a wide range; other values side by side.
    """
    figure = new_figure(6, 4.2)
    axes = figure.subplots()
    if title:
        add_title(figure, title, size=10)
    numbers = [number for number in map(_number, scores.values) if number is not None]
    to_scale = len(numbers) == len(scores.values)
    positions = numbers if to_scale else [float(i) for i in range(len(scores.values))]
    if to_scale and min(positions) > 0 and max(positions) / min(positions) >= _WIDE:
        axes.set_xscale("log")
    axes.set_xticks(positions, scores.values)
    axes.minorticks_off()
    place = dict(zip(scores.values, positions, strict=True))
    rows = scores.scores.items()
    draw_means(figure, axes, {label: [(place[value], each) for value, each in row.items()] for label, row in rows})
    axes.set_xlabel(scores.key)
    return save(figure, stem, dpi=150)


def _order(text: str) -> tuple[bool, float, str]:
    number = _number(text)
    return number is None, number or 0.0, text


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
