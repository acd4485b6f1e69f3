"""Add the test set to kept runs, check their scores, and compare the runs with significance.

    python -m benchmarks.restore_runs benchmarks/results/kept/multi30k --source multi30k/test2016.en \
        --references multi30k/test2016.de --out runs/kept
    python -m seq2seq.compare runs/kept --baseline transformer --figure --against updates --out comparison

`benchmarks.keep_runs` leaves out the sources and references, which belong to the corpus. A run whose translations have
other scores with these references than in its results.json is left out: it belongs to another test set.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path

from benchmarks import harness
from benchmarks.keep_runs import each_run
from seq2seq.comparison.translations import check_translations
from seq2seq.evaluation.scoring import read_text
from seq2seq.runs.results import RunResult, collect
from seq2seq.system.files import atomic_folder


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


def main(argv: Sequence[str] | None = None) -> int:
    """Restore the runs, and print their folders; exit status 1 if none could be restored."""
    parser = harness.parser_for("restore_runs", __doc__, "folder that the restored runs go to")
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

    def checked(run: RunResult) -> Path:
        texts = {"src": [], "ref": references, "hyp": run.test_lines("hyp")}
        if not texts["hyp"]:
            raise ValueError("it has no translations (test.hyp)")
        check_translations(dataclasses.replace(run, texts=texts))
        return restore(run, options.source, options.references, options.out)

    collected = collect(options.runs, "test")
    return int(each_run(collected, checked) == len(collected.runs))


if __name__ == "__main__":
    raise SystemExit(main())
