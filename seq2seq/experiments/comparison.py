"""Compare groups of runs: refuse different test sets, choose the baseline, and test for significance."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from seq2seq.evaluation.metrics import paired_bootstrap
from seq2seq.experiments.groups import Group
from seq2seq.experiments.results import RunResult


class Trial(NamedTuple):
    """Difference in BLEU between a run and one of the baseline, and its p value."""

    difference: float
    p_value: float


@dataclasses.dataclass(frozen=True)
class Significance:
    """Difference in mean BLEU between a group and the baseline, with the paired bootstrap of each pair of runs."""

    difference: float
    trials: list[Trial]

    def __str__(self) -> str:
        """Format the p values; of several pairs, also how many are better, and how many worse, at p < 0.05."""
        values = [trial.p_value for trial in self.trials]
        # compared as printed, so that no span reads '0.010 to 0.010'
        least = f"{min(values):.3f}"
        greatest = f"{max(values):.3f}"
        span = least if least == greatest else f"{least} to {greatest}"
        if len(values) == 1:
            return span
        # 0.05 is the conventional level, which the help text of `compare` names
        significant = [trial for trial in self.trials if trial.p_value < 0.05]
        better = sum(trial.difference > 0 for trial in significant)
        worse = sum(trial.difference < 0 for trial in significant)
        return f"{span}: {better} better, {worse} worse of {len(values)}"


def require_same_test(runs: Sequence[RunResult], split: str) -> None:
    """Check that all runs were scored in the same way and on the same sentences.

    Args:
        split: "test" or "valid".

    Raises:
        ValueError: They were not; names two runs.
    """
    # equal signatures mean the same tokenization, case and smoothing, so scores on one scale
    for run in runs[1:]:
        one, other = (each.results[split].get("signatures") for each in (runs[0], run))
        if one != other:
            raise ValueError(
                f"{runs[0].name} and {run.name} were scored differently ({_first(one)} and {_first(other)}); "
                "compare runs of one test set at a time"
            )
    # runs save the sentences of the test set only
    if split != "test":
        return
    # a run without saved sentences cannot be checked, and passes
    digests = [(run, digest) for run in runs if (digest := run.test_digest())]
    for run, digest in digests[1:]:
        first, expected = digests[0]
        if digest != expected:
            raise ValueError(_difference(first, run))


def _first(signatures: Sequence[str] | None) -> str:
    return signatures[0] if signatures else "no signature"


def _difference(one: RunResult, other: RunResult) -> str:
    """Describe the first difference between the test sets of two runs."""
    remedy = "their scores cannot be compared; name runs of one test set"
    for side, name in (("src", "source"), ("ref", "reference")):
        mine = one.test_lines(side) or []
        theirs = other.test_lines(side) or []
        # first, since with a sentence missing all later lines would differ as well
        if len(mine) != len(theirs):
            return (
                f"the test sets differ: {one.name} has {len(mine):,} sentences, {other.name} {len(theirs):,}; {remedy}"
            )
        for number, (my_line, their_line) in enumerate(zip(mine, theirs, strict=True), 1):
            if my_line != their_line:
                return f"the test sets of {one.name} and {other.name} differ, first in {name} {number:,}; {remedy}"
    # all lines agree, so the bytes after the last newline differ
    return f"the test sets of {one.name} and {other.name} differ; {remedy}"


def choose_baseline(groups: Sequence[Group], name: str | None) -> Group:
    """Choose the group that others are compared with, the first one if `name` is None.

    Args:
        name: Mixer or label of a group, or the name or folder of one of its runs.

    Raises:
        ValueError: No group fits, or more than one.
    """
    if name is None:
        return groups[0]
    fitting = [group for group in groups if _is_meant(group, name.rstrip("/"))]
    if len(fitting) == 1:
        return fitting[0]
    # the groups to choose from: those that fit, if several do
    known = ", ".join(f"'{group.label}'" for group in fitting or groups)
    problem = "fits more than one" if fitting else "is none of these"
    raise ValueError(f"--baseline {name} {problem}: {known}")


def _is_meant(group: Group, name: str) -> bool:
    names = [run.name for run in group.runs]
    paths = [str(run.folder.path) for run in group.runs]
    return name in (group.mixer, group.label, *names, *paths)


def significance(groups: Sequence[Group], baseline: Group, *, samples: int) -> dict[str, Significance]:
    """Test each group's test translations against the baseline's by paired bootstrap resampling.

    Runs of the same seed are paired where two groups have seeds in common, else runs in order.

    Args:
        samples: Number of resampled test sets.

    Returns:
        Results by the group's label, without the baseline and groups in which no pair of runs saved its translations.

    Reference: Koehn 2004, Statistical significance tests for machine translation evaluation.
    """
    results = {}
    for group in groups:
        if group is baseline:
            continue
        trials = [_trial(one, other, samples) for one, other in _pairs(baseline, group)]
        if trials:
            # over all runs of both groups, as in the table, also those without translations
            mean, expected = (statistics.fmean(each.values("test", "bleu")) for each in (group, baseline))
            results[group.label] = Significance(mean - expected, trials)
    return results


def _pairs(baseline: Group, group: Group) -> list[tuple[RunResult, RunResult]]:
    # the test resamples sentences, so it needs the translations and not just a score
    ours = [run for run in baseline.runs if run.test_lines("hyp")]
    theirs = [run for run in group.runs if run.test_lines("hyp")]
    # of several baseline runs with one seed the last is used
    by_seed = {run.seed: run for run in ours}
    common = [(by_seed[run.seed], run) for run in theirs if run.seed in by_seed]
    # both are sorted by seed; what the longer group has more is not tested
    return common or list(zip(ours, theirs, strict=False))


def _trial(baseline: RunResult, run: RunResult, samples: int) -> Trial:
    # sacreBLEU's signature reads `nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:...`
    signature = (run.results["test"].get("signatures") or [""])[0]
    tokenizers = [part.removeprefix("tok:") for part in signature.split("|") if part.startswith("tok:")]
    rows = paired_bootstrap(
        {"baseline": baseline.test_lines("hyp") or [], "system": run.test_lines("hyp") or []},
        run.test_lines("ref") or [],
        tokenize=tokenizers[0] if tokenizers else "13a",
        samples=samples,
        metrics=["bleu"],
    )
    # rows in the order of the systems; the baseline itself has no p value
    first, second = rows
    assert second.p_value is not None
    return Trial(second.value - first.value, second.p_value)
