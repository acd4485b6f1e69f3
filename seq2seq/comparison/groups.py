"""Group runs that differ only in the seed, and name the settings in which groups differ."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from seq2seq.runs.folder import HARMLESS
from seq2seq.runs.results import DIGESTS, RunResult
from seq2seq.settings.dicts import UNSET
from seq2seq.settings.values import written

# These settings do not change the weights but cost time, which matters under a time budget and in a table of speeds.
_SLOW = ("accelerator", "checkpoint_activations", "lightning.detect_anomaly", "profile", "strategy")
_COSTLY = {f"trainer.{key}" for key in _SLOW}
_IGNORED = {*HARMLESS, "seed"} - _COSTLY
# Settings outside the mixer whose default is the value of another setting.
_REFERENCES = {"tokenizer.vocab_size": "data.vocab_size", "optim.lr": "optim.peak_lr"}


@dataclasses.dataclass(frozen=True)
class Group:
    """Runs that differ only in the seed, sorted by seed.

    Attributes:
        mixer: Label of the runs' mixer.
        settings: The settings in which this group differs from others, by `section.name`.
        runs: The runs.
    """

    mixer: str
    settings: dict[str, Any]
    runs: list[RunResult]

    @property
    def label(self) -> str:
        """The mixer and the settings in which the group differs from others."""
        return " ".join(each for each in (self.mixer, self.settings_text) if each)

    @property
    def settings_text(self) -> str:
        """The settings in which the group differs from others, as on the command line."""
        return " ".join(f"{key}={written(value)}" for key, value in self.settings.items())

    def by_seed(self, split: str, metric: str) -> dict[int, float]:
        """Return a score by seed, as `seed_means` does; empty if a run lacks the score."""
        if any(metric not in run.results[split] for run in self.runs):
            return {}
        return seed_means((run.seed, run.score(split, metric)) for run in self.runs)

    def values(self, split: str, metric: str) -> list[float]:
        """Return the score of every seed."""
        return list(self.by_seed(split, metric).values())

    def mean(self, key: str, accelerator: str | None = None) -> float:
        """Return the mean of a number in results.json over the runs that have it; nan if no run has it.

        Args:
            accelerator: Use only the runs on this accelerator.
        """
        runs = [run for run in self.runs if accelerator in (None, run.accelerator)]
        numbers = [number for run in runs if not math.isnan(number := run.number(key))]
        return statistics.fmean(numbers) if numbers else math.nan

    @property
    def accelerators(self) -> list[str]:
        """List the kinds of device that the runs were trained on, "cpu" and "gpu", in alphabetical order."""
        return sorted({run.accelerator for run in self.runs})


def seed_means(scores: Iterable[tuple[int, float]]) -> dict[int, float]:
    """Return a score by seed; several scores of one seed are averaged, since they are not independent samples.

    Args:
        scores: Pairs of seed and score.
    """
    found: dict[int, list[float]] = {}
    for seed, score in scores:
        found.setdefault(seed, []).append(score)
    return {seed: statistics.fmean(values) for seed, values in found.items()}


def group_runs(runs: Sequence[RunResult], ignore: Collection[str] = ()) -> list[Group]:
    """Group runs in order of appearance, and name the settings in which the groups differ.

    Args:
        ignore: Settings, `section.name`, in which runs of one group may differ, besides the harmless ones.

    Three rules decide which runs form a group and how it is named:

    1. Identity: runs form one group if mixer and settings agree, except for the seed and harmless settings.
    2. Varying settings: a group shows every setting that differs between groups. Mixers have different settings by
       nature, so a setting of the mixer is shown only if groups of the same mixer differ in it, or if the command of a
       run set it.
    3. Copies: most settings of a mixer refer to a setting of the model (`${model.num_heads}`), and a few others to
       another section. A setting that varies exactly like one that is shown already is left out.
    """
    # Rule 1
    members = _members(runs, ignore)
    identities = [identity for identity, _ in members]
    # Rule 2 for settings outside the mixer, and their copies for rule 3
    varying = _varying(identities)
    general = {key for key in varying if not key.startswith("mixer.")}
    # Paths of equal files say nothing
    same_files = [digest for digest in DIGESTS if digest in identities[0] and digest not in varying]
    general -= {path for digest in same_files for path in DIGESTS[digest]}
    general -= {
        key
        for key, source in _REFERENCES.items()
        if source in general and _column(key, identities) == _column(source, identities)
    }
    copied = {_column(key, identities) for key in general}
    groups = []
    for identity, group in members:
        # Rule 2 for settings of the mixer: compare with groups of the same mixer only
        mixer = group[0].mixer
        same_mixer = [other for other, theirs in members if theirs[0].mixer == mixer]
        # Rule 3: `mixer.encoder.num_heads` varies exactly as `model.num_heads` does
        of_mixer = {key for key in _varying(same_mixer) if _column(key, identities) not in copied}
        # Show what a command set on purpose, unless all groups have the same value
        of_command = {key for run in group for key in run.command_keys if key.startswith("mixer.")}
        shown = general | of_mixer | (of_command & varying)
        # In the order of the identity, which is alphabetical
        settings = {key: value for key, value in identity.items() if key in shown}
        groups.append(Group(mixer, settings, group))
    return groups


def _members(runs: Sequence[RunResult], ignore: Collection[str]) -> list[tuple[dict[str, Any], list[RunResult]]]:
    """Group the runs by mixer and identity, and return each group, sorted by seed, with its identity.

    Files with a digest are compared by the digest. Their paths are part of the identity if all runs of a group have the
    same paths.
    """
    ignored = {*_IGNORED, *ignore}
    identities = [_identity(run, ignored) for run in runs]
    for digest in DIGESTS.keys() - {"data.corpus"}:
        # Runs of earlier versions have only paths, by which all runs are compared then
        if any(digest not in each for each in identities if any(each.get(path) for path in DIGESTS[digest])):
            for each in identities:
                each.pop(digest, None)
    # Compared by value, so that `true` and 1, or 0 and 0.0, are one setting
    members: list[tuple[dict[str, Any], list[tuple[RunResult, dict[str, Any]]]]] = []
    for run, identity in zip(runs, identities, strict=True):
        paths = {path for digest in DIGESTS if digest in identity for path in DIGESTS[digest]}
        content = {key: value for key, value in identity.items() if key not in paths}
        same = (group for known, group in members if group[0][0].mixer == run.mixer and known == content)
        if (group := next(same, None)) is None:
            members.append((content, group := []))
        group.append((run, identity))
    # Sorted, so that `resample_seeds` recognizes groups with equal seeds
    return [
        (_common([each for _, each in group]), sorted((run for run, _ in group), key=lambda run: run.seed))
        for _, group in members
    ]


def _common(identities: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the settings that have one value in all identities."""
    varying = _varying(identities)
    return {key: value for key, value in identities[0].items() if key not in varying}


def _identity(run: RunResult, ignored: set[str]) -> dict[str, Any]:
    """Return the settings that define the experiment of a run, by `section.name`."""
    values = run.resolved()
    # A copy of an ignored setting is ignored, too
    ignored = ignored | {
        key for key, source in _REFERENCES.items() if source in ignored and values.get(key) == values.get(source)
    }
    return {
        key: _plain(value)
        for key, value in sorted(values.items())
        if key not in ignored and not any(key.startswith(f"{name}.") for name in ignored)
    }


def _plain(value: Any) -> Any:
    """Return a whole number as int, so that 0 and 0.0 are written alike."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _varying(identities: Sequence[dict[str, Any]]) -> set[str]:
    """Return the keys whose values differ, or that only some groups have."""
    first = identities[0]
    keys = {key for identity in identities for key in identity}
    return {key for key in keys if any(each.get(key, UNSET) != first.get(key, UNSET) for each in identities)}


def _column(key: str, identities: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """Return the values of a setting in all groups."""
    return tuple(str(identity.get(key, UNSET)) for identity in identities)
