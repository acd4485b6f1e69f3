"""Compare groups of runs on one test set: choose the baseline, and test for significance."""

from __future__ import annotations

import dataclasses
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from seq2seq.evaluation.metrics import TOKENIZERS, paired_bootstrap
from seq2seq.experiments.groups import Group
from seq2seq.experiments.p_values import holm, welch
from seq2seq.experiments.results import RunResult


class Trial(NamedTuple):
    """Difference in BLEU between a run and one of the baseline, and how probable it is by chance.

    Attributes:
        p_value: Of this pair by itself.
        adjusted: The p value adjusted for the number of all pairs that are tested, by `holm`.
    """

    difference: float
    p_value: float
    adjusted: float


@dataclasses.dataclass(frozen=True)
class Significance:
    """Difference in mean BLEU between a group and the baseline, and tests of it.

    Args:
        trials: Paired bootstrap of each pair of runs: would these runs differ on other sentences?
        over_seeds: p value of Welch's t-test between the scores of both groups: would other seeds differ? None if one
            of them has a single run.
    """

    difference: float
    trials: list[Trial]
    over_seeds: float | None = None

    @property
    def p_text(self) -> str:
        """The p values of the pairs, each by itself, as text."""
        return _span([trial.p_value for trial in self.trials])

    @property
    def adjusted_text(self) -> str:
        """The adjusted p values as text; of several pairs, also how many are better, and how many worse, at 0.05."""
        span = _span([trial.adjusted for trial in self.trials])
        if len(self.trials) == 1:
            return span
        # 0.05 is the conventional level, which the help text of `compare` names
        significant = [trial for trial in self.trials if trial.adjusted < 0.05]
        better = sum(trial.difference > 0 for trial in significant)
        worse = sum(trial.difference < 0 for trial in significant)
        return f"{span}: {better} better, {worse} worse of {len(self.trials)}"


def _span(values: Sequence[float]) -> str:
    # Compared as printed, so that no span reads '0.010 to 0.010'
    least = f"{min(values):.3f}"
    greatest = f"{max(values):.3f}"
    return least if least == greatest else f"{least} to {greatest}"


def choose_baselines(tables: Sequence[Sequence[Group]], name: str | None) -> list[Group | None]:
    """Choose for each table the group that its others are compared with, the first one if `name` is None.

    Args:
        tables: The groups of each test set.
        name: Mixer or label of a group, or the name or folder of one of its runs.

    Returns:
        None for a table in which no group fits.

    Raises:
        ValueError: No group of any table fits, or more than one of a table.
    """
    if name is None:
        return [groups[0] for groups in tables]
    fitting = [[group for group in groups if _is_meant(group, name.rstrip("/"))] for groups in tables]
    if not any(fitting):
        known = dict.fromkeys(group.label for groups in tables for group in groups)
        raise ValueError(f"--baseline {name} is none of these: {_listed(known)}")
    for each in fitting:
        if len(each) > 1:
            raise ValueError(f"--baseline {name} fits more than one: {_listed(group.label for group in each)}")
    return [each[0] if each else None for each in fitting]


def _listed(labels: Iterable[str]) -> str:
    return ", ".join(f"'{label}'" for label in labels)


def _is_meant(group: Group, name: str) -> bool:
    names = [run.name for run in group.runs]
    # However its path is written
    folders = [run.folder.path.resolve() for run in group.runs]
    return name in (group.mixer, group.label, *names) or Path(name).resolve() in folders


def significance(groups: Sequence[Group], baseline: Group, *, samples: int) -> dict[str, Significance]:
    """Test each group's BLEU on the test set against the baseline's.

    Translations are tested by paired bootstrap resampling, run against run, and scores over all seeds by `welch`.

    Runs of the same seed are paired where two groups have seeds in common, else runs in order. The p values of all
    pairs together are adjusted by `holm`: of many mixers like the baseline some look better by chance.

    Args:
        samples: Number of resampled test sets.

    Returns:
        Results by the group's label, without the baseline and groups in which no pair of runs saved its translations.

    Reference: Koehn 2004, Statistical significance tests for machine translation evaluation.
    """
    others = [group for group in groups if group is not baseline]
    tested = [[_tested(one, other, samples) for one, other in _pairs(baseline, group)] for group in others]
    adjusted = iter(holm([p_value for pairs in tested for _, p_value in pairs]))
    results = {}
    for group, pairs in zip(others, tested, strict=True):
        if pairs:
            # Over all runs of both groups, as in the table, also those without translations
            mean, expected = (statistics.fmean(each.values("test", "bleu")) for each in (group, baseline))
            trials = [Trial(*pair, adjusted=next(adjusted)) for pair in pairs]
            over_seeds = welch(*(each.values("test", "bleu") for each in (group, baseline)))
            results[group.label] = Significance(mean - expected, trials, over_seeds)
    return results


def _pairs(baseline: Group, group: Group) -> list[tuple[RunResult, RunResult]]:
    # The test resamples sentences, so it needs the translations and not just a score
    ours = [run for run in baseline.runs if run.translated]
    theirs = [run for run in group.runs if run.translated]
    # Of several runs with one seed, the first with the first, the second with the second
    by_seed = _numbered(ours)
    common = [(by_seed[key], run) for key, run in _numbered(theirs).items() if key in by_seed]
    # Both are sorted by seed; what the longer group has more is not tested
    pairs = common or list(zip(ours, theirs, strict=False))
    # Runs without the sources joined the set by their settings, and may have been scored on another text
    return [(one, other) for one, other in pairs if one.test_lines("ref") == other.test_lines("ref")]


def _numbered(runs: Sequence[RunResult]) -> dict[tuple[int, int], RunResult]:
    """Key each run by its seed and its number among the runs with that seed."""
    count: Counter[int] = Counter()
    numbered = {}
    for run in runs:
        numbered[run.seed, count[run.seed]] = run
        count[run.seed] += 1
    return numbered


def _tested(baseline: RunResult, run: RunResult, samples: int) -> tuple[float, float]:
    """Return the difference in BLEU of two runs, and its p value."""
    tokenize, lowercase = scoring(run)
    rows = paired_bootstrap(
        {"baseline": baseline.test_lines("hyp") or [], "system": run.test_lines("hyp") or []},
        run.test_lines("ref") or [],
        tokenize=tokenize,
        lowercase=lowercase,
        samples=samples,
        metrics=["bleu"],
    )
    # Rows in the order of the systems; the baseline itself has no p value
    first, second = rows
    assert second.p_value is not None
    return second.value - first.value, second.p_value


def scoring(run: RunResult) -> tuple[str, bool]:
    """Return the tokenizer of a run's BLEU, and True if it ignores case."""
    # sacreBLEU's signature reads `nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:...`
    words = (run.signatures("test") or [""])[0].split("|")
    values = dict(word.split(":", 1) for word in words if ":" in word)
    named = values.get("tok", "13a")
    # The signature of some tokenizers goes on with a version: ja-mecab-0.996-IPA
    fitting = [name for name in TOKENIZERS if named == name or named.startswith(f"{name}-")]
    return max(fitting, key=len, default=named), values.get("case") == "lc"
