"""Question 2 of docs/benchmark.md, first two stages: the tables of its runs, for `benchmarks.tables`.

    python -m benchmarks.question_two multi30k

The command scores the kept translations, made with the mean of the last ten checkpoints, against the references in that
folder. It writes scores.csv and bootstrap.csv of both recipes.
"""

from __future__ import annotations

from benchmarks.question import SETS, Family, Question, command

# The systems of the first stage
FIRST = ["transformer", "lightconv"]
OURS, AUTHORS = (
    Question(
        task=task,
        language="de",
        systems=systems,
        families=families,
        file={name: f"average-{name}" for name in SETS},
    )
    for task, systems, families in (
        (
            "q2_ours",
            ["transformer", "rotary", "lightconv"],
            [
                Family([("lightconv", "transformer")], FIRST),
                Family([("rotary", "transformer"), ("rotary", "lightconv")]),
            ],
        ),
        # One seed tests nothing
        ("q2_authors", FIRST, []),
    )
)


if __name__ == "__main__":
    raise SystemExit(command("question_two", __doc__, [OURS.write, AUTHORS.write]))
