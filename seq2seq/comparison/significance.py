"""Compare groups of runs on one test set: choose the baseline, test for significance, and plan further seeds."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from seq2seq.comparison.bootstrap import Resampled, resample_seeds, resample_sentences
from seq2seq.comparison.estimates import LEVEL, Estimate, Power, ScoreModel, holm
from seq2seq.comparison.groups import Group
from seq2seq.comparison.translations import sentence_counts

# Tests of a difference. The p values of each test are adjusted for the number of differences.
TESTS = ("seeds", "bootstrap", "equivalence")


@dataclasses.dataclass(frozen=True)
class Difference:
    """Difference in mean BLEU of two groups, and tests of it.

    Args:
        group: The group.
        baseline: The group whose mean is subtracted.
        seeds: Estimate of the `ScoreModel` of all groups; None if no group has two seeds with different scores.
        bootstrap: Interval over resamples of seeds and sentences; None without translations.
        adjusted: p values by test, adjusted for the number of differences by `holm`. The null hypothesis of
            "equivalence" is a true difference outside the margin; `seeds` tests it.
    """

    group: Group
    baseline: Group
    value: float
    seeds: Estimate | None
    bootstrap: Resampled | None
    adjusted: Mapping[str, float]

    @property
    def verdict(self) -> str:
        """Better or worse, equivalent, both (a small but significant difference), or open.

        Better and worse also need a bootstrap interval without 0, if there is a bootstrap.
        """
        if not self.seeds:
            return ""
        low, high = (self.bootstrap or self.seeds).interval
        differs = self.adjusted["seeds"] < LEVEL and not low <= 0 <= high
        words = ["better" if self.value > 0 else "worse"] if differs else []
        words += ["equivalent"] if self.adjusted["equivalence"] < LEVEL else []
        return " but ".join(words) or "open"


def choose_pairs(
    tables: Sequence[Sequence[Group]], baseline: str | None, contrasts: Sequence[Sequence[str]]
) -> list[list[tuple[Group, Group]]]:
    """Choose the pairs of groups to compare in each table: the contrasts, or each group with the baseline.

    Args:
        tables: The groups of each test set.
        baseline: Name of a group; if None, the first of `usual_baselines`.
        contrasts: Names of two groups each.

    Returns:
        For each table, the pairs of groups that are both in it.

    Raises:
        ValueError: A name fits no group of any table, or several groups of one table; a contrast names one group
            twice, or the groups of another contrast.
    """
    if contrasts:
        chosen = [[_choose(tables, name, "--contrast") for name in names] for names in contrasts]
        earlier: set[frozenset[int]] = set()
        for names, (one, other) in zip(contrasts, chosen, strict=True):
            both = {frozenset(map(id, pair)) for pair in zip(one, other, strict=True) if all(pair)}
            # A difference that is tested twice would count twice in the correction
            if both & earlier:
                raise ValueError(f"--contrast {' '.join(names)}: these rows are compared already; leave it out")
            earlier |= both
            if same := [group for group, base in zip(one, other, strict=True) if group and group is base]:
                raise ValueError(f"--contrast {' '.join(names)}: both are the row '{same[0].label}'; name two rows")
        pairs = [[(one[number], other[number]) for one, other in chosen] for number in range(len(tables))]
    else:
        if baseline is None:
            bases: list[Group | None] = [usual_baselines(groups)[0] for groups in tables]
        else:
            bases = _choose(tables, baseline, "--baseline")
        pairs = [[(group, base) for group in groups] for groups, base in zip(tables, bases, strict=True)]
    return [[(one, other) for one, other in each if one and other and one is not other] for each in pairs]


def usual_baselines(groups: Sequence[Group]) -> list[Group]:
    """Return the Transformer's groups, most seeds first; without a Transformer, only the first group."""
    own = [group for group in groups if group.mixer == "transformer"]
    return sorted(own, key=lambda group: (-len({run.seed for run in group.runs}), group.label)) or [groups[0]]


def _choose(tables: Sequence[Sequence[Group]], name: str, option: str) -> list[Group | None]:
    """Find the group of each table by its label, or by its mixer, or by the name or folder of one of its runs."""
    fitting = [
        [group for group in groups if group.label == name]
        or [group for group in groups if _is_meant(group, name.rstrip("/"))]
        for groups in tables
    ]
    if not any(fitting):
        known = dict.fromkeys(group.label for groups in tables for group in groups)
        raise ValueError(f"{option} {name}: no such row; choose from {_listed(known)}")
    for each in fitting:
        if len(each) > 1:
            raise ValueError(f"{option} {name} fits several rows: {_listed(group.label for group in each)}")
    return [each[0] if each else None for each in fitting]


def _listed(labels: Iterable[str]) -> str:
    return ", ".join(f"'{label}'" for label in labels)


def _is_meant(group: Group, name: str) -> bool:
    names = [run.name for run in group.runs]
    # Resolved, since a path can be written in several ways
    folders = [run.folder.path.resolve() for run in group.runs]
    return name in (group.mixer, *names) or Path(name).resolve() in folders


def differences(
    model: ScoreModel | None, pairs: Sequence[tuple[Group, Group]], split: str, *, samples: int, margin: float
) -> list[Difference]:
    """Test the differences in BLEU between the groups of pairs, all on one set.

    Args:
        model: The fit of the scores of all groups.
        pairs: Each group with its baseline.
        split: "test" or "valid". Translations of the validation set are not saved, so it has no bootstrap.
        samples: Number of resampled test sets.
        margin: The largest difference that counts as equivalence.
    """
    resampled = _resampled(pairs, samples) if split == "test" else [None for _ in pairs]
    found = []
    for (group, baseline), bootstrap in zip(pairs, resampled, strict=True):
        one, other = (statistics.fmean(each.values(split, "bleu")) for each in (group, baseline))
        seeds = model.difference(group.label, baseline.label) if model else None
        found.append(Difference(group, baseline, value=one - other, seeds=seeds, bootstrap=bootstrap, adjusted={}))
    adjusted = [_p_values(each, margin) for each in found]
    for test in TESTS:
        tested = [p_values for p_values in adjusted if test in p_values]
        for p_values, p in zip(tested, holm([p_values[test] for p_values in tested]), strict=True):
            p_values[test] = p
    return [dataclasses.replace(each, adjusted=p) for each, p in zip(found, adjusted, strict=True)]


def _p_values(difference: Difference, margin: float) -> dict[str, float]:
    """Return the unadjusted p values of the tests that could be made."""
    seeds, bootstrap = difference.seeds, difference.bootstrap
    found = {"seeds": seeds.p_value, "equivalence": seeds.equivalence_p(margin)} if seeds else {}
    return found | ({"bootstrap": bootstrap.p_value} if bootstrap else {})


def _resampled(pairs: Sequence[tuple[Group, Group]], samples: int) -> list[Resampled | None]:
    """Bootstrap the groups of each pair whose runs all saved their translations, of more than one sentence."""
    groups = {group.label: group for pair in pairs for group in pair}
    translated = [run for group in groups.values() for run in group.runs if run.translated]
    counts: dict[str, dict[int, list[np.ndarray]]] = {}
    for label, group in groups.items():
        # Runs without saved sources joined the set by their settings; their text may differ
        if all(run.translated and run.test_lines("ref") == translated[0].test_lines("ref") for run in group.runs):
            for run in group.runs:
                counts.setdefault(label, {}).setdefault(run.seed, []).append(sentence_counts(run))
    several = len(counts) > 1 and len(translated[0].test_lines("ref")) > 1
    scores = resample_sentences(counts, samples) if several else {}
    found = [[scores.get(group.label) for group in pair] for pair in pairs]
    return [resample_seeds(one, other) if one and other else None for one, other in found]


def plan(model: ScoreModel | None, differences: int, seeds: int, margin: float) -> str:
    """Describe the power of the t test of each difference with this number of seeds.

    Args:
        model: The fit of the scores of all groups.
        differences: Number of tested differences.
        seeds: The planned number of seeds of each group.
        margin: The margin of equivalence; also the difference whose power is computed.
    """
    if not model:
        return "The deviation over seeds is unknown: no row has two seeds with different scores.\n"
    groups = len(model.scores) - model.blocked
    power = Power(model.deviation * math.sqrt(2 / seeds), groups * (seeds - 1))
    smallest = power._replace(level=LEVEL / differences).detectable()
    rows = f" ({smallest:.2f} where its p is the smallest of {differences})" if differences > 1 else ""
    without = " without effects of seeds" if model.blocked else ""
    return (
        f"Planned: {seeds} seeds. Scores{without} have a standard deviation of {model.deviation:.2f} BLEU "
        f"({model.freedom} degrees of freedom).\nIf this deviation is the true one, a difference of "
        f"{power.detectable():.2f}{rows} is significant in 80% of cases, and a difference of {margin:g} in "
        f"{power.of_difference(margin):.0%}.\n"
        f"Equal rows are shown to be equivalent within {margin:g} in {power.of_equivalence(margin):.0%}.\n"
    )
