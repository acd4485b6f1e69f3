"""Measure how well finished runs of experiment=drawn_words read the test images.

python -m benchmarks.images runs/drawn_words-*
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import harness
from seq2seq.runs.results import RunResult, Unusable, read_run
from seq2seq.system.markdown import markdown_table

HEADER = ("run", "whole texts", "characters", "chrF", "BLEU", "updates", "parameters", "CPU seconds")


def distance(one: str, other: str) -> int:
    """Count the characters to insert, delete or replace (Levenshtein)."""
    # Only one row of the table of distances is kept
    previous = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        row = [i]
        for j, b in enumerate(other, 1):
            row.append(min(previous[j] + 1, row[j - 1] + 1, previous[j - 1] + (a != b)))
        previous = row
    return previous[-1]


def finished(path: Path) -> RunResult:
    """Read a run that has test translations.

    Raises:
        ValueError: The run is not finished, or saved no test translations.
    """
    run = read_run(path, "test")
    if isinstance(run, Unusable) or not run.test_lines("hyp"):
        raise ValueError(f"{path}: {run.reason if isinstance(run, Unusable) else 'has no test translations'}")
    return run


def reading(path: Path) -> dict[str, Any]:
    """Score a run on the test images: shares of whole texts and of characters that are right, chrF, BLEU, cost."""
    run = finished(path)
    pairs = list(zip(run.test_lines("ref"), run.test_lines("hyp"), strict=True))
    wrong = sum(distance(ref, hyp) for ref, hyp in pairs)
    letters = sum(len(ref) for ref, _ in pairs)
    return {
        "run": run.name,
        "exact": sum(ref == hyp for ref, hyp in pairs) / len(pairs),
        "characters": 1 - wrong / letters,
        "chrf": run.score("test", "chrf"),
        "bleu": run.score("test", "bleu"),
        "updates": run.results["steps"],
        "parameters": run.results["parameters"],
        "cpu_seconds": run.number("training_cpu_seconds"),
    }


def _cells(score: dict[str, Any]) -> list[str]:
    return [
        score["run"],
        f"{score['exact']:.1%}",
        f"{score['characters']:.1%}",
        f"{score['chrf']:.2f}",
        f"{score['bleu']:.2f}",
        f"{score['updates']:,}",
        f"{score['parameters']:,}",
        # Some runs have no CPU time
        "" if math.isnan(score["cpu_seconds"]) else f"{score['cpu_seconds']:.0f}",
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, and write it if asked to."""
    parser = harness.parser_for("images", __doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    options = parser.parse_args(arguments)
    try:
        scores = [reading(run) for run in options.runs]
    except ValueError as error:
        parser.error(str(error))
    table = markdown_table(HEADER, [_cells(score) for score in scores], right=HEADER[1:])
    print(table)
    harness.write(options.out, "images", scores, table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
