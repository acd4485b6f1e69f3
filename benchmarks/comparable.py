"""Check that the runs of a table can be compared."""

from __future__ import annotations

from collections.abc import Sequence

from seq2seq.comparison.scored_sets import scored_sets
from seq2seq.runs.results import RunResult

BUDGET = ("max_steps", "max_epochs", "max_time")


def require_comparable(runs: Sequence[RunResult], split: str) -> None:
    """Check that runs were trained with one budget and scored on one set.

    Args:
        split: The set, "test" or "valid".

    Raises:
        ValueError: The runs differ in budget or set.
    """
    sets = [each.title for each in scored_sets(runs, split)]
    if len(sets) > 1:
        raise ValueError(f"runs of one table need one {split} set, not {', '.join(sets)}")
    budgets = {" ".join(f"trainer.{key}={run.config.get('trainer', {}).get(key)}" for key in BUDGET) for run in runs}
    if len(budgets) > 1:
        raise ValueError(f"runs of one table need one budget, not {'; '.join(sorted(budgets))}")
