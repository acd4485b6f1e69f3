"""Compare runs: a table by mixer over seeds for each test set, with tests and figures of BLEU against time."""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path

from seq2seq.options.command_line import (
    Parser,
    exit_status,
    fail,
    nonempty,
    number,
    option_name,
    positive,
    require_folder,
    run_command,
    whole_number,
)
from seq2seq.settings.data import MOST_SAMPLES
from seq2seq.settings.values import shown
from seq2seq.system.stdio import print_error

EPILOG = """\
Examples:
  python -m seq2seq.compare runs                                    # every run in runs/, a table for each test set
  python -m seq2seq.compare runs/sweeps/2026-11-21_10-00-00 --watch # follow a sweep, then compare
  python -m seq2seq.compare 'runs/multi30k-*' --baseline transformer --out comparison --figure
  python -m seq2seq.compare runs --by-length 10 --out lengths --figure  # figure 2 of Bahdanau et al. 2015
  python -m seq2seq.compare runs --set test2017=multi30k/test2017 --plan 5  # a second test set, and both as one
  python -m seq2seq.compare runs --by optim.peak_lr --split valid       # a sweep over learning rates

BLEU and chrF are means over seeds ± the sample standard deviation. Time covers training and validation (h:mm:ss); the
training CPU time of runs on a CPU leaves validation out. Rows without a letter in common differ at 0.05.
A second table has the differences from the baseline: 95% intervals and p values of t tests over seeds, with seeds as
blocks, and of a bootstrap over seeds and sentences together. 'equivalence p' tests for a difference of --margin or more
(two one-sided tests). The p values of a column are adjusted for their number (Holm 1979).
Unfinished, damaged and failed runs, and folders without a run, are left out, with a line that says why.
Exit status: 0 done; 1 a job failed (--watch), or there is no finished run; 2 wrong options; 130 interrupted."""


def _parser() -> Parser:
    parser = Parser(prog="python -m seq2seq.compare", description=__doc__, epilog=EPILOG)
    add = parser.add_argument
    text = "run folders, sweep folders, folders of runs, or globs"
    add("runs", nargs="+", type=nonempty, metavar="RUNS", help=text)
    text = (
        "a mixer or label, or a run's folder for the row it is in, to test against (the Transformer, or the first row)"
    )
    add("--baseline", metavar="NAME", help=text)
    text = "test only this pair of rows, such as rotary transformer; may be given again"
    pair = ("NAME", "BASELINE")
    add("--contrast", dest="contrasts", nargs=2, action="append", default=[], metavar=pair, help=text)
    add("--split", choices=("test", "valid"), default="test", help="whose scores (test)")
    count = whole_number(1, MOST_SAMPLES)
    add("--resamples", dest="samples", type=count, default=10_000, metavar="N", help="bootstrap resamples (10000)")
    text = "BLEU by which groups may differ and still count as equivalent (0.5)"
    add("--margin", type=number(0.001, 100), default=0.5, metavar="BLEU", help=text)
    text = "report what N seeds would show, given the observed standard deviation"
    add("--plan", type=whole_number(2, 1000), metavar="N", help=text)
    text = "another test set, with translations NAME.hyp in the runs' folders; scored alone, and all sets as one corpus"
    add("--set", dest="sets", type=_named_set, action="append", default=[], metavar="NAME=PREFIX", help=text)
    text = "also score with COMET, run by this Python interpreter (COMET needs its own environment)"
    add("--comet-python", type=nonempty, metavar="PATH", help=text)
    text = "COMET's model, a name or a checkpoint (Unbabel/wmt22-comet-da)"
    add("--comet-model", type=nonempty, default="Unbabel/wmt22-comet-da", metavar="NAME", help=text)
    text = "write comparison.md, comparison.csv and comparison-differences.csv there"
    add("--out", type=nonempty, metavar="DIR", help=text)
    text = "also write comparison.png and comparison.svg; for several tables comparison-1.png and so on"
    add("--figure", action="store_true", help=text)
    text = "x axis of the figure (time); cpu where runs shared a machine, updates where machines differed"
    add("--against", choices=("time", "cpu", "updates"), default="time", help=text)
    text = (
        "also report BLEU by source length: 1 to N words, N + 1 to 2 N, and so on (characters in text without spaces)"
    )
    add("--by-length", type=whole_number(1, 1000), metavar="N", help=text)
    text = "also report BLEU by the values of a setting, such as optim.peak_lr or data.limit"
    add("--by", type=nonempty, metavar="SETTING", help=text)
    text = "a setting in which runs of one row may differ, such as trainer.precision; may be given again"
    add("--ignore", type=nonempty, action="append", default=[], metavar="SETTING", help=text)
    add("--watch", action="store_true", help="follow a sweep: report at once when a job ends or fails")
    add("--interval", type=positive, default=2, metavar="SECONDS", help="time between two checks of --watch (2)")
    return parser


def _named_set(text: str) -> tuple[str, str]:
    """Parse NAME=PREFIX."""
    name, _, prefix = text.partition("=")
    # The name is part of a file's name
    if not prefix or not re.fullmatch(r"[\w.-]+", name) or name == "test":
        raise argparse.ArgumentTypeError(f"'{shown(text)}' is not NAME=PREFIX, as in test2017=multi30k/test2017")
    return name, prefix


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parser = _parser()
    options = parser.parse_args(argv)
    # A figure is never shown on a screen
    if options.figure and not options.out:
        parser.error("--figure needs --out DIR")
    if options.contrasts and options.baseline:
        parser.error("--contrast names its own baseline: leave --baseline out")
    if options.split != "test":
        why = "needs translations, which runs save for the test set only"
        parser.refuse(options, ("by_length", "comet_python"), why)
        if options.sets:
            parser.error(f"--set {why}")
    names = [name for name, _ in options.sets]
    if twice := [name for name in names if names.count(name) > 1]:
        parser.error(f"--set {twice[0]} is given twice; each set needs its own name")
    for name, needed in (("against", "figure"), ("interval", "watch"), ("comet_model", "comet_python")):
        if not getattr(options, needed):
            parser.refuse(options, (name,), f"needs {option_name(needed)}")
    return exit_status(lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    """Follow a sweep if asked to, compare the runs, and return the exit status."""
    from seq2seq.comparison.compare_runs import FILES, ComparisonSettings, compare
    from seq2seq.sweeps.sweep_watch import watch
    from seq2seq.system.canvas import require_matplotlib

    # Checked before any waiting or computing
    if options.figure:
        require_matplotlib()
    # The folder is made only when something is written to it
    out = require_folder(Path(options.out), files=FILES) if options.out else None
    # Blocks until the sweep has ended; returns the number of jobs that failed
    failed = watch([Path(path) for path in options.runs], interval=options.interval) if options.watch else 0
    fields = dataclasses.fields(ComparisonSettings)
    settings = ComparisonSettings(**{field.name: getattr(options, field.name) for field in fields})
    figure_against = options.against if options.figure else None
    collected = compare(options.runs, settings, out=out, figure_against=figure_against)
    # On stderr, since the table on stdout may be piped into a file
    for item in collected.unusable:
        print_error(str(item))
    if not collected.runs:
        return fail("there is no finished run to compare", 1)
    # A comparison without the failed jobs is still printed
    return 1 if failed else 0


if __name__ == "__main__":
    run_command(main)
