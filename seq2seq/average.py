"""Average the weights of checkpoints: the last ones of a run often translate better together than the best alone."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from seq2seq.options.command_line import (
    Parser,
    exit_status,
    nonempty,
    positive,
    require_new_checkpoint,
    require_output,
    run_command,
)

EPILOG = """\
Examples:
  python -m seq2seq.average --out mean.safetensors runs/a runs/b runs/c
  python -m seq2seq.average --last 5 runs/multi30k-...      # writes checkpoints/average.safetensors in it

--last takes the run's latest checkpoints/step-*.safetensors, which training keeps with trainer.keep_last=5.
The mean is taken in float64 and stored in the type of the first checkpoint, at least float32. The result can be used
like any other checkpoint. Exit status: 0 done; 2 wrong options or files; 130 interrupted."""


def _parser() -> Parser:
    parser = Parser(prog="python -m seq2seq.average", description=__doc__, epilog=EPILOG)
    add = parser.add_argument
    text = "checkpoints, or folders of runs or of exported weights; with --last, one run's"
    add("checkpoints", nargs="+", type=nonempty, metavar="CKPT", help=text)
    add("--last", type=positive, metavar="N", help="the latest N checkpoints of the run")
    text = "checkpoint to write (with --last: checkpoints/average.safetensors)"
    add("--out", type=nonempty, metavar="FILE", help=text)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parser = _parser()
    options = parser.parse_args(argv)
    # Combinations that argparse cannot express
    if options.last and len(options.checkpoints) > 1:
        parser.error("--last N takes one run's folder")
    if not options.last and not options.out:
        parser.error("name the file to write with --out")
    return exit_status(lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    """Average the checkpoints that the options name, write the result, and print how to use it."""
    # These import torch, so they come after the checks of the options
    from seq2seq import checkpoint
    from seq2seq.runs.averaging import average, latest_checkpoints
    from seq2seq.runs.folder import translate_command
    from seq2seq.system.model_path import checkpoint_file

    paths = [Path(path) for path in options.checkpoints]
    out = Path(options.out) if options.out else paths[0] / "checkpoints" / "average.safetensors"
    require_new_checkpoint(out)
    if options.last:
        paths = latest_checkpoints(paths[0], options.last)
    paths = [checkpoint_file(path) for path in paths]
    files = [path.resolve() for path in paths]
    if twice := [path for path, file in zip(paths, files, strict=True) if files.count(file) > 1]:
        raise ValueError(f"{twice[-1]} is named twice; name each checkpoint once")
    require_output(out, "--out", inputs=paths)
    checkpoint.save(out, average(paths))
    print(f"the mean of {', '.join(str(path) for path in paths)}")
    print(f"translate with: {translate_command(out)}")
    return 0


if __name__ == "__main__":
    run_command(main)
