"""BLEU by the values of a setting, such as a sweep over learning rates or over sizes of the training data."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from seq2seq.comparison.groups import group_runs, seed_means
from seq2seq.comparison.table import mean_and_deviation
from seq2seq.runs.results import DIGESTS, RunResult
from seq2seq.settings.values import near, written
from seq2seq.system.canvas import add_title, draw_means, new_figure, save
from seq2seq.system.markdown import markdown_table

# An axis is logarithmic if the ratio of the largest to the smallest value is at least this.
_WIDE = 3


class Breakdown(NamedTuple):
    """BLEU of groups of runs by the values of a setting, or by buckets of the source length.

    Attributes:
        name: Suffix of the figure's file.
        title: Title of the table.
        axis: First cell of the table's header, and label of the figure's axis.
        positions: Position on the axis by the name of a value or bucket, in order.
        scores: BLEU of every seed, by the group's label and then by value or bucket.
        counts: Sentences of each bucket; empty for the values of a setting.
        best_note: Line below a table that names the best values.
    """

    name: str
    title: str
    axis: str
    positions: Mapping[str, float]
    scores: Mapping[str, Mapping[str, Sequence[float]]]
    counts: Sequence[int] = ()
    best_note: str = ""

    def table(self) -> str:
        """Format a Markdown table with a row for each group; a last column names the best of several values.

        The best seed says nothing about other runs.
        """
        parts = list(self.positions)
        last = ["best"] if len(parts) > 1 and not self.counts and self.name != "seed" else []
        rows = [["sentences", *(f"{count:,}" for count in self.counts)]] if self.counts else []
        for label, by_part in self.scores.items():
            best = max(by_part, key=lambda part: statistics.fmean(by_part[part]))
            cells = [mean_and_deviation(by_part[part]) if part in by_part else "" for part in parts]
            rows.append([label, *cells, *[best for _ in last]])
        columns = [*parts, *last]
        note = self.best_note if last else ""
        return f"{self.title}:\n\n{markdown_table([self.axis, *columns], rows, right=columns, padded=True)}\n{note}"

    def draw(self, stem: Path, *, title: str | None = None) -> Path:
        """Write `<stem>-<name>`.png and .svg with a curve for each group, and return the path without suffix."""
        figure = new_figure(6, 4.2)
        axes = figure.subplots()
        if title:
            add_title(figure, title, size=10)
        axes.set_xlabel(self.axis)
        if self.counts:
            axes.set_ylim(bottom=0)
        else:
            positions = list(self.positions.values())
            if min(positions) > 0 and max(positions) / min(positions) >= _WIDE:
                axes.set_xscale("log")
            axes.set_xticks(positions, list(self.positions))
            axes.minorticks_off()
        curves = {
            label: [(self.positions[part], values) for part, values in by_part.items()]
            for label, by_part in self.scores.items()
        }
        draw_means(figure, axes, curves)
        path = stem.with_name(f"{stem.name}-{self.name}")
        save(figure, path, dpi=150)
        return path


def require_setting(runs: Sequence[RunResult], key: str, option: str) -> None:
    """Check that at least one run has the setting that an option names.

    Raises:
        ValueError: No run has it; suggests similar settings.
    """
    known = sorted({name for run in runs for name in run.resolved()})
    if key in known:
        return
    similar = [name for name in known if name.endswith(f".{key}")] or near(key, known)
    hint = f"; did you mean {' or '.join(similar)}?" if similar else ", such as optim.peak_lr or data.limit"
    raise ValueError(f"{option} {key}: no run has this setting{hint}")


def score_by_setting(runs: Sequence[RunResult], key: str, split: str, ignore: Collection[str] = ()) -> Breakdown | None:
    """Collect the scores of runs by the value of a setting.

    The runs of a row may differ in this setting, and in settings that always equal it.

    Args:
        runs: Runs on one set. Runs without the setting, of other mixers, are left out.
        key: The setting, `section.name`.
        split: The scores, "test" or "valid".

    Returns:
        None if none of the runs has the setting.
    """
    settings = [(run, each) for run in runs if key in (each := run.resolved())]
    if not settings:
        return None
    # A setting that all runs have is one of the first run; `key` is its own copy
    first = settings[0][1]
    copies = {name for name in first if all(name in each and each[name] == each[key] for _, each in settings)}
    # Another value of a data setting makes another corpus, and another path another file
    digests = {name for name in DIGESTS if name.startswith(key.partition(".")[0])}
    digests = {name for name in digests if len({str(each.get(name)) for _, each in settings}) > 1}
    values = sorted({written(each[key]) for _, each in settings}, key=_order)
    scores: dict[str, dict[str, list[float]]] = {}
    for group in group_runs([run for run, _ in settings], {*copies, *digests, *ignore}):
        row: dict[str, list[tuple[int, float]]] = {}
        for run in group.runs:
            row.setdefault(written(run.resolved()[key]), []).append((run.seed, run.score(split, "bleu")))
        scores[group.label] = {value: [*seed_means(row[value]).values()] for value in sorted(row, key=_order)}
    numbers = [number for number in map(_number, values) if number is not None]
    # Numbers are drawn to scale, other values at equal distances
    positions = numbers if len(numbers) == len(values) else [float(i) for i in range(len(values))]
    note = "The best values are fitted to the test set; choose values with --split valid.\n" if split == "test" else ""
    places = dict(zip(values, positions, strict=True))
    return Breakdown(key, f"BLEU by {key}", key, places, scores, best_note=note)


def _order(text: str) -> tuple[bool, float, str]:
    number = _number(text)
    return number is None, number or 0.0, text


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
