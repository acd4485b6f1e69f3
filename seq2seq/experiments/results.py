"""Read finished runs from their folders: settings, scores, test translations and the curve of validation scores."""

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
from seq2seq.config.sections import present_settings
from seq2seq.config.yaml_file import read_yaml
from seq2seq.experiments.folder import RunFolder, with_window
from seq2seq.experiments.job_records import Job, common_overrides, is_sweep, read_jobs

SPLITS = ("test", "valid")
# Settings that may be `auto`, by the key of results.json that has the value they came to.
_DECIDED = {
    "data.max_tokens": "max_tokens",
    "data.corpus": "corpus",
    "trainer.precision": "precision",
    "trainer.accelerator": "accelerator",
}


@dataclasses.dataclass(frozen=True)
class RunResult:
    """A finished run.

    Attributes:
        folder: Its folder.
        mixer: Label of its mixer.
        config: Its settings, from config.yaml.
        results: Its results, from results.json.
    """

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
        """Return `bleu` or `chrf` of the test or validation set."""
        return float(self.results[split][metric])

    def number(self, key: str) -> float:
        """Return a number of results.json; nan where an older run has none."""
        return float(self.results.get(key, "nan"))

    def resolved(self) -> dict[str, Any]:
        """Return the settings by `section.name`, with the values that `auto` came to and the corpus' fingerprint.

        Ranks count as micro-batches of an update, as in a run's name.
        """
        # what `auto` came to, so that `auto` and the same value spelled out are one setting
        values = {key: self.results.get(name) for key, name in _DECIDED.items()}
        decided = {key: value for key, value in values.items() if value is not None}
        return flat(with_window(self.config)) | decided

    @property
    def command_keys(self) -> set[str]:
        """The keys that the run's command set."""
        words = shlex.split(str(self.results.get("command", "")))[3:]  # after python -m seq2seq.train
        # Hydra's prefixes: + adds a key, ++ sets it in any case, ~ deletes it
        return {word.lstrip("+~").split("=", 1)[0] for word in words}

    def test_lines(self, side: str) -> list[str] | None:
        """Return the lines of `src`, `ref` or `hyp` of the test set; None if the run saved none."""
        path = self.folder.test_file(side)
        # at \n alone: splitlines would also split inside a sentence, at U+2028 for example
        return path.read_bytes().decode("utf-8").split("\n")[:-1] if path.is_file() else None

    def test_digest(self) -> str | None:
        """Return a digest of the test set's sources and references; None if the run saved none."""
        paths = [self.folder.test_file(side) for side in ("src", "ref")]
        if not all(path.is_file() for path in paths):
            return None
        # the separator keeps a line from moving unnoticed from one file to the other
        return hashlib.sha256(b"\0".join(path.read_bytes() for path in paths)).hexdigest()

    def curve(self, against: str = "time") -> list[tuple[float, float]]:
        """Return (seconds of training, BLEU) of every validation; with against="updates", (updates, BLEU)."""
        # older runs logged the time of training and validation together
        columns = ("step",) if against == "updates" else ("train/seconds", "seconds")
        return read_curve(self.folder.path / "metrics.csv", columns)


class Unusable(NamedTuple):
    """A folder or job without a result, and the reason."""

    name: str
    reason: str


class CollectedRuns(NamedTuple):
    """Finished runs, and the folders and jobs that have no result."""

    runs: list[RunResult]
    unusable: list[Unusable]


def read_curve(path: Path, columns: Sequence[str]) -> list[tuple[float, float]]:
    """Read (x, BLEU) of every validation from a metrics.csv, which may be growing.

    A validation has a row with its scores and, of the same step, one about training.

    Args:
        path: The file, as CSVLogger writes it.
        columns: x is the first of these columns that contains a number.

    Returns:
        Pairs in order of x; none if the file does not exist.
    """
    try:
        with open(path, newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except OSError:
        return []
    # joined by step; the last row of a growing file may be cut, which `_number` passes over
    positions = {row["step"]: x for row in rows if (x := _number(row, *columns)) is not None}
    scores = {row["step"]: score for row in rows if (score := _number(row, "val/bleu")) is not None}
    return sorted((positions[step], score) for step, score in scores.items() if step in positions)


def _number(row: dict[str, Any], *names: str) -> float | None:
    for name in names:
        try:
            return float(row[name])
        except (KeyError, TypeError, ValueError):
            continue
    return None


def collect(patterns: Sequence[str], split: str) -> CollectedRuns:
    """Read the runs that patterns name.

    Args:
        patterns: Run folders, sweep folders, folders of runs, or globs of these.
        split: Scores that a run must have, "test" or "valid".
    """
    runs: dict[Path, RunResult] = {}
    unusable: dict[str, Unusable] = {}
    for pattern in patterns:
        # a pattern without a match is taken for a path, so that it is reported as missing
        paths = [Path(path) for path in sorted(glob.glob(pattern))] or [Path(pattern)]
        for path in paths:
            for result in _read_all(path, split):
                if isinstance(result, RunResult):
                    # a run that several patterns name counts once
                    runs.setdefault(result.folder.path.resolve(), result)
                else:
                    unusable.setdefault(result.name, result)
    return CollectedRuns(list(runs.values()), list(unusable.values()))


def _read_all(path: Path, split: str) -> list[RunResult | Unusable]:
    """Read a run, the jobs of a sweep, or the runs right below a folder."""
    if is_run(path):
        results = [read_run(path, split)]
    elif is_sweep(path):
        jobs = read_jobs(path)
        common = common_overrides(jobs)
        # `checked`: a job that was killed is a failure, although its record says it runs
        results = [_read_job(job.checked(), split, common) for job in jobs]
    else:
        results = [read_run(child, split) for child in sorted(path.glob("*")) if is_run(child)]
    return results or [Unusable(str(path), "holds no run" if path.is_dir() else "no such folder")]


def is_run(path: Path) -> bool:
    """Return True for a run's folder."""
    folder = RunFolder(path)
    return folder.config.is_file() and folder.best.parent.is_dir()


def _read_job(job: Job, split: str, common: set[str]) -> RunResult | Unusable:
    if job.state == "finished" and job.run:
        return read_run(job.run, split)
    run = f" ({job.run})" if job.run else ""
    reason = f"{job.state}: {job.error}" if job.error else job.state
    return Unusable(f"{job.folder.parent}: {job.title(common)}{run}", reason)


def read_run(path: Path, split: str) -> RunResult | Unusable:
    """Read a run's folder; without a score of `split`, return the reason."""
    folder = RunFolder(path)
    if not folder.config.is_file():
        return Unusable(str(path), "no such run")
    if not folder.results.is_file():
        return Unusable(str(path), "unfinished: continue it with the same command and resume=auto")
    try:
        results = json.loads(folder.results.read_text(encoding="utf-8"))
        # settings of older runs under their present names, and with defaults for later ones, to be compared with new
        config = present_settings(read_yaml(folder.config))
        run = RunResult(folder, _mixer(results, config), config, results)
        # stopped by the sweep's median rule, so its score is not that of the full budget
        if results.get("stopped"):
            return Unusable(str(path), f"stopped early: {results['stopped']}")
        # fail here, with a reason, rather than in the middle of a comparison
        _ = run.score(split, "bleu"), run.score(split, "chrf"), run.seed
    except KeyError as error:
        # the one key whose absence has a remedy: results.json lacks the split's scores
        if error.args == (split,):
            other = "valid" if split == "test" else "test"
            return Unusable(str(path), f"has no {split} score (--split {other}, or finish it with resume=auto)")
        return Unusable(str(path), f"its results.json or config.yaml lacks {error}")
    except (ValueError, TypeError, AttributeError) as error:
        return Unusable(str(path), f"cannot be read ({type(error).__name__}: {error})")
    return run


def _mixer(results: dict[str, Any], config: dict[str, Any]) -> str:
    """Return the mixer's label; of an older run, from the name `<data>-<mixer>-<hash>`, else from its three slots."""
    if results.get("mixer"):
        return str(results["mixer"])
    # a run named by run=<name> does not match
    data = re.escape(re.sub(r"[^\w.+-]+", "_", str(config["data"]["name"])))
    if match := re.fullmatch(rf"{data}-(.+)-[0-9a-f]{{8}}", str(results.get("run"))):
        return match[1]
    slots = [config["mixer"].get(slot) or {} for slot in ("encoder", "decoder", "cross")]
    return "/".join(str(slot.get("_target_") or "none").rpartition(".")[2] for slot in slots)
