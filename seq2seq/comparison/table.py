"""Format a comparison as a Markdown table and as CSV, with notes below it."""

from __future__ import annotations

import csv
import dataclasses
import functools
import io
import math
import shlex
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from seq2seq.comparison.bootstrap import Resampled
from seq2seq.comparison.estimates import Estimate, ScoreModel, mean, p_text
from seq2seq.comparison.groups import Group
from seq2seq.comparison.letters import letters
from seq2seq.comparison.scored_sets import first_signature
from seq2seq.comparison.significance import TESTS, Difference
from seq2seq.runs.results import NUMBERS, RunResult
from seq2seq.settings.values import clock
from seq2seq.system.markdown import markdown_table

# CPU time of training without validation; "time" includes validation.
_CPU_TIME = "training CPU time"
# Numbers of results.json that depend on the machine as well as on the model.
_MACHINES = ("target_tokens_per_second", "training_seconds", "training_cpu_seconds", "seconds")
# Columns that are aligned to the right.
_RIGHT = ("BLEU", "chrF", "COMET", "parameters", "tokens/s", "time", _CPU_TIME, "updates", "best step", "Δ BLEU")
# Notes below the tables.
_LETTERS = "Rows without a common letter differ at 0.05 (t tests of all pairs over seeds, Holm)."
_DIFFERENCES = "Intervals are 95% intervals, not adjusted; the p values of a column are adjusted together (Holm)."
_BOOTSTRAP = "The bootstrap is over seeds and sentences."
_SEEDS = "The t tests over seeds take one standard deviation from all rows"
# By the values of `ScoreModel.blocked`
_BLOCKS = {
    (True,): ", with seeds as blocks.",
    (False,): "; seeds are not blocks, because rows have different seeds.",
    (False, True): "; seeds are blocks where all rows of a table have the same seeds.",
}
_FLOOR = "A model below 2 BLEU hardly translates: differences between such scores say nothing about mixers."
_ONE_SEED = "For a mixer with one seed, the bootstrap is over sentences alone and says nothing about other seeds."
_VERDICTS = """\
Equivalent: less than {margin:g} BLEU apart by two one-sided t tests over seeds. Better or worse: p < 0.05 by the t test
over seeds, and no bootstrap interval with 0. Open: none of these."""


@dataclasses.dataclass(frozen=True)
class Table:
    """Groups of runs that were scored on one set, and differences between them.

    Args:
        title: Title of the set.
        split: "test" or "valid".
        runs: The runs, in the order in which they were found.
        groups: The groups of the runs, one for each row.
        model: The fit of their scores.
        differences: The tested differences.
        margin: The largest difference that counts as equivalence.
    """

    title: str
    split: str
    runs: Sequence[RunResult]
    groups: Sequence[Group]
    model: ScoreModel | None
    differences: Sequence[Difference]
    margin: float

    @functools.cached_property
    def letters(self) -> dict[str, str]:
        """The letters of the groups by label; groups that do not differ share a letter."""
        return letters(self.model)


def markdown(table: Table) -> str:
    """Format the table of the groups as Markdown, followed by the table of the differences.

    Empty columns are left out.
    """
    text = _without_empty([_cells(table, group) for group in table.groups])
    if table.differences:
        mixers = Counter(group.mixer for group in table.groups)
        # Labels with settings are long, and are needed only if groups share a mixer
        names = {group.label: group.mixer if mixers[group.mixer] == 1 else group.label for group in table.groups}
        text += f"\n{_without_empty([_difference_cells(each, names) for each in table.differences])}"
    return text


def legend(tables: Sequence[Table]) -> str:
    """Explain the letters and differences of all tables; "" without any."""
    parts = [_LETTERS] if any(table.letters for table in tables) else []
    differences = [each for table in tables for each in table.differences]
    if differences:
        parts.append(_DIFFERENCES)
        groups = [group for each in differences if each.bootstrap for group in (each.group, each.baseline)]
        single = [len({run.seed for run in group.runs}) == 1 for group in groups]
        if not all(single):
            parts[-1] += f"\n{_BOOTSTRAP}"
        if blocked := {table.model.blocked for table in tables if table.model}:
            parts[-1] += f"\n{_SEEDS}{_BLOCKS[tuple(sorted(blocked))]}"
        if any(single):
            parts.append(_ONE_SEED)
    scores = [score for table in tables for group in table.groups for score in group.values(table.split, "bleu")]
    if scores and min(scores) < 2:
        parts.append(_FLOOR)
    if any(each.verdict for each in differences):
        parts.append(_VERDICTS.format(margin=tables[0].margin))
    return "".join(f"\n{part}\n" for part in parts)


def _without_empty(rows: Sequence[Mapping[str, str]]) -> str:
    columns = [name for name in rows[0] if any(row[name] for row in rows)]
    texts = [[row[name] for name in columns] for row in rows]
    return markdown_table(columns, texts, right=_RIGHT, padded=True) + "\n"


def _cells(table: Table, group: Group) -> dict[str, str]:
    """Return the formatted cells of a group's row by column."""
    bleu, chrf, comet = (group.values(table.split, metric) for metric in ("bleu", "chrf", "comet"))
    estimate = mean(bleu)
    parameters = group.mean("parameters")
    return {
        "mixer": group.mixer,
        "settings": group.settings_text,
        "seeds": ", ".join(str(run.seed) for run in group.runs),
        "BLEU": mean_and_deviation(bleu),
        "95% interval": f"{estimate.interval[0]:.2f} to {estimate.interval[1]:.2f}" if estimate else "",
        "letters": table.letters.get(group.label, ""),
        "chrF": mean_and_deviation(chrf),
        "COMET": mean_and_deviation(comet),
        # Papers report model sizes in millions
        "parameters": f"{parameters / 1e6:.2f}M" if parameters >= 1e5 else _whole(parameters),
        "tokens/s": _by_accelerator(group, "target_tokens_per_second", _whole),
        "time": _by_accelerator(group, "seconds", _time),
        _CPU_TIME: _cpu_clock(group),
        "updates": _whole(group.mean("steps")),
        "best step": _whole(group.mean("best_step")),
    }


def _difference_cells(difference: Difference, names: Mapping[str, str]) -> dict[str, str]:
    """Return the formatted cells of a difference's row by column.

    Args:
        names: Name of each group by its label.
    """
    cells = {
        "difference": f"{names[difference.group.label]} - {names[difference.baseline.label]}",
        "Δ BLEU": f"{difference.value:+.2f}",
    }
    for test in TESTS:
        if test != "equivalence":
            found: Estimate | Resampled | None = getattr(difference, test)
            cells[f"{test} interval"] = f"{found.interval[0]:+.2f} to {found.interval[1]:+.2f}" if found else ""
        cells[f"{test} p"] = p_text(difference.adjusted[test]) if test in difference.adjusted else ""
    return cells | {"verdict": difference.verdict}


def _by_accelerator(group: Group, key: str, text: Callable[[float], str]) -> str:
    """Format a mean that depends on the machine, separately for CPU and GPU."""
    if len(group.accelerators) == 1:
        return text(group.mean(key))
    cells = [(kind, text(group.mean(key, kind))) for kind in group.accelerators]
    return ", ".join(f"{cell} ({kind})" for kind, cell in cells if cell)


def mean_and_deviation(values: Sequence[float]) -> str:
    """Format the mean, with the sample standard deviation if there are two values or more; "" without values."""
    if not values:
        return ""
    mean = f"{statistics.fmean(values):.2f}"
    return f"{mean} ± {statistics.stdev(values):.2f}" if len(values) > 1 else mean


def _whole(number: float) -> str:
    # nan: no run of the group recorded it
    return "" if math.isnan(number) else f"{number:,.0f}"


def _cpu_clock(group: Group) -> str:
    """Format the CPU time of training; "" if a run used a GPU or did not record it."""
    on_cpu = group.accelerators == ["cpu"]
    recorded = not any(math.isnan(run.number("training_cpu_seconds")) for run in group.runs)
    return clock(group.mean("training_cpu_seconds")) if on_cpu and recorded else ""


def _time(seconds: float) -> str:
    # nan: no run of the group recorded it
    return "" if math.isnan(seconds) else clock(seconds)


def scores_csv(tables: Sequence[Table]) -> str:
    """Format the groups of all tables as one CSV file with plain numbers."""
    return _csv([_numbers(table, group) for table in tables for group in table.groups])


def differences_csv(tables: Sequence[Table]) -> str:
    """Format the differences of all tables as one CSV file with plain numbers."""
    return _csv([_difference_numbers(table, each) for table in tables for each in table.differences])


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    # csv ends lines with \r\n by default
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    # A spreadsheet would run a text that begins with one of these as a formula
    for row in rows:
        formula = (key for key, cell in row.items() if isinstance(cell, str) and cell.startswith(tuple("=+-@\t\r")))
        writer.writerow({**row, **{key: f"'{row[key]}" for key in formula}})
    return text.getvalue()


def _numbers(table: Table, group: Group) -> dict[str, Any]:
    row: dict[str, Any] = {
        "mixer": group.mixer,
        "settings": group.settings_text,
        "seeds": " ".join(str(run.seed) for run in group.runs),
        "split": table.split,
        "set": table.title,
    }
    for metric in ("bleu", "chrf", "comet"):
        values = group.values(table.split, metric)
        # A single run has no sample deviation
        row[f"{metric}_mean"] = round(statistics.fmean(values), 4) if values else ""
        row[f"{metric}_std"] = round(statistics.stdev(values), 4) if len(values) > 1 else ""
    row |= _bounds("bleu", mean(group.values(table.split, "bleu")))
    row["letters"] = table.letters.get(group.label, "")
    for key in NUMBERS:
        # Do not average over CPU and GPU
        number = math.nan if key in _MACHINES and len(group.accelerators) > 1 else group.mean(key)
        # nan: no run recorded the number
        row[key] = "" if math.isnan(number) else round(number, 2)
    # As a shell reads them, since a path may have spaces
    row["runs"] = shlex.join(str(run.folder.path) for run in group.runs)
    return row


def _difference_numbers(table: Table, difference: Difference) -> dict[str, Any]:
    row: dict[str, Any] = {
        "group": difference.group.label,
        "baseline": difference.baseline.label,
        "split": table.split,
        "set": table.title,
        "bleu_difference": round(difference.value, 4),
        "margin": table.margin,
    }
    for name in TESTS:
        if name != "equivalence":
            row |= _bounds(name, getattr(difference, name))
        row[f"{name}_p"] = f"{difference.adjusted[name]:.4g}" if name in difference.adjusted else ""
    return row | {"verdict": difference.verdict}


def _bounds(name: str, found: Estimate | Resampled | None) -> dict[str, Any]:
    """Return the ends of an interval as columns of the CSV."""
    low, high = found.interval if found else ("", "")
    return {f"{name}_low": low and round(low, 4), f"{name}_high": high and round(high, 4)}


def _runs(count: int) -> str:
    return f"{count} run{'s' if count > 1 else ''}"


def notes(table: Table) -> str:
    """Describe the scores in a few lines: split, signature, revisions, machines, seeds, and runs without p values."""
    runs, split = table.runs, table.split
    # All runs of one set have the same signature
    lines = [f"Scores of the {split} set, {_runs(len(runs))}. BLEU: {first_signature(runs[0], split)}"]
    # Scores may differ between versions of the code
    revisions = Counter(str(run.results.get("git_revision") or "unknown") for run in runs)
    changed = any(name.endswith("+") for name in revisions)
    if len(revisions) > 1 or (changed and len(runs) > 1):
        counts = ", ".join(f"{name} ({_runs(count)})" for name, count in revisions.items())
        number = "Several revisions" if len(revisions) > 1 else "One revision"
        unknown = "; + marks uncommitted changes, which may differ between runs" if changed else ""
        lines.append(f"{number} of the code: {counts}{unknown}")
    # Runs on a CPU choose the number of threads unless trainer.threads is set
    threads = [run.results["threads"] for run in runs if isinstance(run.results.get("threads"), int)]
    trainers = [run.config.get("trainer", {}) for run in runs]
    devices = [each.get("devices", 1) * each.get("nodes", 1) for each in trainers]
    for name, found in (("threads", threads), ("devices", devices)):
        if len(numbers := sorted(Counter(found).items())) > 1:
            counts = ", ".join(f"{number} ({_runs(count)})" for number, count in numbers)
            lines.append(f"Several numbers of {name}, so times cannot be compared: {counts}; see trainer.{name}")
    repeated = [group for group in table.groups if len({run.seed for run in group.runs}) < len(group.runs)]
    if repeated:
        lines.append(f"Several runs of one seed are averaged: {', '.join(group.label for group in repeated)}")
    continued = [f"{run.name} ({run.continued})" for run in runs if run.continued]
    if continued:
        lines.append(f"Settings changed during training: {', '.join(continued)}")
    cut = [f"{run.name} ({run.cut_short})" for run in runs if run.cut_short]
    if cut:
        lines.append(f"Ended early by trainer.max_time, so scores depend on the machine: {', '.join(cut)}")
    without_lines = [run.name for run in runs if split == "test" and not run.translated]
    if without_lines:
        lines.append(f"No test translations, so no bootstrap: {', '.join(without_lines)}")
    return "".join(line + "\n" for line in lines)
