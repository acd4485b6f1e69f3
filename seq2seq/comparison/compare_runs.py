"""Compare the runs of folders and sweeps: print the table, and write it with its figure."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from seq2seq.comparison.comet import with_comet
from seq2seq.comparison.estimates import fit
from seq2seq.comparison.further_sets import further_sets
from seq2seq.comparison.groups import Group, group_runs
from seq2seq.comparison.score_plot import band, draw
from seq2seq.comparison.scored_sets import ScoredSet, scored_sets, text_differences
from seq2seq.comparison.setting_scores import Breakdown, require_setting, score_by_setting
from seq2seq.comparison.significance import choose_pairs, differences, plan, usual_baselines
from seq2seq.comparison.source_length import score_by_length
from seq2seq.comparison.table import Table, differences_csv, legend, markdown, notes, scores_csv
from seq2seq.comparison.translations import own_translations
from seq2seq.runs.results import CollectedRuns, RunResult, collect
from seq2seq.system.files import write_text
from seq2seq.system.markdown import without_markup

# Files besides the figures.
FILES = ("comparison.md", "comparison.csv", "comparison-differences.csv")
# Names of figures: of one table or of a numbered one, and of the breakdowns by source length and by a setting.
_FIGURES = re.compile(r"comparison(-\d+)?(-length|-seed|-\w+\.[\w.]+)?\.(png|svg)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ComparisonSettings:
    """Settings of a comparison.

    Args:
        split: The scores to compare, "test" or "valid".
        baseline: A mixer, a group's label or a run's folder; if None, one of `usual_baselines`.
        contrasts: Pairs of such names; if there are any, only these pairs are compared.
        samples: Number of bootstrap resamples.
        margin: The largest difference in BLEU that counts as equivalence.
        plan: Number of seeds for which the power of the tests is reported; None reports no power.
        sets: Further test sets that runs have translated: pairs of a name and a file prefix.
        comet_python: The interpreter of an environment with COMET; None: no COMET.
        comet_model: COMET's model.
        by_length: Bucket width in words for a table of BLEU by source length; None: no such table.
        by: A setting, `section.name`, for a table of BLEU by its values; None: no such table.
        ignore: Settings, `section.name`, in which the runs of one row may differ.
    """

    split: str
    baseline: str | None
    contrasts: Sequence[Sequence[str]]
    samples: int
    margin: float
    plan: int | None
    sets: Sequence[tuple[str, str]]
    comet_python: str | None
    comet_model: str
    by_length: int | None
    by: str | None
    ignore: Collection[str]


class _Report(NamedTuple):
    """Table of one test set, with its breakdowns by source length and by a setting."""

    table: Table
    parts: Sequence[Breakdown]

    def text(self, settings: ComparisonSettings, *, titled: bool) -> str:
        """Format all tables with their notes, under a title if there are several test sets."""
        table, baseline = self.table, settings.baseline
        title = f"## {table.title}\n\n" if titled else ""
        text = f"{title}{markdown(table)}\n{notes(table)}"
        if baseline and not table.differences and len(table.groups) > 1:
            text += f"No run here is the baseline {baseline}, so there are no differences.\n"
        if (
            table.differences
            and not (baseline or settings.contrasts)
            and len(usual := usual_baselines(table.groups)) > 1
        ):
            text += f"The baseline is '{usual[0].label}', the row of the Transformer with the most seeds; --baseline "
            text += f"chooses another: {', '.join(repr(group.label) for group in usual[1:])}.\n"
        if settings.plan and table.differences:
            text += plan(table.model, len(table.differences), settings.plan, settings.margin)
        return "\n".join([text, *(each.table() for each in self.parts)])

    def draw_figures(self, stem: Path, against: str, *, title: str | None) -> list[Path]:
        """Draw the figures, and return their paths without suffix."""
        table = self.table
        curves = {group.label: [run.curve(against) for run in group.runs] for group in table.groups}
        draw(table.groups, curves, table.split, stem, against, title=title)
        pairs = (pair for group in table.groups for pair in zip(group.runs, curves[group.label], strict=True))
        if missing := [run.name for run, curve in pairs if not curve]:
            lacking = f"no scores by {against} in metrics.csv"
            if against == "cpu":
                lacking = "no scores by CPU time in metrics.csv, or trained on a GPU"
            print(f"{stem.name}: no curve of {', '.join(missing)} ({lacking})", file=sys.stderr)
        if apart := [label for label, each in curves.items() if any(each) and not band(each)]:
            lacking = f"the scores of its runs by {against} have no range in common"
            lacking += "; try --against updates" if against != "updates" else ""
            print(f"{stem.name}: no curve of {', '.join(apart)} ({lacking})", file=sys.stderr)
        return [stem, *(each.draw(stem, title=title) for each in self.parts)]


def compare(
    patterns: Sequence[str], settings: ComparisonSettings, *, out: Path | None = None, figure_against: str | None = None
) -> CollectedRuns:
    """Print a table of the finished runs for each test set, and write them to a folder.

    Args:
        patterns: Run folders, sweep folders, folders of runs, or globs of these.
        settings: ComparisonSettings of the comparison.
        out: The folder for FILES; None writes nothing.
        figure_against: The axis of the curves in a figure for each table: "time", "cpu" or "updates"; None draws none.

    Returns:
        The runs that were compared, and the reasons why others were left out.

    Raises:
        ValueError: The baseline fits no group or several groups, or no run has a named setting.
    """
    # Nothing is printed for an empty comparison: the caller reports why each run was left out
    collected = collect(patterns, settings.split)
    if not collected.runs:
        return collected
    # An unknown setting is refused before any computation
    for option, keys in (("--by", [settings.by] if settings.by else []), ("--ignore", settings.ignore)):
        for key in keys:
            require_setting(collected.runs, key, option)
    if settings.split == "test":
        own = own_translations(collected.runs)
        collected = CollectedRuns(own.runs, collected.unusable + own.unusable)
    if settings.sets:
        # An unknown row is refused before further sets are scored
        _tables(collected.runs, settings)
        further = further_sets(collected.runs, dict(settings.sets))
        collected = CollectedRuns(collected.runs + further.runs, collected.unusable + further.unusable)
    if settings.comet_python:
        runs = with_comet(collected.runs, settings.comet_python, settings.comet_model)
        collected = CollectedRuns(runs, collected.unusable)
    text, reports = _reports(collected.runs, settings)
    # Print before writing the files, which may fail
    print(text, end="", flush=True)
    if out is not None:
        missing = "".join(f"{without_markup(str(each))}\n" for each in collected.unusable)
        files = _write(out, f"{text}\n{missing}" if missing else text, reports, figure_against)
        print(f"written: {', '.join(map(str, files))}")
    return collected


def _tables(
    runs: Sequence[RunResult], settings: ComparisonSettings
) -> tuple[list[ScoredSet], list[list[Group]], list[list[tuple[Group, Group]]]]:
    """Return the sets of a comparison, the groups of each set, and the pairs of groups to compare on it."""
    sets = scored_sets(runs, settings.split)
    groups = [group_runs(each.runs, settings.ignore) for each in sets]
    return sets, groups, choose_pairs(groups, settings.baseline, settings.contrasts)


def _reports(runs: Sequence[RunResult], settings: ComparisonSettings) -> tuple[str, list[_Report]]:
    """Make the tables of all sets and their text."""
    split, margin = settings.split, settings.margin
    sets, groups, pairs = _tables(runs, settings)
    reports = []
    for each, members, chosen in zip(sets, groups, pairs, strict=True):
        model = fit({group.label: group.by_seed(split, "bleu") for group in members})
        tested = differences(model, chosen, split, samples=settings.samples, margin=margin)
        table = Table(each.title, split, each.runs, members, model, tested, margin)
        parts = [
            score_by_length(members, settings.by_length) if settings.by_length else None,
            score_by_setting(each.runs, settings.by, split, settings.ignore) if settings.by else None,
        ]
        reports.append(_Report(table, [part for part in parts if part]))
    text = "\n".join(each.text(settings, titled=len(reports) > 1) for each in reports)
    text += legend([each.table for each in reports])
    # Name the difference between two sets of one corpus
    text += "".join(f"{line}\n" for line in (text_differences(sets) if split == "test" else ()))
    if settings.ignore:
        text += f"Runs of one row may differ in {', '.join(settings.ignore)}.\n"
    if settings.comet_python:
        text += f"COMET, times 100, by {settings.comet_model}.\n"
    return without_markup(text), reports


def _write(out: Path, text: str, reports: Sequence[_Report], figure_against: str | None) -> list[Path]:
    """Write the comparison to a folder, and return the files."""
    out.mkdir(parents=True, exist_ok=True)
    files = [out / name for name in FILES]
    tables = [each.table for each in reports]
    for path, content in zip(files, (text, scores_csv(tables), differences_csv(tables)), strict=True):
        write_text(path, content)
    if figure_against is None:
        return files
    # Figures of an earlier comparison may be more
    for path in out.iterdir():
        if _FIGURES.fullmatch(path.name):
            path.unlink()
    # The figure has the stem of the table, so that one glob names all files
    for number, report in enumerate(reports, 1):
        several = len(reports) > 1
        stem = out / (f"comparison-{number}" if several else "comparison")
        stems = report.draw_figures(stem, figure_against, title=report.table.title if several else None)
        files += [path.with_name(f"{path.name}{suffix}") for path in stems for suffix in (".png", ".svg")]
    return files
