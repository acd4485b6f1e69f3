"""Compare groups of runs on one test set: choose the baseline, and test for significance."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from seq2seq.evaluation.metrics import TOKENIZERS, bleu_counts
from seq2seq.experiments.bootstrap import Resampled, resample_seeds, resample_sentences
from seq2seq.experiments.estimates import LEVEL, Estimate, paired, welch
from seq2seq.experiments.groups import Group
from seq2seq.experiments.p_values import holm
from seq2seq.experiments.results import RunResult

# Tests of a difference, each adjusted for the number of groups by itself.
TESTS = ("welch", "paired", "bootstrap", "equivalence")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference:
    """Difference in mean BLEU between a group and the baseline, and tests of it.

    Args:
        value: The difference.
        welch: Its estimate over seeds, whichever they are; None if one of the groups has a single one.
        paired: Its estimate over pairs of equal seeds; None if the groups have others, or a single one.
        resampled: Over resamples of seeds and sentences; None without translations.
        adjusted: p values by the name of the test, adjusted for the number of groups by `holm`. That of "equivalence"
            is of a difference outside the margin, by Welch's estimate.
    """

    value: float
    welch: Estimate | None
    paired: Estimate | None
    resampled: Resampled | None
    adjusted: Mapping[str, float]

    @property
    def verdict(self) -> str:
        """The answer over seeds: better, worse, equivalent (and also better or worse, if by less), or open."""
        if self.welch is None:
            return ""
        better = "better" if self.value > 0 else "worse"
        words = [better] if self.adjusted["welch"] < LEVEL else []
        return " but ".join([*words, *(["equivalent"] if self.adjusted["equivalence"] < LEVEL else [])]) or "open"


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


def differences(
    groups: Sequence[Group], baseline: Group, split: str, *, samples: int, margin: float
) -> dict[str, Difference]:
    """Test each group's BLEU against the baseline's.

    Args:
        split: "test" or "valid"; of the validation set no translations are saved, so that there is no bootstrap.
        samples: Number of resampled test sets.
        margin: Differences up to this one count as equivalence.

    Returns:
        Results by the group's label, without the baseline.
    """
    resampled = _resampled(groups, baseline, samples) if split == "test" else {}
    scores = {group.label: group.by_seed(split, "bleu") for group in groups}
    base = scores.pop(baseline.label)
    found = {
        label: Difference(
            value=statistics.fmean(each.values()) - statistics.fmean(base.values()),
            welch=welch([*each.values()], [*base.values()]),
            paired=paired(each, base),
            resampled=resampled.get(label),
            adjusted={},
        )
        for label, each in scores.items()
    }
    adjusted = {label: _p_values(each, margin) for label, each in found.items()}
    for test in TESTS:
        labels = [label for label, p_values in adjusted.items() if test in p_values]
        for label, p in zip(labels, holm([adjusted[label][test] for label in labels]), strict=True):
            adjusted[label][test] = p
    return {label: dataclasses.replace(each, adjusted=adjusted[label]) for label, each in found.items()}


def _p_values(difference: Difference, margin: float) -> dict[str, float]:
    """Return the p values of the tests that there are, not adjusted."""
    tests = zip(TESTS, (difference.welch, difference.paired, difference.resampled), strict=False)
    found = {name: test.p_value for name, test in tests if test}
    return found | ({"equivalence": difference.welch.equivalence_p(margin)} if difference.welch else {})


def _resampled(groups: Sequence[Group], baseline: Group, samples: int) -> dict[str, Resampled]:
    """Bootstrap the groups that saved their translations against the baseline, by label."""
    references = next((run.test_lines("ref") for run in baseline.runs if run.translated), None)
    counts: dict[str, dict[int, list[np.ndarray]]] = {}
    for group in groups:
        for run in group.runs:
            # Runs without the sources joined the set by their settings, and may have been scored on another text
            if references and run.translated and run.test_lines("ref") == references:
                counts.setdefault(group.label, {}).setdefault(run.seed, []).append(_counts(run))
    if len(counts) < 2:
        return {}
    scores = resample_sentences(counts, samples)
    base = scores.pop(baseline.label)
    return {label: resample_seeds(each, base) for label, each in scores.items()}


def _counts(run: RunResult) -> np.ndarray:
    tokenize, lowercase = scoring(run)
    hypotheses, references = (run.test_lines(side) or [] for side in ("hyp", "ref"))
    return bleu_counts(hypotheses, references, tokenize=tokenize, lowercase=lowercase)


def scoring(run: RunResult) -> tuple[str, bool]:
    """Return the tokenizer of a run's BLEU, and True if it ignores case."""
    # sacreBLEU's signature reads `nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:...`
    words = (run.signatures("test") or [""])[0].split("|")
    values = dict(word.split(":", 1) for word in words if ":" in word)
    named = values.get("tok", "13a")
    # The signature of some tokenizers goes on with a version: ja-mecab-0.996-IPA
    fitting = [name for name in TOKENIZERS if named == name or named.startswith(f"{name}-")]
    return max(fitting, key=len, default=named), values.get("case") == "lc"
