"""A comparison as a Markdown table, as CSV, and the notes below it."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from seq2seq.config.durations import clock
from seq2seq.experiments.comparison import Significance
from seq2seq.experiments.groups import Group
from seq2seq.experiments.results import NUMBERS, RunResult
from seq2seq.experiments.scored_sets import first_signature
from seq2seq.experiments.tables import markdown_table

# Without validation, as its name says: "time" has both.
_CPU_TIME = "training CPU time"
# Columns of numbers, aligned to the right.
_RIGHT = ("BLEU", "chrF", "parameters", "tokens/s", "time", _CPU_TIME, "updates", "best step", "Δ BLEU")


class Table(NamedTuple):
    """Groups of runs that were scored on one set, and their tests against one of them.

    Attributes:
        title: Title of the set.
        groups: The groups, a row each.
        baseline: The group that the others are compared with, if there is one.
        tests: Results of `significance`, by the group's label.
    """

    title: str
    groups: Sequence[Group]
    baseline: Group | None
    tests: Mapping[str, Significance]

    @property
    def pairs(self) -> int:
        """Number of pairs of runs that are tested, for which their p values are adjusted."""
        return sum(len(test.trials) for test in self.tests.values())


def markdown(table: Table, split: str) -> str:
    """Format a table as Markdown with a row for each group.

    Columns in which all cells are empty are left out.

    Args:
        split: "test" or "valid".
    """
    rows = [_cells(table, group, split) for group in table.groups]
    # Without several settings, or without a test, their columns would be empty
    columns = [name for name in rows[0] if any(row[name] for row in rows)]
    texts = [[row[name] for name in columns] for row in rows]
    return markdown_table(columns, texts, right=_RIGHT, padded=True) + "\n"


def _cells(table: Table, group: Group, split: str) -> dict[str, str]:
    """Format a group's row, by column."""
    test = table.tests.get(group.label)
    # Without any test there is no p column, which this word alone would keep
    without_test = "baseline" if group is table.baseline and table.tests else ""
    return {
        "mixer": group.mixer,
        "settings": group.settings_text,
        "seeds": ", ".join(str(run.seed) for run in group.runs),
        "BLEU": mean_and_deviation(group.values(split, "bleu")),
        "chrF": mean_and_deviation(group.values(split, "chrf")),
        "parameters": _count(group.mean("parameters")),
        "tokens/s": _whole(group.mean("target_tokens_per_second")),
        "time": _time(group.mean("seconds")),
        _CPU_TIME: _cpu_clock(group),
        "updates": _whole(group.mean("steps")),
        "best step": _whole(group.mean("best_step")),
        "Δ BLEU": f"{test.difference:+.2f}" if test else "",
        "p": test.p_text if test else without_test,
        # Of a single pair it would be the same number again
        "adjusted p": test.adjusted_text if test and table.pairs > 1 else "",
        "p over seeds": f"{test.over_seeds:.3f}" if test and test.over_seeds is not None else "",
    }


def mean_and_deviation(values: Sequence[float]) -> str:
    """Format the mean, and the sample standard deviation where there are two values or more."""
    mean = f"{statistics.fmean(values):.2f}"
    return f"{mean} ± {statistics.stdev(values):.2f}" if len(values) > 1 else mean


def _count(number: float) -> str:
    # In millions from 100,000 on, as papers report model sizes
    return f"{number / 1e6:.2f}M" if number >= 1e5 else _whole(number)


def _whole(number: float) -> str:
    # nan: no run of the group recorded it
    return "" if math.isnan(number) else f"{number:,.0f}"


def _cpu_clock(group: Group) -> str:
    """Format the CPU time of training, where no GPU did the work and every run recorded it."""
    on_cpu = all(run.results.get("accelerator", "cpu") == "cpu" for run in group.runs)
    recorded = not any(math.isnan(run.number("training_cpu_seconds")) for run in group.runs)
    return clock(group.mean("training_cpu_seconds")) if on_cpu and recorded else ""


def _time(seconds: float) -> str:
    # nan: no run of the group recorded it
    return "" if math.isnan(seconds) else clock(seconds)


def as_csv(tables: Sequence[Table], split: str) -> str:
    """Format all tables as one CSV file with plain numbers and a row for each group."""
    rows = [_numbers(table, group, split) for table in tables for group in table.groups]
    text = io.StringIO()
    # Csv's own default is \r\n
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _numbers(table: Table, group: Group, split: str) -> dict[str, Any]:
    test = table.tests.get(group.label)
    row: dict[str, Any] = {
        "mixer": group.mixer,
        "settings": group.settings_text,
        "seeds": " ".join(str(run.seed) for run in group.runs),
        "split": split,
        "set": table.title,
    }
    for metric in ("bleu", "chrf"):
        values = group.values(split, metric)
        # A single run has no sample deviation
        row[f"{metric}_mean"] = round(statistics.fmean(values), 4)
        row[f"{metric}_std"] = round(statistics.stdev(values), 4) if len(values) > 1 else ""
    for key in NUMBERS:
        mean = group.mean(key)
        # nan where an older run lacks the number: an empty cell, which readers take for missing
        row[key] = "" if math.isnan(mean) else round(mean, 2)
    row["baseline"] = table.baseline.label if table.baseline else ""
    row["bleu_difference"] = round(test.difference, 4) if test else ""
    row["p_values"] = " ".join(f"{trial.p_value:.4f}" for trial in test.trials) if test else ""
    row["adjusted_p_values"] = " ".join(f"{trial.adjusted:.4f}" for trial in test.trials) if test else ""
    row["p_value_over_seeds"] = f"{test.over_seeds:.4f}" if test and test.over_seeds is not None else ""
    row["runs"] = " ".join(str(run.folder.path) for run in group.runs)
    return row


def _runs(count: int) -> str:
    return f"{count} run{'s' if count > 1 else ''}"


def notes(groups: Sequence[Group], runs: Sequence[RunResult], split: str) -> str:
    """Describe the scores in a few lines: split, signature, revisions, threads, seeds, runs without significance."""
    # Runs of one set have the same
    lines = [f"Scores of the {split} set, {_runs(len(runs))}. BLEU: {first_signature(runs[0], split)}"]
    # Scores of two versions of the code may differ for reasons other than the mixer
    revisions = Counter(str(run.results.get("git_revision") or "unknown") for run in runs)
    if len(revisions) > 1:
        counts = ", ".join(f"{name} ({_runs(count)})" for name, count in revisions.items())
        lines.append(f"Not of one revision of the code: {counts}")
    # A run on a CPU chooses them by itself unless trainer.threads is set
    threads = Counter(run.results["threads"] for run in runs if isinstance(run.results.get("threads"), int))
    if len(threads) > 1:
        counts = ", ".join(f"{number} ({_runs(count)})" for number, count in sorted(threads.items()))
        lines.append(f"Not of one number of threads, so times cannot be compared: {counts}; see trainer.threads")
    repeated = [group for group in groups if len({run.seed for run in group.runs}) < len(group.runs)]
    if repeated:
        lines.append(f"Several runs of one seed, each counted: {', '.join(group.label for group in repeated)}")
    continued = [f"{run.name} ({run.continued})" for run in runs if run.continued]
    if continued:
        lines.append(f"Not trained in one go by these settings: {', '.join(continued)}")
    without_lines = [run.name for run in runs if split == "test" and not run.translated]
    if without_lines:
        lines.append(f"No test translations, so no significance: {', '.join(without_lines)}")
    return "".join(line + "\n" for line in lines)
