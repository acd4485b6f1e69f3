"""Question 2 of docs/benchmark.md, first stage: the tables of its runs, for `benchmarks.tables`.

    python -m benchmarks.question_two multi30k

The command scores the kept translations, made with the mean of the last ten checkpoints, against the references in that
folder. It writes scores.csv and bootstrap.csv of both recipes.
"""

from __future__ import annotations

from benchmarks.question import SETS, Question, command

OURS, AUTHORS = (
    Question(
        task=task,
        language="de",
        systems=["transformer", "lightconv"],
        primary=primary,
        secondary=[],
        file={name: f"average-{name}" for name in SETS},
    )
    # One seed by the authors' recipe tests nothing
    for task, primary in (("q2_ours", [("lightconv", "transformer")]), ("q2_authors", []))
)


if __name__ == "__main__":
    raise SystemExit(command("question_two", __doc__, [OURS.write, AUTHORS.write]))
