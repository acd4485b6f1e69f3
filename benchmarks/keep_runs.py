"""Keep the files of finished runs that `seq2seq.compare` reads, without checkpoints and corpus.

    python -m benchmarks.keep_runs 'runs/tatoeba-*' --out benchmarks/results/kept/tatoeba
    python -m seq2seq.compare benchmarks/results/kept/tatoeba --figure --against cpu --out comparison

It keeps the settings and results of each run, translations of its test sets, and the rows of metrics.csv that make its
curves. Absolute paths are cut to their last two parts. A kept run compares like the original, but without p values:
these need the sources and references, test.src and test.ref, which belong to the corpus.
"""

from __future__ import annotations

import csv
import io
import shlex
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks import harness
from seq2seq.runs.results import CollectedRuns, RunResult, collect
from seq2seq.system.files import atomic_folder, write_json, write_text
from seq2seq.system.yaml_file import read_yaml

# Settings with paths, and their usual values.
_PLACES = {"runs": "runs", "cache": ".cache"}
# Columns of metrics.csv: positions on an axis, and validation scores.
_AXES = ("step", "epoch", "train/seconds", "train/cpu_seconds")
_SCORES = "val/"


def keep(run: RunResult, out: Path) -> Path:
    """Copy the files that a comparison reads from a run into `out`/<its name>, and return that folder.

    Raises:
        FileExistsError: This folder exists.
    """
    target = out / run.name
    if target.exists():
        raise FileExistsError(f"{target} exists: remove it, or choose another --out")
    command = _command(str(run.results.get("command", "")))
    with atomic_folder(target) as folder:
        write_text(folder / run.folder.config.name, _settings(run.folder.config))
        write_json(folder / run.folder.results.name, run.results | {"command": command})
        write_text(folder / "metrics.csv", _curves(run.folder.path / "metrics.csv"))
        # Also <set>.hyp of further test sets (seq2seq.comparison.further_sets)
        for translations in run.folder.path.glob("*.hyp"):
            shutil.copyfile(translations, folder / translations.name)
    return target


def _settings(path: Path) -> str:
    """Return config.yaml without paths of the machine."""
    config = _shortened(read_yaml(path))
    return yaml.safe_dump(config | {key: value for key, value in _PLACES.items() if key in config}, sort_keys=False)


def _command(command: str) -> str:
    """Return a command without paths of the machine."""
    words = [word for word in shlex.split(command) if word.partition("=")[0] not in _PLACES]
    return shlex.join(map(_short, words))


def _shortened(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _shortened(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_shortened(item) for item in value]
    return _short(value) if isinstance(value, str) else value


def _short(word: str) -> str:
    """Cut an absolute path, even one after `setting=`, to its last two parts."""
    key, equals, value = word.rpartition("=")
    return f"{key}{equals}{'/'.join(Path(value).parts[-2:])}" if value.startswith("/") else word


def _curves(path: Path) -> str:
    """Return the rows of metrics.csv with a validation, without the columns about training alone."""
    with open(path, newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        rows = list(reader)
    validated = {row["step"] for row in rows if row.get("val/bleu")}
    columns = [name for name in reader.fieldnames or () if name in _AXES or name.startswith(_SCORES)]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(row for row in rows if row["step"] in validated)
    return text.getvalue()


def each_run(collected: CollectedRuns, work: Callable[[RunResult], Path]) -> int:
    """Print the folder that `work` writes for each run, or why it is left out; return how many runs `work` refused."""
    for item in collected.unusable:
        print(f"left out: {item.name}: {item.reason}")
    refused = 0
    for run in collected.runs:
        try:
            print(work(run))
        except (OSError, ValueError) as error:
            print(f"left out: {run.name}: {error}")
            refused += 1
    return refused


def main(argv: Sequence[str] | None = None) -> int:
    """Keep the runs, and print their folders; exit status 1 if one could not be kept."""
    parser = harness.parser_for("keep_runs", __doc__, "folder that the kept runs go to")
    parser.add_argument("runs", nargs="+", metavar="RUNS", help="run folders, folders of runs, or globs")
    parser.set_defaults(out=Path("benchmarks/results/kept"))
    options = parser.parse_args(argv)
    collected = collect(options.runs, "valid")
    refused = each_run(collected, lambda run: keep(run, options.out))
    return int(bool(refused or collected.unusable or not collected.runs))


if __name__ == "__main__":
    raise SystemExit(main())
