"""Add the test set to kept runs, check their scores, and compare the runs with significance.

    python -m benchmarks.restore_runs benchmarks/results/kept/multi30k --source multi30k/test2016.en \
        --references multi30k/test2016.de --out runs/kept
    python -m seq2seq.compare runs/kept --baseline transformer --figure --against updates --out comparison

`benchmarks.keep_runs` leaves out the sources and references, which belong to the corpus. A run whose translations have
other scores with these references than in its results.json is left out: it belongs to another test set.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from benchmarks import harness
from seq2seq.comparison.significance import scoring
from seq2seq.evaluation.scoring import read_text
from seq2seq.metrics import scorers
from seq2seq.runs.results import RunResult, collect
from seq2seq.system.files import atomic_folder

# Scores are compared to two decimal places, as they are printed.
TOLERANCE = 0.005


def restore(run: RunResult, source: Path, references: Path, out: Path) -> Path:
    """Write the kept run with `test.src` and `test.ref` into `out`/<its name>, and return that folder.

    Raises:
        FileExistsError: This folder exists.
    """
    target = out / run.name
    if target.exists():
        raise FileExistsError(f"{target} exists: remove it, or choose another --out")
    with atomic_folder(target) as folder:
        shutil.copytree(run.folder.path, folder, dirs_exist_ok=True)
        for side, path in (("src", source), ("ref", references)):
            shutil.copyfile(path, folder / run.folder.test_file(side).name)
    return target


def check(run: RunResult, references: Sequence[str]) -> None:
    """Score the run's translations again.

    Raises:
        ValueError: The run has no translations, or their number or scores do not match.
    """
    translations = run.test_lines("hyp")
    if not translations:
        raise ValueError("it has no translations (test.hyp)")
    if len(translations) != len(references):
        raise ValueError(f"it has {len(translations):,} translations, and there are {len(references):,} references")
    again = {
        "bleu": scorers.bleu(translations, [references], **scoring(run)),
        "chrf": scorers.chrf(translations, [references]),
    }
    for name, score in again.items():
        recorded = run.score("test", name)
        if abs(score.value - recorded) > TOLERANCE:
            raise ValueError(
                f"with these references it has {score.value:.2f} {name}, and results.json says {recorded:.2f}"
            )


def main(argv: Sequence[str] | None = None) -> int:
    """Restore the runs, and print their folders; exit status 1 if none could be restored."""
    parser = harness.parser_for("restore_runs", __doc__)
    parser.add_argument("runs", nargs="+", metavar="RUNS", help="kept runs, folders of them, or globs")
    parser.add_argument("--source", type=Path, required=True, help="text file with the sources of the test set")
    parser.add_argument("--references", type=Path, required=True, help="text file with its references")
    parser.set_defaults(out=Path("runs/kept"))
    options = parser.parse_args(argv)
    try:
        # Read once for all runs
        references = read_text(str(options.references), warn=print)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    collected = collect(options.runs, "test")
    for item in collected.unusable:
        print(f"left out: {item.name}: {item.reason}")
    restored = 0
    for run in collected.runs:
        try:
            check(run, references)
            print(restore(run, options.source, options.references, options.out))
            restored += 1
        except (OSError, ValueError) as error:
            print(f"left out: {run.name}: {error}")
    return int(not restored)


if __name__ == "__main__":
    raise SystemExit(main())
