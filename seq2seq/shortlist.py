"""Make a shortlist from a parallel corpus: the target pieces that translations of each source piece may have."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from seq2seq.options.command_line import (
    Parser,
    exit_status,
    nonempty,
    require_output,
    run_command,
    whole_number,
)
from seq2seq.system.stdio import print_error

EPILOG = """\
Examples:
  python -m seq2seq.shortlist --ckpt runs/demo --src train.de --tgt train.en --out short.npz
  python -m seq2seq.translate --ckpt runs/demo --shortlist short.npz < in.de > out.en

With a shortlist, translate computes the scores of its pieces only, which is faster if the vocabulary is large. The
pieces come from lexical translation probabilities (IBM Model 1). The corpus is read once for each iteration; pairs with
a side of more than 100 pieces are left out. It may be compressed (.gz, .bz2, .xz, .zst).

Exit status: 0 done; 2 wrong options or files; 130 interrupted."""


def _parser() -> Parser:
    parser = Parser(prog="python -m seq2seq.shortlist", description=__doc__, epilog=EPILOG)
    add = parser.add_argument
    add("--ckpt", required=True, type=nonempty, metavar="FILE", help="checkpoint, or exported folder, of the tokenizer")
    add("--src", required=True, type=nonempty, metavar="FILE", help="the corpus's source, line by line")
    add("--tgt", required=True, type=nonempty, metavar="FILE", help="its translation")
    add("--out", required=True, type=nonempty, metavar="FILE", help="shortlist to write; an earlier one is replaced")
    add("--best", type=whole_number(1, 10_000), default=100, metavar="N", help="translations of each piece (100)")
    text = "most frequent pieces, which every translation may have (100)"
    add("--frequent", type=whole_number(0, 10**6), default=100, metavar="N", help=text)
    add("--iterations", type=whole_number(1, 100), default=5, metavar="N", help="iterations of the estimate (5)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    options = _parser().parse_args(argv)
    return exit_status(lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    """Estimate the shortlist, write it, and print what it covers and how to use it."""
    out = Path(options.out)
    require_output(out, "--out", inputs=[options.ckpt, options.src, options.tgt])
    if os.path.realpath(options.src) == os.path.realpath(options.tgt):
        raise ValueError("--src and --tgt are the same file; name the two sides of a corpus")
    for option, path in (("--src", Path(options.src)), ("--tgt", Path(options.tgt))):
        if path.exists() and not path.is_file():
            raise ValueError(f"{option} {path} is not a regular file, and each iteration reads it again; name a file")
    # These import torch, so they come after the checks of the options
    from seq2seq.inference.lexical_shortlist import is_shortlist, make_shortlist
    from seq2seq.inference.model_files import load_tokenizer, locate
    from seq2seq.runs.folder import translate_command

    if out.is_file() and not is_shortlist(out):
        raise ValueError(f"--out {out} exists and is not a shortlist; choose another file, or remove it first")
    how = {name: getattr(options, name) for name in ("best", "frequent", "iterations")}

    def progress(done: int, entries: int) -> None:
        print_error(f"iteration {done} of {options.iterations}: {entries:,} pairs of pieces")

    tokenizer = load_tokenizer(locate(options.ckpt))
    sides = Path(options.src), Path(options.tgt)
    made, covered, size = make_shortlist(tokenizer, *sides, **how, progress=progress)
    made.save(out, **how)
    lists = f"the lists of {size:.0f} of {tokenizer.tgt_vocab_size:,} pieces"
    print(f"{lists} contain {covered:.2%} of the translations' pieces")
    print(f"translate with: {translate_command(options.ckpt, '--shortlist', str(out))}")
    return 0


if __name__ == "__main__":
    run_command(main)
