"""Look into a model's token mixers, or measure every self mixer's place on the map."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from pathlib import Path

from seq2seq.inference.limits import LONGEST_SOURCE
from seq2seq.options.command_line import (
    Parser,
    exit_status,
    nonempty,
    number,
    run_command,
    seed,
    sentence,
    whole_number,
)

EPILOG = """\
Examples:
  python -m seq2seq.inspect mixer=dynamicconv                       # random weights; settings as for seq2seq.train
  python -m seq2seq.inspect --ckpt runs/demo --text "Ich habe gestern zwei Bücher gekauft."
  python -m seq2seq.inspect --atlas --figure --out docs/atlas       # every self mixer, measured

The first two write report.html, which needs no other file, and its figures as PNG and SVG. The atlas is printed, and
written as atlas.md and atlas.json (--figure: map.png and map.svg).
Exit status: 0 done; 1 a mixer's declared properties differ from the measured ones (--atlas); 2 wrong options or files;
130 interrupted."""


def _parser() -> Parser:
    parser = Parser(prog="python -m seq2seq.inspect", description=__doc__, epilog=EPILOG)
    add = parser.add_argument
    add("overrides", nargs="*", metavar="KEY=VALUE", help="settings of a model with random weights, mixer=<name> first")
    add("--ckpt", type=nonempty, metavar="FILE", help="checkpoint to inspect")
    add("--text", type=sentence, metavar="TEXT", help="the source sentence (with --ckpt)")
    add("--target", type=sentence, metavar="TEXT", help="the target sentence (the model's own translation)")
    add("--tgt-lang", type=sentence, metavar="LANG", help="target language, of a checkpoint that has several")
    add("--src-lang", type=sentence, metavar="LANG", help="source language, likewise")
    text = "package, besides seq2seq, whose mixers a checkpoint may name; may be repeated"
    add("--trust", action="append", default=[], metavar="PACKAGE", help=text)
    text = "positions of a model with random weights (16)"
    add("--length", type=whole_number(1, LONGEST_SOURCE), metavar="N", help=text)
    add("--atlas", action="store_true", help="measure the self mixers of conf/mixer/self")
    add("--mixers", metavar="A,B", help="only these, such as conv or conv+groups=2 (with --atlas)")
    text = "most seconds to measure how a mixer's cost grows; 0: no growth (10; with --atlas)"
    add("--seconds", type=number(0, 1e6), metavar="S", help=text)
    add("--figure", action="store_true", help="draw the map too (with --atlas)")
    add("--out", type=nonempty, metavar="DIR", help="where figures and tables go (inspect/<name>)")
    add("--seed", type=seed, default=1, metavar="N", help="of random weights and inputs (1)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parser = _parser()
    # Intermixed: settings may stand before and after options
    options = parser.parse_intermixed_args(argv)
    _check(parser, options)
    return exit_status(lambda: _run(options))


def _check(parser: Parser, options: argparse.Namespace) -> None:
    """Exit with status 2 unless the options name one subject, and only options that go with it."""
    subjects = [options.atlas, options.ckpt is not None, bool(options.overrides)]
    if sum(subjects) != 1:
        parser.error("name one thing to inspect: mixer=<name>, --ckpt FILE --text TEXT, or --atlas")
    if options.ckpt is None:
        parser.refuse(options, ("text", "target", "src_lang", "tgt_lang", "trust"), "needs --ckpt")
    if not options.overrides:
        parser.refuse(options, ("length",), "needs mixer=<name>")
    if not options.atlas:
        parser.refuse(options, ("mixers", "seconds", "figure"), "needs --atlas")
    if options.ckpt is not None and not (options.text or "").strip():
        parser.error("--ckpt needs a sentence: --text TEXT" + (", which is empty" if options.text else ""))
    if options.target is not None and not options.target.strip():
        parser.error("--target is empty; leave it out for the model's own translation")


def _run(options: argparse.Namespace) -> int:
    """Write the atlas, or the report on a checkpoint or on a model with random weights."""
    # Torch's profiler, which counts memory, logs each start and end unless this is set before the import
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    from seq2seq.analysis import model_report

    out = Path(options.out) if options.out else None
    if options.atlas:
        from seq2seq.analysis.atlas.write_atlas import write_atlas

        # None: all mixers of conf/mixer/self
        names = None if options.mixers is None else re.split(r",(?![^\[]*\])", options.mixers)
        # The default is filled in here, since `_check` compares with None
        limit = 10.0 if options.seconds is None else options.seconds
        return write_atlas(names, limit=limit, figure=options.figure, out=out, seed=options.seed)
    if options.ckpt:
        subject = model_report.of_checkpoint(
            Path(options.ckpt),
            text=options.text,
            target=options.target,
            src_lang=options.src_lang,
            tgt_lang=options.tgt_lang,
            trust=options.trust,
            out=out,
            seed=options.seed,
        )
    else:
        subject = model_report.of_settings(options.overrides, length=options.length or 16, out=out, seed=options.seed)
    model_report.write(subject)
    return 0


if __name__ == "__main__":
    run_command(main)
