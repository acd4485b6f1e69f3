"""Compare the runs of folders and sweeps: print the table, and write it with its figure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from seq2seq.experiments.comparison import choose_baseline, require_same_test, significance
from seq2seq.experiments.comparison_table import as_csv, markdown, notes
from seq2seq.experiments.groups import group_runs
from seq2seq.experiments.plot import draw
from seq2seq.experiments.results import CollectedRuns, collect
from seq2seq.files import write_text


def compare(
    patterns: Sequence[str],
    *,
    split: str,
    baseline: str | None,
    samples: int,
    out: Path | None,
    figure_against: str | None,
) -> CollectedRuns:
    """Print the table of all finished runs, and write it to a folder.

    Args:
        patterns: Run folders, sweep folders, folders of runs, or globs of these.
        split: The scores to compare, "test" or "valid".
        baseline: A mixer, a group's label or a run's folder; the first group if None.
        samples: Resamples of the paired bootstrap.
        out: The folder for comparison.md and comparison.csv; None writes nothing.
        figure_against: The axis of the figure's curves, "time" or "updates"; None draws none.

    Returns:
        The runs that were compared, and what was left out.

    Raises:
        ValueError: The runs cannot be compared, or no group fits the baseline.
    """
    # nothing is printed for an empty comparison: the caller reports why each run was left out
    collected = collect(patterns, split)
    if not collected.runs:
        return collected
    # refuse what cannot be compared before any computation
    require_same_test(collected.runs, split)
    groups = group_runs(collected.runs)
    base = choose_baseline(groups, baseline)
    # of the validation set no translations are saved, so there is nothing to test
    tests = significance(groups, base, samples=samples) if split == "test" else {}
    table = markdown(groups, split, base, tests)
    below = notes(collected.runs, split)
    # printed before files are written, which may fail
    print(f"{table}\n{below}", end="", flush=True)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write_text(out / "comparison.md", f"{table}\n{below}")
        write_text(out / "comparison.csv", as_csv(groups, split, base, tests))
        # the figure has the stem of the table, so that one glob names all files
        if figure_against is not None:
            draw(groups, split, out / "comparison", figure_against)
        print(f"written: {', '.join(sorted(str(path) for path in out.glob('comparison.*')))}")
    return collected
