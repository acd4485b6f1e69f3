"""Read finished runs from their folders: settings, scores, test translations and the curve of validation scores."""

from __future__ import annotations

import csv
import dataclasses
import glob
import hashlib
import math
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from seq2seq.experiments.folder import SIDES, RunFolder, data_label, with_window
from seq2seq.experiments.job_records import Job, common_overrides, is_sweep, read_jobs
from seq2seq.experiments.json_file import read_json
from seq2seq.settings.classes import class_names
from seq2seq.settings.dicts import flat, read_yaml
from seq2seq.settings.run import SECTIONS, present_settings
from seq2seq.settings.values import shown

SPLITS = ("test", "valid")
# Settings that may be `auto`, by the key of results.json that has the value they came to.
_DECIDED = {
    "data.max_tokens": "max_tokens",
    "trainer.precision": "precision",
    "trainer.accelerator": "accelerator",
    "trainer.compile": "compiled",
}
# Numbers of results.json that tables show; older runs lack some.
NUMBERS = (
    "parameters",
    "target_tokens_per_second",
    "training_seconds",
    "training_cpu_seconds",
    "seconds",
    "steps",
    "best_step",
)
# The columns of metrics.csv for an axis of curves: the first that contains a number. Older runs logged the time of
# training and validation together.
_AXES = {"updates": ("step",), "cpu": ("train/cpu_seconds",), "time": ("train/seconds", "seconds")}


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

    def signatures(self, split: str) -> list[str]:
        """Return sacreBLEU's signatures, that of BLEU first; equal ones mean scores on one scale."""
        return list(self.results[split].get("signatures") or [])

    @property
    def corpus(self) -> str:
        """The corpus and its languages."""
        data = self.config["data"]
        languages = "-".join(str(data[side]) for side in ("src", "tgt") if data.get(side))
        return f"{data['name']} {languages}".strip()

    @property
    def fingerprint(self) -> str | None:
        """The fingerprint of the corpus, before `data.limit` and the seed chose from it; None in older runs."""
        limited = any(key.endswith("limit") and value for key, value in flat(self.config["data"]).items())
        found = self.results.get("whole_corpus", None if limited else self.results.get("corpus"))
        # In older streamed runs the size of the shuffle buffer and the limit follow two hashes
        return found and "-".join(str(found).split("-")[:2])

    def number(self, key: str) -> float:
        """Return a number of results.json; nan where an older run has none."""
        value = self.results.get(key)
        return math.nan if value is None else float(value)

    def resolved(self) -> dict[str, Any]:
        """Return the settings by `section.name`, with the values that `auto` came to and the corpus' fingerprint.

        Ranks count as micro-batches of an update, as in a run's name.
        """
        # What `auto` came to, so that `auto` and the same value spelled out are one setting
        values = {key: self.results.get(name) for key, name in _DECIDED.items()}
        values["data.corpus"] = self.fingerprint
        # Of updates by tokens, micro-batches are the machine's
        if self.config["data"].get("batch_tokens"):
            del values["data.max_tokens"]
        decided = {key: value for key, value in values.items() if value is not None}
        return flat(with_window(self.config)) | decided

    @property
    def continued(self) -> str:
        """The changes of settings in the course of the run that altered it, by update; "" for none."""
        parts = self.results.get("continued")
        parts = [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
        return "; ".join(f"at update {part.get('update')}: {shown(_joined(part.get('changes')))}" for part in parts)

    @property
    def command_keys(self) -> set[str]:
        """The keys that the run's command set."""
        words = shlex.split(str(self.results.get("command", "")))[3:]  # after python -m seq2seq.train
        # Hydra's prefixes: + adds a key, ++ sets it in any case, ~ deletes it
        return {word.lstrip("+~").split("=", 1)[0] for word in words}

    def test_lines(self, side: str) -> list[str] | None:
        """Return the lines of `src`, `ref` or `hyp` of the test set; None if the run saved none."""
        return self.folder.test_lines(side)

    def test_digest(self) -> str | None:
        """Return a digest of the test set's sources and references; None if the run saved none."""
        paths = [self.folder.test_file(side) for side in ("src", "ref")]
        if not all(path.is_file() for path in paths):
            return None
        # The separator keeps a line from moving unnoticed from one file to the other
        return hashlib.sha256(b"\0".join(path.read_bytes() for path in paths)).hexdigest()

    @property
    def translated(self) -> bool:
        """True if the run saved its test translations and their references."""
        return all(self.folder.test_file(side).is_file() for side in ("ref", "hyp"))

    def curve(self, against: str = "time") -> list[tuple[float, float]]:
        """Return (seconds of training, BLEU) of every validation; against "cpu", CPU seconds, or "updates"."""
        # Of a run on a GPU the CPU time says nothing
        measured = against != "cpu" or self.results.get("accelerator", "cpu") == "cpu"
        return read_curve(self.folder.path / "metrics.csv", _AXES[against]) if measured else []


def _joined(changes: Any) -> str:
    return "; ".join(map(str, changes)) if isinstance(changes, list) else str(changes)


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
        path: The file, as a run's CsvLogger writes it.
        columns: x is the first of these columns that contains a number.

    Returns:
        Pairs in order of x; none if the file does not exist or is damaged.
    """
    try:
        # A figure of many runs does not fail for one damaged file
        with open(path, newline="", encoding="utf-8", errors="replace") as file:
            rows = [row for row in csv.DictReader(file) if row.get("step")]
    except (OSError, csv.Error):
        return []
    # Joined by step; the last row of a growing file may be cut, which `_number` passes over
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
        # A pattern without a match is taken for a path, so that it is reported as missing
        paths = [Path(path) for path in sorted(glob.glob(pattern))] or [Path(pattern)]
        for path in paths:
            for result in _read_all(path, split):
                if isinstance(result, RunResult):
                    # A run that several patterns name counts once
                    runs.setdefault(result.folder.path.resolve(), result)
                else:
                    unusable.setdefault(result.name, result)
    return CollectedRuns(list(runs.values()), list(unusable.values()))


def _read_all(path: Path, split: str) -> list[RunResult | Unusable]:
    """Read a run, the jobs of a sweep, or the runs right below a folder."""
    try:
        if is_run(path) or not path.is_dir():
            return [read_run(path, split)]
        if is_sweep(path):
            jobs = read_jobs(path)
            common = common_overrides(jobs)
            # `checked`: a job that was killed is a failure, although its record says it runs
            results = [_read_job(job.checked(), split, common) for job in jobs]
        else:
            # Files beside the runs, such as tables of earlier comparisons, are no concern of this one
            folders = [child for child in sorted(path.iterdir()) if child.is_dir() and not child.name.startswith(".")]
            if folders and all(map(is_sweep, folders)):
                return [Unusable(str(path), "holds sweeps, whose runs are beside it: name one of them for its runs")]
            results = [read_run(child, split) for child in folders if not _holds_sweeps(child)]
    except OSError as error:
        return [Unusable(str(path), f"cannot be read: {error.strerror}")]
    return results or [Unusable(str(path), "holds no run")]


def is_run(path: Path) -> bool:
    """Return True for a folder with anything of a run's, which may be damaged."""
    folder = RunFolder(path)
    return folder.config.is_file() or folder.results.is_file() or folder.best.parent.is_dir()


def _holds_sweeps(path: Path) -> bool:
    """Return True for `runs/sweeps`, whose jobs' runs are beside it."""
    return not is_run(path) and any(is_sweep(child) for child in path.iterdir())


def _read_job(job: Job, split: str, common: set[str]) -> RunResult | Unusable:
    if job.state == "finished" and job.run:
        return read_run(job.run, split)
    run = f" ({job.run})" if job.run else ""
    reason = f"{job.state}: {job.error}" if job.error else job.state
    return Unusable(f"{job.folder.parent}: {job.title(common)}{run}", reason)


def read_run(path: Path, split: str) -> RunResult | Unusable:
    """Read a run's folder; without a score of `split`, return the reason."""
    try:
        return _read_run(RunFolder(path), split)
    except OSError as error:
        return Unusable(str(path), f"cannot be read: {error.strerror}")
    except ValueError as error:
        return Unusable(str(path), str(error))


def _read_run(folder: RunFolder, split: str) -> RunResult:
    """Read a run's folder and check all that a comparison takes from it.

    Raises:
        ValueError: There is no score of `split`, or a file is damaged; says which, without the folder's name.
    """
    if not folder.config.is_file():
        raise ValueError(_no_config(folder))
    config = read_config(folder.config)
    if not folder.results.is_file():
        raise ValueError("unfinished: continue it with the same command and resume=auto")
    results = read_json(folder.results)
    # Stopped by the sweep's median rule, so its score is not that of the full budget
    if results.get("stopped"):
        raise ValueError(f"stopped early: {results['stopped']}")
    if split not in results:
        raise ValueError(_no_score(split, results, config))
    try:
        run = RunResult(folder, _mixer(results, config), config, results)
        _check_results(run, split)
    except KeyError as error:
        raise ValueError(f"results.json lacks {error}") from None
    except (TypeError, AttributeError, ValueError, OverflowError) as error:
        raise ValueError(f"results.json is damaged: {error}") from None
    _check_lines(run)
    return run


def _no_config(folder: RunFolder) -> str:
    """Say what a path without config.yaml is."""
    if not folder.path.exists():
        return "no such folder"
    if not folder.path.is_dir():
        return "is a file; name the run's folder"
    return "has lost its config.yaml" if is_run(folder.path) else "holds no run"


def read_config(path: Path) -> dict[str, Any]:
    """Read config.yaml under the present names, with defaults for settings that are newer than the run."""
    config = read_yaml(path)
    # No other program's config.yaml has these
    missing = [key for key in ("data", "mixer", "seed") if key not in config]
    if missing:
        raise ValueError(f"config.yaml is not a run's: it has no {missing[0]}")
    words = [key for key in (*SECTIONS, "mixer") if key in config and not isinstance(config[key], dict)]
    if words:
        raise ValueError(f"config.yaml is damaged: {words[0]} is not a section")
    corpora = config["data"].get("corpora")
    mappings = {"corpora": corpora, "clean": config["data"].get("clean")}
    for name, entry in corpora.items() if isinstance(corpora, dict) else ():
        mappings |= {
            f"corpora.{name}": entry,
            f"corpora.{name}.clean": entry.get("clean") if isinstance(entry, dict) else None,
        }
    for key, value in mappings.items():
        if not isinstance(value, dict | None):
            raise ValueError(f"config.yaml is damaged: data.{key}={shown(value)} is not a mapping; correct it there")
    try:
        config = present_settings(config)
        # All that a comparison computes from it, so that it fails here, with a reason
        int(config["seed"])
        str(config["data"]["name"])
        flat(with_window(config))
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"config.yaml is damaged ({type(error).__name__}: {error})") from None
    return config


def _no_score(split: str, results: dict[str, Any], config: dict[str, Any]) -> str:
    """Say why a finished run has no score of a split, and how to get one."""
    other = next((name for name in SPLITS if name in results), None)
    also = f" (--split {other} compares its other scores)" if other else ""
    if split == "test" and config.get("trainer", {}).get("test") is False:
        return f"was not tested (trainer.test=false): repeat its command with trainer.test=true resume=auto{also}"
    return f"has no {split} score: finish it with resume=auto{also}"


def _check_results(run: RunResult, split: str) -> None:
    """Compute all that a comparison takes from results.json, so that it fails here, with a reason."""
    if not isinstance(run.results.get("mixer", ""), str):
        raise TypeError("mixer is not a word")
    for metric in ("bleu", "chrf"):
        if not math.isfinite(run.score(split, metric)):
            raise ValueError(f"{split}.{metric} is {run.score(split, metric)}")
    for key in NUMBERS:
        # nan stands for a number that is missing
        if math.isinf(run.number(key)):
            raise ValueError(f"{key} is infinite")
    if not all(isinstance(signature, str) for signature in run.signatures(split)):
        raise TypeError(f"{split}.signatures are not words")
    _ = run.command_keys


def _check_lines(run: RunResult) -> None:
    """Check that the saved sentences belong together."""
    try:
        counts = {side: len(lines) for side in SIDES if (lines := run.test_lines(side)) is not None}
    except UnicodeDecodeError:
        raise ValueError("a file of its test set (test.src, test.ref, test.hyp) is not in UTF-8") from None
    if len(set(counts.values())) > 1:
        shown = ", ".join(f"test.{side} {count:,}" for side, count in counts.items())
        raise ValueError(f"the files of its test set are damaged: lines of {shown}")


def _mixer(results: dict[str, Any], config: dict[str, Any]) -> str:
    """Return the mixer's label; of an older run, from the name `<data>-<mixer>-<hash>`, else from its three slots."""
    if results.get("mixer"):
        return str(results["mixer"])
    # A run named by run=<name> does not match
    data = re.escape(data_label(config))
    if match := re.fullmatch(rf"{data}-(.+)-[0-9a-f]{{8}}", str(results.get("run"))):
        return match[1]
    return "/".join("+".join(classes) for classes in class_names(config["mixer"]).values())
