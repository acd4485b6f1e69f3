"""Read runs from their folders: settings, scores, test translations and the curve of validation scores."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import glob
import hashlib
import io
import json
import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from seq2seq.runs.folder import RunFolder, with_window
from seq2seq.settings.data import SPLITS
from seq2seq.settings.dicts import flat
from seq2seq.settings.run import present_settings
from seq2seq.settings.values import is_number, shown
from seq2seq.sweeps.job_records import Job, common_overrides, is_sweep, read_jobs
from seq2seq.system.errors import one_line, visible
from seq2seq.system.files import read_file
from seq2seq.system.json_file import read_json, read_json_or_none
from seq2seq.system.yaml_file import read_yaml

# Settings that may be `auto`, with the keys of results.json that hold the chosen values.
_DECIDED = {
    "data.max_tokens": "max_tokens",
    "trainer.precision": "precision",
    "trainer.accelerator": "accelerator",
}
# Settings that identify files by their content, and the settings with the paths of these files.
DIGESTS = {
    "data.corpus": tuple(f"data.{split}" for split in SPLITS),
    "tokenizer.digest": ("tokenizer.model", "tokenizer.src_model", "tokenizer.tgt_model"),
    "init_from.digest": ("init_from",),
}
# Numbers of results.json that tables show.
NUMBERS = (
    "parameters", "target_tokens_per_second", "training_seconds", "training_cpu_seconds", "seconds", "steps",
    "best_step",
)  # fmt: skip
# The columns of metrics.csv for an axis of curves.
_AXES = {"updates": "step", "cpu": "train/cpu_seconds", "time": "train/seconds"}


@dataclasses.dataclass(frozen=True)
class RunResult:
    """A finished run.

    Attributes:
        mixer: Label of its mixer.
        config: Its settings, from config.yaml.
        results: Its results, from results.json.
        texts: Lines of a test set, by side, that replace the saved ones.
    """

    folder: RunFolder
    mixer: str
    config: dict[str, Any]
    results: dict[str, Any]
    texts: Mapping[str, list[str]] | None = None

    @property
    def name(self) -> str:
        """The folder's name."""
        return visible(self.folder.path.name)

    @property
    def seed(self) -> int:
        """The run's seed."""
        return int(self.config["seed"])

    def score(self, split: str, metric: str) -> float:
        """Return `bleu` or `chrf` of the test or validation set."""
        value = self.results[split][metric]
        if not is_number(value):
            raise ValueError(f"{split}.{metric}={shown(value)} is not a number")
        return float(value)

    def signatures(self, split: str) -> list[str]:
        """Return sacreBLEU's signatures, BLEU's first; only scores with equal signatures can be compared."""
        return list(self.results[split].get("signatures") or [])

    @property
    def corpus(self) -> str:
        """The corpus and its languages."""
        data = self.config["data"]
        languages = "-".join(str(data[side]) for side in ("src", "tgt") if data.get(side))
        return f"{data['name']} {languages}".strip()

    @property
    def fingerprint(self) -> str | None:
        """The fingerprint of the whole corpus, before `data.limit` and the seed choose a part of it."""
        return self.results.get("whole_corpus")

    @property
    def accelerator(self) -> str:
        """The kind of device that the run was trained on, "cpu" or "gpu"."""
        return str(self.results.get("accelerator", "cpu"))

    def number(self, key: str) -> float:
        """Return a number of results.json; nan if the run does not have it."""
        value = self.results.get(key, math.nan)
        return float(value) if is_number(value) else math.nan

    def resolved(self) -> dict[str, Any]:
        """Return the settings by `section.name`, with the values that `auto` chose and the DIGESTS of files.

        Ranks count as micro-batches of an update, as in a run's name.
        """
        values = {key: self.results.get(name) for key, name in _DECIDED.items()}
        values["data.corpus"] = self.fingerprint
        values["init_from.digest"] = self.results.get("init_from")
        tokenizer = self.config.get("tokenizer") or {}
        # A tokenizer that is learned or extended follows the corpus, whose part by data.limit depends on the seed
        if any(tokenizer.get(key) for key in ("model", "src_model", "tgt_model")) and not tokenizer.get("extend"):
            values["tokenizer.digest"] = self.results.get("tokenizer")
        # With data.batch_tokens, the micro-batch depends on the machine
        if self.config["data"].get("batch_tokens"):
            del values["data.max_tokens"]
        decided = {key: value for key, value in values.items() if value is not None}
        return flat(with_window(self.config)) | decided

    @property
    def cut_short(self) -> str:
        """The updates of a run that the clock ended before its limit of updates or epochs; "" for other runs."""
        trainer = self.config.get("trainer", {})
        limits = [f"trainer.{key}={trainer[key]}" for key in ("max_steps", "max_epochs") if trainer.get(key)]
        if not limits or self.results.get("ended_by") != "max_time":
            return ""
        return f"{self.number('steps'):,.0f} updates of {' and '.join(limits)}"

    @property
    def continued(self) -> str:
        """The changes of settings, by update, that altered the course of the run; "" for none."""
        parts = self.results.get("continued", [])
        return "; ".join(f"at update {part['update']}: {'; '.join(part['changes'])}" for part in parts)

    @property
    def command_keys(self) -> set[str]:
        """The keys that the run's command set."""
        words = shlex.split(str(self.results.get("command", "")))[3:]  # after python -m seq2seq.train
        # Without Hydra's prefixes +, ++ and ~
        return {word.lstrip("+~").split("=", 1)[0] for word in words}

    def test_lines(self, side: str) -> list[str]:
        """Return the lines of `src`, `ref` or `hyp` of the test set; empty if the run saved none."""
        return self.texts[side] if self.texts else self.folder.test_lines(side)

    def test_digest(self) -> str | None:
        """Return a digest of the test set's sources and references; None if the run saved none."""
        text = [self.test_lines(side) for side in ("src", "ref")]
        return hashlib.sha256(json.dumps(text).encode()).hexdigest() if all(text) else None

    @property
    def translated(self) -> bool:
        """True if the run saved its test translations and their references."""
        return all(self.test_lines(side) for side in ("ref", "hyp"))

    def curve(self, against: str = "time") -> list[tuple[float, float]]:
        """Return (x, BLEU) of every validation, where x is "time" of training, "cpu" time or "updates"."""
        # The CPU time of a run on a GPU is meaningless
        measured = against != "cpu" or self.accelerator == "cpu"
        return read_curve(self.folder.path / "metrics.csv", _AXES[against]) if measured else []


class Unusable(NamedTuple):
    """A folder or job without a result, and the reason."""

    name: str
    reason: str

    def __str__(self) -> str:
        return one_line(f"left out: {self.name}: {self.reason}")


class CollectedRuns(NamedTuple):
    """Finished runs, and the folders and jobs that have no result."""

    runs: list[RunResult]
    unusable: list[Unusable]


def read_metrics(path: Path) -> tuple[list[str], list[dict[str, Any]]]:
    """Read the columns and the rows of a metrics.csv.

    Raises:
        ValueError: The file is not a table in UTF-8.
    """
    # 1 GiB is some millions of rows, as of a long run that logs each update
    content = read_file(path, 1 << 30)
    try:
        reader = csv.DictReader(io.StringIO(content.decode(), newline=""))
        rows = list(reader)
        return list(reader.fieldnames or ()), rows
    except (csv.Error, ValueError) as error:
        raise ValueError(
            f"{path} is damaged ({error}): copy it again, or move it away to continue without it"
        ) from None


def read_curve(path: Path, column: str) -> list[tuple[float, float]]:
    """Return (x, BLEU) of every validation, in order of x, from a metrics.csv; empty if the file is missing.

    A validation has two rows of the same step: one with its scores, and one about training, which has x in `column`.
    """
    positions: dict[str, float] = {}
    scores: dict[str, float] = {}
    for row in read_metrics(path)[1] if path.exists() else ():
        for name, by_step in ((column, positions), ("val/bleu", scores)):
            # The last row of a growing file may be cut
            with contextlib.suppress(KeyError, TypeError, ValueError):
                by_step[row["step"]] = float(row[name])
    return sorted((positions[step], score) for step, score in scores.items() if step in positions)


def collect(patterns: Sequence[str], split: str) -> CollectedRuns:
    """Read the runs that patterns name, each once.

    Args:
        patterns: Run folders, sweep folders, folders of runs, or globs of these.
        split: Scores that a run must have, "test" or "valid".
    """
    runs: dict[Path, RunResult] = {}
    unusable: dict[str, Unusable] = {}
    for pattern in patterns:
        # A pattern without a match is read as a path, which is then reported as missing
        for path in sorted(glob.glob(pattern)) or [pattern]:
            for result in _read_all(Path(path), split):
                if isinstance(result, RunResult):
                    runs.setdefault(result.folder.path.resolve(), result)
                else:
                    unusable.setdefault(result.name, result)
    return CollectedRuns(list(runs.values()), list(unusable.values()))


def _read_all(path: Path, split: str) -> list[RunResult | Unusable]:
    """Read a run, the jobs of a sweep, or the runs directly below a folder."""
    try:
        if is_run(path) or not path.is_dir():
            return [read_run(path, split)]
        if is_sweep(path):
            jobs = read_jobs(path)
            common = common_overrides(jobs)
            # `checked`, because the record of a killed job still says that the job runs
            results = [_read_job(job.checked(), split, common) for job in jobs]
        else:
            # There may be files next to the runs, such as tables of earlier comparisons
            folders = [child for child in sorted(path.iterdir()) if child.is_dir() and not child.name.startswith(".")]
            if folders and all(map(is_sweep, folders)):
                return [Unusable(str(path), "has records of sweeps, whose runs lie next to it: name a sweep")]
            results = [result for child in folders for result in _read_child(child, split)]
    except OSError as error:
        return [Unusable(str(path), str(error))]
    return results or [Unusable(str(path), "holds no run")]


def _read_child(path: Path, split: str) -> list[RunResult | Unusable]:
    """Read a folder next to runs; runs/sweeps has no run, as the runs of its jobs lie next to it."""
    try:
        return [read_run(path, split)] if is_run(path) or not any(map(is_sweep, path.iterdir())) else []
    except OSError as error:
        return [Unusable(str(path), str(error))]


def is_run(path: Path) -> bool:
    """Return True for a folder with any file of a run, which may be damaged."""
    folder = RunFolder(path)
    return folder.config.is_file() or folder.results.is_file() or folder.best.parent.is_dir()


def _read_job(job: Job, split: str, common: set[str]) -> RunResult | Unusable:
    if job.state == "finished" and job.run:
        return read_run(job.run, split)
    run = f" ({job.run})" if job.run else ""
    reason = f"{job.state}: {job.error}" if job.error else job.state
    return Unusable(f"{job.folder.parent}: {job.title(common)}{run}", reason)


def read_run(path: Path, split: str) -> RunResult | Unusable:
    """Read a run's folder; without a score of `split`, return the reason and the remedy."""
    folder = RunFolder(path)
    if not folder.config.is_file():
        return Unusable(str(path), "holds no run" if path.exists() else "no such folder")
    if not folder.results.is_file():
        return Unusable(str(path), _unfinished(path))
    try:
        config = read_config(folder.config)
        results = read_json(folder.results)
    except (OSError, ValueError) as error:
        return Unusable(str(path), str(error))
    if results.get("stopped"):
        # The sweep's median rule stopped the run, so its score is not comparable to scores of the full budget
        return Unusable(str(path), f"stopped early: {results['stopped']}")
    if split in results:
        try:
            run = RunResult(folder, shown(results["mixer"], most=300), config, results)
            # A comparison computes these later; a failure here has a reason
            " ".join(run.signatures(split))
            _ = run.score(split, "bleu"), "chrf" in results[split] and run.score(split, "chrf")
            _ = run.seed, run.corpus, run.continued, run.command_keys, run.resolved(), hash(run.fingerprint)
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
            return Unusable(str(path), f"results.json is damaged ({type(error).__name__}: {error})")
        return run
    other = next((name for name in ("test", "valid") if name in results), None)
    also = f" (--split {other} compares its other scores)" if other else ""
    if split == "test" and config.get("trainer", {}).get("test") is False:
        reason = "was not tested (trainer.test=false): repeat its command with trainer.test=true resume=auto"
    else:
        reason = f"has no {split} score: finish it with resume=auto"
    return Unusable(str(path), reason + also)


def _unfinished(path: Path) -> str:
    """Return the reason why a run has no results: its last fault, if it left one."""
    for fault in sorted(path.glob("fault-*.json")):
        if text := (read_json_or_none(fault) or {}).get("fault"):
            return f"unfinished, with {fault.name}: {shown(text, most=300)}"
    return "unfinished: it still runs, or the same command and resume=auto continue it"


def read_config(path: Path) -> dict[str, Any]:
    """Read config.yaml under the present names, with defaults for settings that are newer than the run."""
    config = read_yaml(path)
    # The config.yaml of another program lacks these keys
    missing = [key for key in ("data", "mixer", "seed") if key not in config]
    if missing:
        raise ValueError(f"config.yaml is not a run's: it has no {missing[0]}")
    try:
        config = present_settings(config)
        # A comparison computes this later; a failure here has a reason
        flat(with_window(config))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"config.yaml is damaged ({type(error).__name__}: {error})") from None
    return config


def read_origin(ckpt: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return results.json and config.yaml of the run that a checkpoint belongs to, each {} if it is missing.

    Scores are left out unless `ckpt` is the best checkpoint, to which they belong, or the run's folder.
    """
    folder = RunFolder.of_checkpoint(ckpt)
    if folder is None:
        return {}, {}
    results = folder.read_results()
    if not (folder.best.is_file() and (ckpt.is_dir() or (ckpt.is_file() and folder.best.samefile(ckpt)))):
        results = {name: value for name, value in results.items() if name not in ("valid", "test")}
    # The file may be another program's
    with contextlib.suppress(ValueError, OSError):
        return results, read_yaml(folder.config)
    return results, {}
