"""Export a checkpoint for other programs: CTranslate2, ONNX, or Hugging Face's safetensors and Marian."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from seq2seq.inference.export.layouts import LAYOUTS, foreign_part
from seq2seq.options.command_line import Parser, exit_status, nonempty, require_folder, run_command, warn
from seq2seq.system.cores import Cores
from seq2seq.system.stdio import print_error

EPILOG = """\
Examples:
  python -m seq2seq.export --ckpt runs/demo --format onnx --out exported
  python -m seq2seq.translate --ckpt exported < in.de > out.en

ctranslate2   plain Transformers only; read by ctranslate2.Translator
onnx          any mixer that torch's exporter takes; read by translate, score, serve and Translator.load, and by
              ONNX Runtime without this program
huggingface   any mixer: weights as safetensors with a model card, read by translate, score, serve and Translator.load;
              of plain Transformers also a folder `marian`, read by transformers.MarianMTModel

Before the folder appears, the exported model must translate drawn sentences token for token as the checkpoint does, up
to tokens of nearly equal probability (with int8: as the same integers computed by torch).
Needs pip install 'seq2seq-mixers[export]'. Exit status: 0 done; 2 wrong options or files, or a model that the format
cannot express; 130 interrupted."""


def _parser() -> Parser:
    parser = Parser(prog="python -m seq2seq.export", description=__doc__, epilog=EPILOG)
    add = parser.add_argument
    text = "checkpoint, or the folder of a run or of exported weights"
    add("--ckpt", required=True, type=nonempty, metavar="PATH", help=text)
    add("--format", required=True, choices=tuple(LAYOUTS), help="see below")
    text = "onnx: numbers of the linear layers; int8 is faster and a little less exact (default: float32)"
    add("--dtype", choices=("float32", "int8"), default="float32", help=text)
    add("--out", required=True, type=nonempty, metavar="FOLDER", help="folder to write; an earlier export is replaced")
    text = "package, besides seq2seq, whose mixers the checkpoint may name; may be repeated"
    add("--trust", action="append", default=[], metavar="PACKAGE", help=text)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    options = _parser().parse_args(argv)
    return exit_status(lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    """Export the model, and print what was compared and how to use the folder."""
    cores = Cores()
    out = require_folder(Path(options.out))
    # The folder is replaced as a whole, and the shell would be left in the old one
    if Path.cwd().is_relative_to(out.resolve()):
        raise ValueError(f"--out {out}: this command runs within that folder, which cannot be replaced; name another")
    if out.is_dir() and (reason := foreign_part(out, LAYOUTS[options.format])):
        raise ValueError(f"--out {out}: {reason}; choose another folder, or empty it first")
    # Before imports, which take seconds
    print_error(f"writing {options.format}, and comparing translations with the checkpoint's: this may take minutes")
    import torch

    from seq2seq.inference.export.agreement import SENTENCES
    from seq2seq.inference.export.card import Origin
    from seq2seq.inference.export.formats import export_model
    from seq2seq.runs.folder import translate_command
    from seq2seq.runs.results import read_origin

    torch.set_num_threads(cores.threads(torch.get_num_threads()))
    origin = Origin(*read_origin(Path(options.ckpt)))
    agreed, notes = export_model(
        options.ckpt, out, format=options.format, origin=origin, trust=options.trust, dtype=options.dtype
    )
    for note in notes:
        warn(note)
    for name, count in agreed.items():
        what = "this model in integers" if options.dtype == "int8" else "the checkpoint"
        rest = f", {SENTENCES - count} up to two tokens of nearly equal probability" if count < SENTENCES else ""
        print(f"{name} translates {SENTENCES} sentences as {what} does: {count} token for token{rest}")
    if options.format != "ctranslate2":
        print(f"translate with: {translate_command(out, trust=options.trust)}")
    print(f"{options.format}: {out}")
    return 0


if __name__ == "__main__":
    run_command(main)
