"""Runs grouped by mixer and settings, seeds together: means, deviations and significance, as a table."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from seq2seq.config.dicts import UNSET
from seq2seq.experiments.folder import HARMLESS
from seq2seq.experiments.results import RunResult

# Settings that leave the weights alone may still cost time, of which a budget or a table of speeds tells.
_COSTLY = {f"trainer.{key}" for key in ("accelerator", "checkpoint_activations", "profile", "strategy")}
HARMLESS_HERE = {*HARMLESS, "seed"} - _COSTLY


@dataclasses.dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but the seed, in the order of their seeds."""

    mixer: str
    settings: dict[str, Any]  # those in which it differs from other groups
    runs: list[RunResult]

    @property
    def label(self) -> str:
        """The mixer, and what else sets the group apart."""
        return " ".join([self.mixer, *(f"{key}={value}" for key, value in self.settings.items())])

    def values(self, split: str, metric: str) -> list[float]:
        """A score of every run."""
        return [run.score(split, metric) for run in self.runs]

    def mean(self, key: str) -> float:
        """The mean of a number of results.json."""
        return statistics.fmean(run.number(key) for run in self.runs)


class Trial(NamedTuple):
    """One run against one of the baseline: the difference in BLEU, and p."""

    difference: float
    p_value: float


@dataclasses.dataclass(frozen=True)
class Significance:
    """A group against the baseline: the difference of mean BLEU, and the paired bootstrap of each pair of runs."""

    difference: float
    trials: list[Trial]

    def __str__(self) -> str:
        """The p values; with several, also how many pairs say better, and how many worse, at p < 0.05."""
        values = [trial.p_value for trial in self.trials]
        texts = f"{min(values):.3f}", f"{max(values):.3f}"
        span = texts[0] if texts[0] == texts[1] else f"{texts[0]} to {texts[1]}"
        if len(values) == 1:
            return span
        better, worse = (sum(t.p_value < 0.05 and sign * t.difference > 0 for t in self.trials) for sign in (1, -1))
        return f"{span}: {better} better, {worse} worse of {len(values)}"


def group_runs(runs: Sequence[RunResult]) -> list[Group]:
    """The runs by everything but the seed and harmless settings, in order of appearance.

    A setting of the mixer is shown among groups of the same mixer's label, and where a command gave it.
    """
    together: dict[str, list[RunResult]] = {}
    ignored = HARMLESS_HERE | ({"data.corpus"} if any("corpus" not in run.results for run in runs) else set())
    for run in runs:
        together.setdefault(json.dumps([run.mixer, _identity(run, ignored)], default=str), []).append(run)
    members = [sorted(group, key=lambda run: run.seed) for group in together.values()]
    settings = [_identity(group[0], ignored) for group in members]
    plain = _varying([{k: v for k, v in mine.items() if not k.startswith("mixer.")} for mine in settings])
    # most values of a mixer are references to the model's
    copies = {tuple(str(mine.get(key, UNSET)) for mine in settings) for key in plain}
    found = []
    for mine, group in zip(settings, members, strict=True):
        alike = [theirs for theirs, other in zip(settings, members, strict=True) if other[0].mixer == group[0].mixer]
        own = {key for key in _varying(alike) if tuple(str(each.get(key, UNSET)) for each in settings) not in copies}
        own |= {key for run in group for key in run.typed if key.startswith("mixer.") and _differs(key, settings)}
        shown = plain | own
        found.append(Group(group[0].mixer, {key: mine[key] for key in mine if key in shown}, group))
    return found


def _identity(run: RunResult, ignored: set[str]) -> dict[str, Any]:
    """The settings that make a run another experiment, by `section.name`."""
    return {
        key: value
        for key, value in sorted(run.resolved().items())
        if key not in ignored and not any(key.startswith(f"{name}.") for name in ignored)
    }


def _varying(settings: Sequence[dict[str, Any]]) -> set[str]:
    """The keys that not all of `settings` have with the same value."""
    return {key for key in {key for mine in settings for key in mine} if _differs(key, settings)}


def _differs(key: str, settings: Sequence[dict[str, Any]]) -> bool:
    return any(mine.get(key, UNSET) != settings[0].get(key, UNSET) for mine in settings)


def require_same_test(runs: Sequence[RunResult], split: str) -> None:
    """ValueError, naming two runs, unless all were scored in the same way and on the same sentences."""
    for run in runs[1:]:
        one, other = (r.results[split].get("signatures") for r in (runs[0], run))
        if one != other:
            raise ValueError(
                f"{runs[0].name} and {run.name} were scored differently ({_first(one)} and {_first(other)}); "
                "compare runs of one test set at a time"
            )
    saved = [(run, digest) for run in runs if (digest := run.test_digest())] if split == "test" else []
    for run, digest in saved[1:]:
        if digest != saved[0][1]:
            raise ValueError(_difference(saved[0][0], run))


def _first(signatures: Sequence[str] | None) -> str:
    return signatures[0] if signatures else "no signature"


def _difference(one: RunResult, other: RunResult) -> str:
    remedy = "their scores cannot be compared; name runs of one test set"
    for side, what in (("src", "source"), ("ref", "reference")):
        mine, theirs = one.test_lines(side) or [], other.test_lines(side) or []
        if len(mine) != len(theirs):
            return (
                f"the test sets differ: {one.name} has {len(mine):,} sentences, {other.name} {len(theirs):,}; {remedy}"
            )
        at = next((i for i, pair in enumerate(zip(mine, theirs, strict=True), 1) if pair[0] != pair[1]), None)
        if at:
            return f"the test sets of {one.name} and {other.name} differ, first in {what} {at:,}; {remedy}"
    return f"the test sets of {one.name} and {other.name} differ; {remedy}"


def choose_baseline(groups: Sequence[Group], name: str | None) -> Group:
    """The group that `name` means: a mixer, a label, or the folder of one of its runs; without a name, the first."""
    if name is None:
        return groups[0]
    found = [group for group in groups if _is_meant(group, name.rstrip("/"))]
    if len(found) == 1:
        return found[0]
    known = ", ".join(f"'{group.label}'" for group in found or groups)
    what = "is none of these" if not found else "fits more than one"
    raise ValueError(f"--baseline {name} {what}: {known}")


def _is_meant(group: Group, name: str) -> bool:
    runs = [known for run in group.runs for known in (run.name, str(run.folder.path))]
    return name in (group.mixer, group.label, *runs)


def significance(groups: Sequence[Group], baseline: Group, *, samples: int) -> dict[str, Significance]:
    """Paired bootstrap resampling (Koehn 2004) of each group's test translations against the baseline's, by label.

    Runs of the same seed are paired, where two groups have seeds in common, else runs in order. Groups in which no
    pair of runs saved its translations are left out.
    """
    found = {}
    for group in groups:
        if group is baseline:
            continue
        trials = [_trial(one, other, samples) for one, other in _pairs(baseline, group)]
        if trials:
            means = [statistics.fmean(each.values("test", "bleu")) for each in (group, baseline)]
            found[group.label] = Significance(means[0] - means[1], trials)
    return found


def _pairs(baseline: Group, group: Group) -> list[tuple[RunResult, RunResult]]:
    ours = [run for run in baseline.runs if run.test_lines("hyp")]
    theirs = [run for run in group.runs if run.test_lines("hyp")]
    by_seed = {run.seed: run for run in ours}
    common = [(by_seed[run.seed], run) for run in theirs if run.seed in by_seed]
    return common or list(zip(ours, theirs, strict=False))


def _trial(baseline: RunResult, run: RunResult, samples: int) -> Trial:
    from seq2seq.evaluation.metrics import paired_bootstrap

    signature = (run.results["test"].get("signatures") or [""])[0]
    tokenize = next((part[4:] for part in signature.split("|") if part.startswith("tok:")), "13a")
    systems = {"baseline": baseline.test_lines("hyp") or [], "system": run.test_lines("hyp") or []}
    references = run.test_lines("ref") or []
    rows = paired_bootstrap(systems, references, tokenize=tokenize, samples=samples, metrics=["bleu"])
    assert rows[1].p_value is not None
    return Trial(rows[1].value - rows[0].value, rows[1].p_value)


# ---- the table

COLUMNS = ("mixer", "settings", "seeds", "BLEU", "chrF", "parameters", "tokens/s", "time", "updates", "best step")
_RIGHT = {"BLEU", "chrF", "parameters", "tokens/s", "time", "updates", "best step", "Δ BLEU"}


def markdown(groups: Sequence[Group], split: str, baseline: Group, tests: dict[str, Significance]) -> str:
    """A Markdown table, one row a group; columns that would be empty are left out."""
    rows = [_cells(group, split, baseline, tests) for group in groups]
    columns = [name for name in (*COLUMNS, "Δ BLEU", "p") if any(row.get(name) for row in rows)]
    width = {name: max(len(name), 3, *(len(row.get(name, "")) for row in rows)) for name in columns}

    def line(cells: dict[str, str]) -> str:
        texts = [
            f"{cells.get(c, ''):>{width[c]}}" if c in _RIGHT else f"{cells.get(c, ''):<{width[c]}}" for c in columns
        ]
        return "| " + " | ".join(texts) + " |"

    rule = {c: "-" * (width[c] - 1) + (":" if c in _RIGHT else "-") for c in columns}
    return "\n".join([line({c: c for c in columns}), line(rule), *(line(row) for row in rows)]) + "\n"


def _cells(group: Group, split: str, baseline: Group, tests: dict[str, Significance]) -> dict[str, str]:
    test = tests.get(group.label)
    minutes, seconds = divmod(round(group.mean("seconds")) if not math.isnan(group.mean("seconds")) else 0, 60)
    return {
        "mixer": group.mixer,
        "settings": " ".join(f"{key}={value}" for key, value in group.settings.items()),
        "seeds": ", ".join(str(run.seed) for run in group.runs),
        "BLEU": spread(group.values(split, "bleu")),
        "chrF": spread(group.values(split, "chrf")),
        "parameters": _count(group.mean("parameters")),
        "tokens/s": f"{group.mean('target_tokens_per_second'):,.0f}",
        "time": f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}",
        "updates": f"{group.mean('steps'):,.0f}",
        "best step": f"{group.mean('best_step'):,.0f}",
        "Δ BLEU": f"{test.difference:+.2f}" if test else "",
        "p": str(test) if test else ("baseline" if group is baseline and tests else ""),
    }


def spread(values: Sequence[float]) -> str:
    """The mean, and the sample standard deviation where there are two values or more."""
    mean = f"{statistics.fmean(values):.2f}"
    return f"{mean} ± {statistics.stdev(values):.2f}" if len(values) > 1 else mean


def _count(number: float) -> str:
    return f"{number / 1e6:.2f}M" if number >= 1e5 else f"{number:,.0f}"


def as_csv(groups: Sequence[Group], split: str, baseline: Group, tests: dict[str, Significance]) -> str:
    """The same as CSV with plain numbers, one row a group."""
    rows = [_numbers(group, split, baseline, tests) for group in groups]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _numbers(group: Group, split: str, baseline: Group, tests: dict[str, Significance]) -> dict[str, Any]:
    test = tests.get(group.label)
    row: dict[str, Any] = {
        "mixer": group.mixer,
        "settings": " ".join(f"{key}={value}" for key, value in group.settings.items()),
        "seeds": " ".join(str(run.seed) for run in group.runs),
        "split": split,
    }
    for metric in ("bleu", "chrf"):
        values = group.values(split, metric)
        row[f"{metric}_mean"] = round(statistics.fmean(values), 4)
        row[f"{metric}_std"] = round(statistics.stdev(values), 4) if len(values) > 1 else ""
    for key in ("parameters", "target_tokens_per_second", "training_seconds", "seconds", "steps", "best_step"):
        mean = group.mean(key)
        row[key] = "" if math.isnan(mean) else round(mean, 2)
    row["baseline"] = baseline.label
    row["bleu_difference"] = round(test.difference, 4) if test else ""
    row["p_values"] = " ".join(f"{trial.p_value:.4f}" for trial in test.trials) if test else ""
    row["runs"] = " ".join(str(run.folder.path) for run in group.runs)
    return row
