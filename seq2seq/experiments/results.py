"""What finished runs left in their folders: settings, scores, test translations and the curve of validation scores."""

from __future__ import annotations

import csv
import dataclasses
import glob
import hashlib
import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from seq2seq.config.dicts import flat
from seq2seq.experiments.folder import RunFolder, with_window
from seq2seq.experiments.job_records import Job, common_overrides, is_sweep, read_jobs

SPLITS = ("test", "valid")
# Settings that results.json tells more exactly than the configuration.
DECIDED = {
    "data.max_tokens": "max_tokens",
    "data.corpus": "corpus",
    "trainer.precision": "precision",
    "trainer.accelerator": "accelerator",
}


@dataclasses.dataclass(frozen=True)
class RunResult:
    """A finished run: its folder, the mixer's label, its settings, and what results.json says."""

    folder: RunFolder
    mixer: str
    config: dict[str, Any]
    results: dict[str, Any]

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.path.name

    @property
    def seed(self) -> int:
        """The run's seed."""
        return int(self.config["seed"])

    def score(self, split: str, metric: str) -> float:
        """`bleu` or `chrf` of the test or validation set."""
        return float(self.results[split][metric])

    def number(self, key: str) -> float:
        """A number of results.json; nan where an older run has none."""
        return float(self.results.get(key, "nan"))

    def resolved(self) -> dict[str, Any]:
        """The settings by `section.name`, those that a run decides (`auto`) as they came to be; and its corpus.

        Processes count as micro-batches of an update.
        """
        decided = {key: self.results[name] for key, name in DECIDED.items() if self.results.get(name) is not None}
        return flat(with_window(self.config)) | decided

    @property
    def typed(self) -> set[str]:
        """The keys that its command set."""
        words = shlex.split(str(self.results.get("command", "")))[3:]  # python -m seq2seq.train
        return {word.lstrip("+~").split("=", 1)[0] for word in words}

    def test_lines(self, side: str) -> list[str] | None:
        """The lines of `src`, `ref` or `hyp` of the test set; None where the run saved none."""
        path = self.folder.test_file(side)
        return path.read_bytes().decode("utf-8").split("\n")[:-1] if path.is_file() else None

    def test_digest(self) -> str | None:
        """A digest of the test set's sources and references; None where the run saved none."""
        paths = [self.folder.test_file(side) for side in ("src", "ref")]
        if not all(path.is_file() for path in paths):
            return None
        return hashlib.sha256(b"\0".join(path.read_bytes() for path in paths)).hexdigest()

    def curve(self, against: str = "time") -> list[tuple[float, float]]:
        """(seconds of training, BLEU) of every validation, or (updates, BLEU)."""
        # older runs logged the time of training and validation together
        axes = ("step",) if against == "updates" else ("train/seconds", "seconds")
        return read_curve(self.folder.path / "metrics.csv", axes)


class Unusable(NamedTuple):
    """A folder or job that no result can be read from, and why."""

    name: str
    reason: str


class Found(NamedTuple):
    """Finished runs, and what else there was."""

    runs: list[RunResult]
    unusable: list[Unusable]


def read_curve(path: Path, axes: Sequence[str]) -> list[tuple[float, float]]:
    """(place, BLEU) of every validation in a metrics.csv, which may be growing; none where there is no such file.

    The place is the first of the columns `axes` that has a number. A validation has its row of scores and, at the same
    step, one about training.
    """
    try:
        with open(path, newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except OSError:
        return []
    places = {row["step"]: place for row in rows if (place := _number(row, *axes)) is not None}
    scores = {row["step"]: score for row in rows if (score := _number(row, "val/bleu")) is not None}
    return sorted((places[step], score) for step, score in scores.items() if step in places)


def _number(row: dict[str, Any], *names: str) -> float | None:
    for name in names:
        try:
            return float(row[name])
        except (KeyError, TypeError, ValueError):
            continue
    return None


def collect(patterns: Sequence[str], split: str) -> Found:
    """The runs that `patterns` name: run folders, sweep folders, folders of runs, or globs of these."""
    runs: dict[Path, RunResult] = {}
    unusable: dict[str, Unusable] = {}
    for item in _places(patterns, unusable):
        found = _read(item, split)
        if isinstance(found, RunResult):
            runs.setdefault(found.folder.path.resolve(), found)
        else:
            unusable.setdefault(found.name, found)
    return Found(list(runs.values()), list(unusable.values()))


def _places(patterns: Sequence[str], unusable: dict[str, Unusable]) -> list[Path | Job]:
    places: list[Path | Job] = []
    for pattern in patterns:
        paths = [Path(path) for path in sorted(glob.glob(pattern))] or [Path(pattern)]
        for path in paths:
            inside = _inside(path)
            if not inside:
                reason = "holds no run" if path.is_dir() else "no such folder"
                unusable[str(path)] = Unusable(str(path), reason)
            places += inside
    return places


def _inside(path: Path) -> list[Path | Job]:
    """The run itself, a sweep's jobs, or the runs right below a folder."""
    if is_run(path):
        return [path]
    if is_sweep(path):
        return [job.checked() for job in read_jobs(path)]
    return [child for child in sorted(path.glob("*")) if is_run(child)]


def is_run(path: Path) -> bool:
    """Whether `path` is a run's folder."""
    folder = RunFolder(path)
    return folder.config.is_file() and folder.best.parent.is_dir()


def _read(place: Path | Job, split: str) -> RunResult | Unusable:
    if isinstance(place, Path):
        return read_run(place, split)
    if place.state == "finished" and place.run:
        return read_run(place.run, split)
    where = f" ({place.run})" if place.run else ""
    sweep = place.folder.parent
    title = place.title(common_overrides(read_jobs(sweep)))
    return Unusable(f"{sweep}: {title}{where}", f"{place.state}: {place.error}" if place.error else place.state)


def read_run(path: Path, split: str) -> RunResult | Unusable:
    """The result of a run's folder, or why there is none with a score of `split`."""
    folder = RunFolder(path)
    if not folder.config.is_file():
        return Unusable(str(path), "no such run")
    if not folder.results.is_file():
        return Unusable(str(path), "unfinished: continue it with the same command and resume=auto")
    try:
        results = json.loads(folder.results.read_text(encoding="utf-8"))
        config = _yaml(folder.config)
        parsed = RunResult(folder, _mixer(results, config), config, results)
        if results.get("stopped"):
            return Unusable(str(path), f"stopped early: {results['stopped']}")
        _ = parsed.score(split, "bleu"), parsed.score(split, "chrf"), parsed.seed
    except KeyError as error:
        if error.args == (split,):
            other = "valid" if split == "test" else "test"
            return Unusable(str(path), f"has no {split} score (--split {other}, or finish it with resume=auto)")
        return Unusable(str(path), f"its results.json or config.yaml lacks {error}")
    except (ValueError, TypeError, AttributeError) as error:
        return Unusable(str(path), f"cannot be read ({type(error).__name__}: {error})")
    return parsed


def _yaml(path: Path) -> dict[str, Any]:
    import yaml

    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{path.name} is no YAML: {' '.join(str(error).split())}") from None
    if not isinstance(loaded, dict):
        raise ValueError(f"{path.name} holds no settings")
    return loaded


def _mixer(results: dict[str, Any], config: dict[str, Any]) -> str:
    """The mixer's label; of an older run, from the name `<data>-<mixer>-<hash>`, else from its three slots."""
    if results.get("mixer"):
        return str(results["mixer"])
    data = re.escape(re.sub(r"[^\w.+-]+", "_", str(config["data"]["name"])))
    if found := re.fullmatch(rf"{data}-(.+)-[0-9a-f]{{8}}", str(results.get("run"))):
        return found[1]
    slots = [config["mixer"].get(slot) or {} for slot in ("encoder", "decoder", "cross")]
    return "/".join(str(slot.get("_target_") or "none").rpartition(".")[2] for slot in slots)
