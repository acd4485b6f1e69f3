"""BLEU by the length of the source: the table and the figure of Bahdanau et al. 2015, figure 2."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from seq2seq.comparison.groups import Group, seed_means
from seq2seq.comparison.setting_scores import Breakdown
from seq2seq.comparison.translations import sentence_counts
from seq2seq.data.languages import has_spaces
from seq2seq.metrics.scorers import bleu_of_counts
from seq2seq.runs.results import RunResult

# BLEU of fewer sentences is not worth drawing: the last bucket has all longer sentences.
_FEWEST = 20


def score_by_length(groups: Sequence[Group], width: int) -> Breakdown | None:
    """Score the test translations of runs on one test set by buckets of source length.

    Args:
        width: Number of lengths in a bucket. The first bucket has 1 to width words (characters for scripts without
            spaces).

    Returns:
        None if no run saved its translations and their sources.
    """
    saved = {group.label: [run for run in group.runs if run.translated and run.test_lines("src")] for group in groups}
    saved = {label: runs for label, runs in saved.items() if runs}
    if not saved:
        return None
    unit, lengths = _lengths(next(iter(saved.values()))[0])
    buckets = _buckets(lengths, width)
    return Breakdown(
        name="length",
        title="BLEU by length of the source",
        axis=f"source length ({unit})",
        positions={name: statistics.fmean(lengths[i] for i in rows) for name, rows in buckets.items()},
        scores={
            label: {
                name: [*seed_means((run.seed, _bleu(run, rows)) for run in runs).values()]
                for name, rows in buckets.items()
            }
            for label, runs in saved.items()
        },
        counts=[len(rows) for rows in buckets.values()],
    )


def _lengths(run: RunResult) -> tuple[str, list[int]]:
    words = [line.split() for line in run.test_lines("src")]
    if not has_spaces(str(run.config["data"].get("src") or "")):
        return "characters", [sum(map(len, line)) for line in words]
    return "words", [len(line) for line in words]


def _buckets(lengths: Sequence[int], width: int) -> dict[str, list[int]]:
    """Return the indices of the sentences of each bucket by its name, shortest first."""
    # Bucket i has the lengths i width + 1 to (i + 1) width; an empty source is in the first
    numbers = [max(0, math.ceil(length / width) - 1) for length in lengths]
    # The bucket of the twentieth longest sentence is the last: fewer sentences are longer
    last = sorted(numbers)[-_FEWEST] if len(numbers) >= _FEWEST else 0
    rows: dict[int, list[int]] = {}
    for row, number in enumerate(numbers):
        rows.setdefault(min(number, last), []).append(row)
    buckets: dict[str, list[int]] = {}
    for bucket in sorted(rows):
        # Only the last bucket has sentences longer than its edge
        end = max((bucket + 1) * width, *(lengths[row] for row in rows[bucket]))
        buckets[f"{bucket * width + 1}-{end}"] = rows[bucket]
    return buckets


def _bleu(run: RunResult, rows: Sequence[int]) -> float:
    return float(bleu_of_counts(sentence_counts(run)[rows].sum(0)))
