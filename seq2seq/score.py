"""Score translations with sacreBLEU: a file against references, a checkpoint on a data set, or systems in pairs."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seq2seq.options.command_line import (
    Parser,
    exit_status,
    fail,
    nonempty,
    positive,
    require_text_output,
    run_command,
    warn,
    whole_number,
)
from seq2seq.options.translation import add_model_options, load_translator
from seq2seq.settings.data import CONVENTIONS, METRICS, MOST_SAMPLES, USUAL_METRICS

if TYPE_CHECKING:
    from seq2seq.evaluation.scoring import ScoreSettings

EPILOG = """\
Examples:
  python -m seq2seq.score --hypotheses out.en --references test.en
  python -m seq2seq.score --ckpt runs/demo                                # the test set of the run's own data
  python -m seq2seq.score --ckpt runs/demo --data multi30k --split valid
  python -m seq2seq.score --ckpt runs/demo --data files test=corpus/test  # corpus/test.de and corpus/test.en
  python -m seq2seq.score --hypotheses out.de --references test.de --lang de --convention compound-split
  python -m seq2seq.score --ckpt runs/demo --forced-decoding test.de test.en    # log-probabilities of given pairs
  python -m seq2seq.score --compare baseline.en new.en --references test.en

Text is detokenized, one sentence a line; lines end at the byte \\n only; .gz, .bz2, .xz and .zst are decompressed.
BLEU, chrF and chrF++ grow with quality, TER falls. Exit status: 0 done; 1 some sentences could not be translated and
count as empty; 2 wrong options or files; 130 interrupted."""

# The options that have an effect with --forced-decoding: log-probabilities of given translations.
FORCED = {"ckpt", "forced_decoding", "json", "align", "max_tokens", "max_len", "ensemble", "tgt_lang", "src_lang"}
FORCED |= {"device", "dtype", "threads", "trust"}


def _parser() -> Parser:
    parser = Parser(prog="python -m seq2seq.score", description=__doc__, epilog=EPILOG)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--hypotheses", type=nonempty, metavar="FILE", help="translations to score; - is standard input")
    mode.add_argument("--ckpt", type=nonempty, metavar="FILE", help="checkpoint to score on a data set")
    text = "translations to compare; the first is the baseline"
    mode.add_argument("--compare", nargs="+", type=nonempty, metavar="FILE", help=text)
    text = "one or more reference translations"
    parser.add_argument("--references", nargs="+", type=nonempty, metavar="FILE", help=text)
    add = parser.add_argument_group("scores").add_argument
    add("--metrics", nargs="+", choices=METRICS, default=list(USUAL_METRICS), help="which scores (bleu chrf)")
    text = "sacreBLEU's tokenizer for BLEU: 13a, zh, char, intl, none, ... (by --lang)"
    add("--tokenize", type=nonempty, metavar="NAME", help=text)
    text = "target language, for the tokenizer (the checkpoint's, else by suffix and script)"
    add("--lang", type=nonempty, metavar="CODE", help=text)
    add("--lowercase", action="store_true", help="ignore case")
    text = "also report BLEU as papers do: on Moses tokens of --lang, or on these tokens split at hyphens (En-De)"
    add("--convention", choices=CONVENTIONS, help=text)
    count = whole_number(1, MOST_SAMPLES)
    add("--resamples", type=count, default=1000, metavar="N", help="bootstrap resamples of --compare (1000)")
    add("--json", action="store_true", help="print JSON")
    add = parser.add_argument_group("data set, with --ckpt").add_argument
    text = "a name in conf/data, or a run's config.yaml, then settings (the checkpoint's own data)"
    add("--data", nargs="+", type=nonempty, default=[], metavar="NAME|KEY=VALUE", help=text)
    add("--split", choices=("train", "valid", "test"), default="test", help="which part of it (test)")
    add("--limit", type=positive, metavar="N", help="only its first N sentences")
    add("--save", type=nonempty, metavar="FILE", help="write the translations here")
    text = "instead of a data set: log-probabilities of given translations, by sentence and piece (--json: more)"
    add("--forced-decoding", nargs=2, type=nonempty, metavar=("SOURCES", "TRANSLATIONS"), help=text)
    add("--align", action="store_true", help="with --forced-decoding --json: align words, in Pharaoh format")
    # The variable that conf/train.yaml reads, too
    cache = os.environ.get("SEQ2SEQ_CACHE") or ".cache"
    text = "folder of prepared data ($SEQ2SEQ_CACHE or .cache)"
    add("--cache", type=nonempty, default=cache, metavar="FOLDER", help=text)
    add_model_options(parser.add_argument_group("translation, with --ckpt"), sentences="keep")
    # The type in which a run scores its own test set
    parser.set_defaults(dtype="float32")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parser = _parser()
    options = parser.parse_args(argv)
    # Combinations that argparse cannot express, before anything is imported
    if not options.ckpt and not options.references:
        parser.error("--hypotheses and --compare need --references")
    if options.ckpt and options.references:
        parser.error("--ckpt takes its references from --data; give --hypotheses with --references")
    if options.compare and len(options.compare) < 2:
        parser.error("--compare needs two files or more")
    if options.align and not (options.forced_decoding and options.json):
        parser.error("--align needs --forced-decoding and --json")
    _refuse_idle(parser, options)
    if options.convention and options.compare:
        parser.error("--convention needs --hypotheses or --ckpt; --compare resamples sacreBLEU's scores")
    if options.convention and options.hypotheses and not options.lang:
        parser.error("--convention needs --lang: Moses cuts words by language")
    return exit_status(lambda: _run(options))


def _refuse_idle(parser: Parser, options: argparse.Namespace) -> None:
    """Refuse options that have no effect with --compare, --hypotheses, --ckpt or --forced-decoding."""
    if not options.compare:
        parser.refuse(options, ("resamples",), "needs --compare")
    if not options.glossary:
        parser.refuse(options, ("glossary_by",), "needs --glossary")
    if not options.ckpt:
        groups = [group for group in parser._action_groups if (group.title or "").endswith("with --ckpt")]
        names = [action.dest for group in groups for action in group._group_actions]
        parser.refuse(options, names, "needs --ckpt; files are scored as they are")
    if options.forced_decoding:
        names = [name for name in vars(options) if name not in FORCED]
        why = "has no effect with --forced-decoding, which neither searches nor compares: leave it out"
        parser.refuse(options, names, why)


def _run(options: argparse.Namespace) -> int:
    """Score, and print the report as text or JSON."""
    if options.forced_decoding:
        return _force(options)
    # sacreBLEU is imported only once the options are right
    from seq2seq.evaluation.scoring import ScoreSettings, compare_systems, report_text, score_file

    fields = dataclasses.fields(ScoreSettings)
    settings = ScoreSettings(**{field.name: getattr(options, field.name) for field in fields})
    if options.ckpt:
        report = _score_checkpoint(options, settings)
    elif options.compare:
        report = compare_systems(options.compare, options.references, settings, samples=options.resamples, warn=warn)
    else:
        report = score_file(options.hypotheses, options.references, settings, warn=warn)
    print(json.dumps(report, ensure_ascii=False, indent=2) if options.json else report_text(report), flush=True)
    if failed := report.get("failed"):
        return fail(f"{failed:,} of {report['lines']:,} sentences could not be translated and count as empty", 1)
    return 0


def _force(options: argparse.Namespace) -> int:
    """Print the log-probabilities of given translations, a line for each."""
    from seq2seq.evaluation.scoring import read_text

    sources, targets = (read_text(path, warn=warn) for path in options.forced_decoding)
    if len(sources) != len(targets):
        raise ValueError(
            f"{options.forced_decoding[0]} has {len(sources):,} lines and {options.forced_decoding[1]} {len(targets):,}"
        )
    translator = load_translator(options)
    from seq2seq.inference.forced_text import force_lines

    found = force_lines(
        translator,
        translator.in_context(zip(sources, targets, strict=True)),
        note=lambda note: warn(f"line {note.position + 1} {note.text}"),
        align=options.align,
    )
    for line in found:
        print(json.dumps(line.as_dict(), ensure_ascii=False) if options.json else line.as_text())
    return 0


def _score_checkpoint(options: argparse.Namespace, settings: ScoreSettings) -> dict[str, Any]:
    """Translate a split with a checkpoint, and score the translations."""
    from seq2seq.evaluation.eval_data import read_words

    # Checked before the model is loaded; `score_checkpoint` also protects the files of the corpus
    save = Path(options.save) if options.save else None
    if save:
        require_text_output(save, "--save", ckpt=options.ckpt)
    # Raises ValueError for a wrong tokenizer or wrong words, before the checkpoint is read
    settings.resolved()
    read_words(options.data)
    from seq2seq.evaluation.checkpoint_score import score_checkpoint

    translator = load_translator(options)
    # These options have the names of the arguments
    rest = {field: getattr(options, field) for field in ("ckpt", "data", "split", "limit")}
    return score_checkpoint(translator, settings, warn=warn, cache=Path(options.cache), save=save, **rest)


if __name__ == "__main__":
    run_command(main)
