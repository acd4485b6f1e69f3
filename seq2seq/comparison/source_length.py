"""BLEU by the length of the source: the table and the figure of Bahdanau et al. 2015, figure 2."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from seq2seq.comparison.groups import Group, seed_means
from seq2seq.comparison.setting_scores import Breakdown
from seq2seq.comparison.significance import scoring
from seq2seq.data.languages import has_spaces
from seq2seq.metrics.scorers import bleu
from seq2seq.runs.results import RunResult

# A bucket of fewer sentences has no BLEU worth drawing: the last one takes all that are longer.
_FEWEST = 20


def score_by_length(groups: Sequence[Group], width: int) -> Breakdown | None:
    """Score the test translations of runs on one test set, in parts of similar source length.

    Args:
        width: A part's lengths: 1 to width words (characters where the script has no spaces), and so on.

    Returns:
        None if no run saved its translations and their sources.
    """
    saved = {group.label: [run for run in group.runs if run.translated and run.test_lines("src")] for group in groups}
    saved = {label: runs for label, runs in saved.items() if runs}
    if not saved:
        return None
    unit, lengths = _lengths(next(iter(saved.values()))[0])
    parts = _parts(lengths, width)
    return Breakdown(
        name="length",
        title="BLEU by length of the source",
        axis=f"source length ({unit})",
        positions={name: statistics.fmean(lengths[i] for i in rows) for name, rows in parts.items()},
        scores={
            label: {
                name: [*seed_means((run.seed, _bleu(run, rows)) for run in runs).values()]
                for name, rows in parts.items()
            }
            for label, runs in saved.items()
        },
        counts=[len(rows) for rows in parts.values()],
    )


def _lengths(run: RunResult) -> tuple[str, list[int]]:
    words = [line.split() for line in run.test_lines("src") or []]
    if not has_spaces(str(run.config["data"].get("src") or "")):
        return "characters", [sum(map(len, line)) for line in words]
    return "words", [len(line) for line in words]


def _parts(lengths: Sequence[int], width: int) -> dict[str, list[int]]:
    """Return the sentences of each part by its name, shortest first."""
    # The last edge that leaves enough sentences beyond it
    last = width
    while sum(length > last for length in lengths) >= _FEWEST:
        last += width
    # Part i has the lengths i width + 1 to (i + 1) width; an empty source counts as the shortest
    final = last // width - 1
    parts: dict[str, list[int]] = {}
    for part in range(final + 1):
        rows = [i for i, length in enumerate(lengths) if min(max(0, math.ceil(length / width) - 1), final) == part]
        longest = max((lengths[i] for i in rows), default=0)
        # Named by what it holds, where it holds what is longer than its last edge
        end = max(longest, (part + 1) * width) if part == final else (part + 1) * width
        if rows:
            parts[f"{part * width + 1}-{end}"] = rows
    return parts


def _bleu(run: RunResult, rows: Sequence[int]) -> float:
    tokenize, lowercase = scoring(run)
    hypotheses, references = (run.test_lines(side) or [] for side in ("hyp", "ref"))
    chosen = [hypotheses[i] for i in rows], [references[i] for i in rows]
    return bleu(*chosen, tokenize=tokenize, lowercase=lowercase).value
