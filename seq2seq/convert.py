"""Convert a published model to a checkpoint: OPUS-MT, NLLB-200, M2M-100, or a model of fairseq."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from seq2seq.options.command_line import (
    Parser,
    exit_status,
    nonempty,
    require_new_checkpoint,
    require_output,
    run_command,
)
from seq2seq.system.model_path import WEIGHTS

FAMILIES = ("marian", "m2m100", "fairseq")
EPILOG = """\
Examples:
  python -m seq2seq.convert opus-mt-de-en --out de-en.safetensors
  python -m seq2seq.translate --ckpt de-en.safetensors < in.de > out.en
  python -m seq2seq.train data=files data.train=my.de init_from=de-en.safetensors

marian   MarianMTModel and MarianTokenizer: config.json, source.spm, target.spm, vocab.json, and weights in
         model.safetensors or pytorch_model.bin
m2m100   M2M100ForConditionalGeneration, as NLLB-200 and M2M-100: config.json, weights, and tokenizer.json or, of
         M2M-100, vocab.json and sentencepiece.bpe.model; name default languages by --src-lang and --tgt-lang
fairseq  Transformer, LightConv and DynamicConv: model.pt, dict.<language>.txt of both languages, and bpecodes of
         subword-nmt or fastBPE, for text that Moses has tokenized, or a SentencePiece model; needs --trust

Nothing in the folder is executed. The result is a checkpoint like any other: translate, serve, score, average and
export take it, and training starts from it with init_from. Exit status: 0 done; 2 wrong options or files, or a model
that cannot be expressed; 130 interrupted."""


def _parser() -> Parser:
    parser = Parser(prog="python -m seq2seq.convert", description=__doc__, epilog=EPILOG)
    add = parser.add_argument
    add("model", type=nonempty, metavar="FOLDER", help="folder of the model; or a checkpoint .pt of fairseq in it")
    text = "checkpoint to write, a .safetensors file; or a folder, for model.safetensors in it"
    add("--out", required=True, type=nonempty, metavar="PATH", help=text)
    add("--from", dest="family", choices=FAMILIES, help="family of the model (default: recognized by its files)")
    text = "source language; the default one if the model has several (default: read from the folder)"
    add("--src-lang", type=nonempty, metavar="LANG", help=text)
    text = "target language, likewise"
    add("--tgt-lang", type=nonempty, metavar="LANG", help=text)
    text = "read a file of pickled objects; only tensors and settings are read, but know its origin"
    add("--trust", action="store_true", help=text)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    options = _parser().parse_args(argv)
    return exit_status(lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    """Convert the model, and print what it translates and how to use it."""
    model = Path(options.model)
    if not model.exists():
        raise ValueError(f"{model}: no such folder; name the folder of a downloaded model")
    folder = model if model.is_dir() else model.parent
    out = Path(options.out)
    if out.suffix != WEIGHTS.suffix:
        out.mkdir(parents=True, exist_ok=True)
        out /= WEIGHTS
    require_output(out, "--out", inputs=[path for path in folder.iterdir() if path.is_file()])
    # These import torch, so they come after the checks of the options
    from seq2seq import checkpoint
    from seq2seq.inference.imports.published import imported
    from seq2seq.runs.folder import translate_command

    require_new_checkpoint(out)
    stored = imported(
        model, family=options.family, src_lang=options.src_lang, tgt_lang=options.tgt_lang, trust=options.trust
    )
    checkpoint.save(out, stored)
    meta = stored.meta
    targets = meta.get("tgt_langs") or [meta["tgt_lang"]]
    count = sum(weight.numel() for weight in stored.weights.values())
    print(f"{count:,} weights; translates {meta['src_lang']} to {', '.join(targets)}")
    print(f"translate with: {translate_command(out)}")
    return 0


if __name__ == "__main__":
    run_command(main)
