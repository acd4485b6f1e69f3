"""Compare runs: a table by mixer over seeds, with significance, and figures of BLEU against time and parameters."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from seq2seq.cli import Parser, UsageError, exit_status, fail, positive, require_folder

if TYPE_CHECKING:
    from seq2seq.experiments.results import Found

EPILOG = """\
Examples:
  python -m seq2seq.compare runs                                    # every run in runs/
  python -m seq2seq.compare runs/sweeps/2026-11-21_10-00-00 --watch # follow a sweep, then compare
  python -m seq2seq.compare 'runs/wmt-*' --baseline transformer --out comparison --figure

BLEU and chrF are means over seeds ± the sample standard deviation; time is that of training and validation, h:mm:ss;
Δ BLEU and p are against the baseline: paired bootstrap on the test translations, run against run of the same seed,
and how many of these pairs are better or worse at p < 0.05.
Exit status: 0 done; 1 a job failed (--watch), or there is no finished run; 2 wrong options or runs that cannot be
compared; 130 interrupted."""


def _parser() -> Parser:
    parser = Parser(prog="python -m seq2seq.compare", description=__doc__, epilog=EPILOG)
    text = "run folders, sweep folders, folders of runs, or globs"
    parser.add_argument("runs", nargs="+", metavar="RUNS", help=text)
    text = "a mixer, a row's label or a run's folder to test against (the first row)"
    parser.add_argument("--baseline", metavar="NAME", help=text)
    parser.add_argument("--split", choices=("test", "valid"), default="test", help="whose scores (test)")
    parser.add_argument("--samples", type=positive, default=1000, metavar="N", help="bootstrap resamples (1000)")
    parser.add_argument("--out", metavar="DIR", help="write comparison.md and comparison.csv there")
    parser.add_argument("--figure", action="store_true", help="and comparison.png and comparison.svg")
    text = "what its curves are drawn against (time); updates where runs had unequal machines"
    parser.add_argument("--against", choices=("time", "updates"), default="time", help=text)
    parser.add_argument("--watch", action="store_true", help="follow a sweep: say at once when a job ends or fails")
    parser.add_argument("--interval", type=positive, default=2, metavar="SECONDS", help="between two looks (2)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parser = _parser()
    options = parser.parse_args(argv)
    if options.figure and not options.out:
        parser.error("--figure needs --out DIR")
    try:
        return exit_status(lambda: _run(options))
    except ValueError as error:
        return fail(error)


def _run(options: argparse.Namespace) -> int:
    if options.figure:
        # before any waiting or computing
        from seq2seq.experiments.plot import require_matplotlib

        require_matplotlib()
    if options.out:
        require_folder(Path(options.out))
    failed = _watch(options) if options.watch else 0
    from seq2seq.experiments.results import collect

    found = collect(options.runs, options.split)
    if not found.runs:
        _list_unusable(found)
        return fail("there is no finished run to compare", 1)
    _report(options, found)
    _list_unusable(found)
    return 1 if failed else 0


def _watch(options: argparse.Namespace) -> int:
    from seq2seq.experiments.job_records import is_sweep
    from seq2seq.experiments.sweep_watch import watch

    sweeps = [Path(path) for path in options.runs]
    wrong = next((path for path in sweeps if not is_sweep(path)), None)
    if wrong:
        raise UsageError(f"--watch follows sweeps, and {wrong} is none; name a folder such as runs/sweeps/<date>")
    return watch(sweeps, interval=options.interval)


def _report(options: argparse.Namespace, found: Found) -> None:
    from seq2seq.experiments import comparison

    comparison.require_same_test(found.runs, options.split)
    groups = comparison.group_runs(found.runs)
    baseline = comparison.choose_baseline(groups, options.baseline)
    tests = {}
    if options.split == "test":
        tests = comparison.significance(groups, baseline, samples=options.samples)
    table = comparison.markdown(groups, options.split, baseline, tests)
    print(table, end="", flush=True)
    notes = _notes(found, options.split)
    print(f"\n{notes}", end="", flush=True)
    if not options.out:
        return
    from seq2seq.files import write_text

    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "comparison.md", f"{table}\n{notes}")
    write_text(out / "comparison.csv", comparison.as_csv(groups, options.split, baseline, tests))
    if options.figure:
        from seq2seq.experiments.plot import draw

        draw(groups, options.split, out / "comparison", options.against)
    print(f"written: {', '.join(sorted(str(path) for path in out.glob('comparison.*')))}")


def _notes(found: Found, split: str) -> str:
    """What the scores are of: split, signatures, and runs that significance leaves out."""
    signatures = found.runs[0].results[split].get("signatures") or ["no signature"]
    lines = [f"Scores of the {split} set, {len(found.runs)} runs. BLEU: {signatures[0]}"]
    revisions = Counter(str(run.results.get("git_revision")) for run in found.runs)
    if len(revisions) > 1:
        told = ", ".join(f"{name} ({count} runs)" for name, count in revisions.items())
        lines.append(f"Not of one revision of the code: {told}")
    old = [run.name for run in found.runs if run.test_lines("hyp") is None] if split == "test" else []
    if old:
        lines.append(f"No test translations, so no significance: {', '.join(old)}")
    return "".join(line + "\n" for line in lines)


def _list_unusable(found: Found) -> None:
    for item in found.unusable:
        print(f"left out: {item.name}: {item.reason}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
