"""Translate text with a checkpoint: standard input to standard output, one line out for every line in."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import math
import os
import stat
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seq2seq.data.languages import bcp47
from seq2seq.data.text_files import Stream, count_lines, open_text
from seq2seq.inference.documents.formats import FORMATS as DOCUMENTS
from seq2seq.inference.line_formats import FORMATS
from seq2seq.inference.line_progress import ProgressLine
from seq2seq.inference.mbr import UTILITIES
from seq2seq.inference.partial_output import PartialOutput, identity, resumable_file
from seq2seq.options.command_line import (
    Parser,
    exit_status,
    fail,
    nonempty,
    option_name,
    require_no_corpus,
    require_output,
    require_text_output,
    run_command,
    sentence,
    warn,
    whole_number,
)
from seq2seq.options.translation import (
    add_model_options,
    load_translator,
    search_of,
    search_range,
    value_of,
)
from seq2seq.settings.declare import keys
from seq2seq.settings.search import SamplingSettings, SearchSettings
from seq2seq.settings.values import shown
from seq2seq.system.files import atomic_text, compression, read_file, written_directly
from seq2seq.system.stdio import print_error, standard_input

if TYPE_CHECKING:
    from seq2seq.inference.translator import Translator

EPILOG = """\
Each input line gives one output line. Lines end at the byte \\n only; a \\r before it is dropped. Blank lines stay
blank, and invalid UTF-8 is replaced. A line of several sentences is translated sentence by sentence unless the model
was trained on such lines (--sentences). A sentence of more than --max-len pieces is translated in parts, with a
warning. If the model translates images, a line that is not an image (base64 of a PNG of the size trained on) stays
empty. Possible omissions are counted at the end, and --format json names them with each line (warnings).

With --n-best N, each input line gives N output lines, best first, in three columns separated by tabs (--format tsv):
the line's number from 1, the score (log-probability, natural logarithm, normalized by length), and the text. If a line
has fewer translations, empty ones with the score -inf follow; a line that failed has only these. --format json prints
one object for each input line: line, translation, score, and alternatives with --n-best.

Exit status: 0 done; 1 some lines failed, are empty and were named; 2 wrong options or files; 130 interrupted."""


def _parser() -> Parser:
    parser = Parser(prog="python -m seq2seq.translate", description=__doc__, epilog=EPILOG)
    add = parser.add_argument
    add("--ckpt", required=True, type=nonempty, metavar="FILE", help="checkpoint to translate with")
    add("--input", type=_file, metavar="FILE", help="text to translate (standard input, also by -)")
    text = "file for the translation, which appears when it is complete (standard output, also by -)"
    add("--output", type=_file, metavar="FILE", help=text)
    text = f"document to translate instead of lines ({', '.join(DOCUMENTS)}); needs --output"
    add("--document", type=nonempty, metavar="FILE", help=text)
    text = "keep the translations of an interrupted run (OUTPUT.partial), and continue it; needs --input and --output"
    add("--resume", action="store_true", help=text)
    count = whole_number(*search_range("n_best"))
    add("--n-best", type=count, default=1, metavar="N", help="translations for each line (1)")
    text = "what is printed: text alone, columns, or an object for each line (text; tsv with --n-best)"
    add("--format", choices=FORMATS, help=text)
    text = "with --format json, the pieces of the translation, each with its log-probability"
    add("--pieces", action="store_true", help=text)
    add("--align", action="store_true", help="with --format json, the word alignment of the translation")
    text = (
        "write word alignments of the translations, in Pharaoh format (source-target, from 0), when they are complete"
    )
    add("--alignments", type=nonempty, metavar="FILE", help=text)
    add_model_options(parser)
    add = parser.add_argument_group("constraints on translations").add_argument
    text = "beginnings of the translations, one line for each input line"
    add("--prefixes", type=nonempty, metavar="FILE", help=text)
    text = "phrases that the translations must contain, separated by tabs, one line for each input line"
    add("--phrases", type=nonempty, metavar="FILE", help=text)
    text = "pieces of the target's vocabulary that no translation may have"
    add("--suppress", nargs="+", type=sentence, default=[], metavar="PIECE", help=text)
    add = parser.add_argument_group("sampling instead of beam search").add_argument
    most = search_range("beam_size")[1]
    add("--samples", type=whole_number(1, most), metavar="N", help="sample N translations of each line")
    for name, field in keys(SamplingSettings).items():
        help = f"{field.metadata['help']} ({field.default})"
        add(option_name(name), help=help, **value_of(SamplingSettings, name))
    text = "print the samples that agree best with all of them, by sacreBLEU's chrF or BLEU (minimum Bayes risk)"
    add("--mbr", choices=UTILITIES, help=text)
    return parser


def _file(text: str) -> str | None:
    """Parse the name of a file; None for -, a standard stream."""
    return None if text == "-" else nonempty(text)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parser = _parser()
    options = parser.parse_args(argv)
    try:
        # Check before the model is loaded. Its beam size is not known yet: assume the smallest that fits the options
        groups = options.beam_groups or (1 if options.diversity is None else 2)
        beam = min(groups * math.ceil(options.n_best / groups), search_range("beam_size")[1])
        own = SearchSettings(beam_size=beam, beam_groups=groups if beam % groups == 0 else 1)
        _, options.sampling = search_of(options, own)
    except ValueError as error:
        parser.error(str(error))
    if not options.glossary:
        parser.refuse(options, ["glossary_by"], "needs --glossary")
    if options.document:
        if not options.output:
            parser.error("--document needs --output FILE")
        of = ["input", "resume", "n_best", "format", "pieces", "align", "alignments", "prefixes", "phrases", "samples"]
        parser.refuse(options, of, "works on lines only; leave it out with --document")
        return exit_status(lambda: _run_document(options))
    options.format = options.format or ("tsv" if options.n_best > 1 else "text")
    if options.resume and not (options.input and options.output):
        parser.error("--resume needs --input FILE and --output FILE")
    if options.resume and not Path(options.input).is_file():
        parser.error(f"--resume needs an input that can be read again, and {options.input} is not a regular file")
    if options.resume and compression(options.output):
        parser.error(f"--resume writes plain text, and {options.output} is compressed; compress it afterwards")
    if options.resume and options.alignments:
        parser.error("--alignments cannot be resumed; with --resume, use --format json --align")
    if options.format != "json":
        parser.refuse(options, ("pieces", "align"), "needs --format json")
    return exit_status(lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    """Open the files, load the model, translate, and return the exit status."""
    # Leaving the stack puts a whole output into place, or removes a partial one
    with contextlib.ExitStack() as stack:
        # In the order input, output, model, so that cheap mistakes are reported before the model is loaded
        if options.input is None:
            # Bytes, because text mode ends lines at \r, too
            source: Stream = standard_input()
        elif Path(options.input).is_dir():
            raise ValueError(f"{options.input} is a directory; name a file with --input")
        else:
            source = stack.enter_context(open(options.input, "rb"))
            if Path(options.input).suffix.lower() in DOCUMENTS:
                warn(
                    f"{options.input} is translated line by line, with its markup; --document translates its text alone"
                )
        _check_outputs(options, _descriptor(source))
        # Files with a line for each line of the input
        paths = {"prefixes": options.prefixes, "phrases": options.phrases}
        line_files = {name: stack.enter_context(open(path, "rb")) for name, path in paths.items() if path}
        _check_counts(options, source, line_files)
        translator = load_translator(options)
        _check_model(options, translator)
        partial = stack.enter_context(_partial_output(options, translator)) if options.resume else None
        if partial:
            sink: Stream = partial.file
        elif options.output is None:
            # `exit_status` makes sure that all bytes are written
            sink = sys.stdout.buffer
        else:
            # Opened last: from here on, an end without an exception puts the whole output into place
            sink = stack.enter_context(atomic_text(options.output))
        progress = ProgressLine()
        if sys.stderr is not None and sys.stderr.isatty() and (total := _lines_of(source)) is not None:
            progress = ProgressLine(total, done=partial.done if partial else 0, stream=sys.stderr)
        # Imports torch
        from seq2seq.inference.line_stream import LineStream

        session = LineStream(
            translator=translator,
            format=options.format,
            details=[field for field, asked in (("pieces", options.pieces), ("alignment", options.align)) if asked],
            warn=warn,
            options={name: getattr(options, name) for name in ("suppress", "sampling", "mbr")},
            line_files={name: open_text(stream) for name, stream in line_files.items()},
            alignments=None if options.alignments is None else stack.enter_context(atomic_text(options.alignments)),
            progress=progress,
            partial=partial,
        )
        if options.input is None and sys.stdin is not None and sys.stdin.isatty():
            print_error("type a line and press Enter; Ctrl-D ends")
        # Opened only now, since this waits for the first bytes
        session.run(open_text(source), sink)
    # After the stack: the output is complete, with an empty line for each failure
    if session.failed:
        return fail(f"{session.failed:,} of {session.lines:,} lines could not be translated and are empty", 1)
    return 0


def _run_document(options: argparse.Namespace) -> int:
    """Translate the texts of a document, and return the exit status."""
    source, output = Path(options.document), Path(options.output)
    translate_format = DOCUMENTS.get(source.suffix.lower())
    if translate_format is None:
        raise ValueError(f"--document {source}: known are {', '.join(DOCUMENTS)}; --input translates plain text")
    _check_outputs(options, source)
    data = read_file(source)
    translator = load_translator(options)
    # Imports torch
    from seq2seq.inference.forced_text import force_candidates
    from seq2seq.inference.glossary import TermCounts
    from seq2seq.inference.notes import Note, Notes

    notes = Notes(warn, what="text")
    terms = TermCounts()
    given: list[str] = []

    def translate(texts: Sequence[str], marked: Sequence[bool]) -> list[tuple[str, Any]]:
        """Translate texts, and align those with marks; one that fails keeps its source."""
        before = len(given)
        given.extend(texts)

        def note(told: Note) -> None:
            notes.add(told._replace(position=before + told.position))

        rows = [row[:1] for row in translator.translate(texts, note=note, suppress=options.suppress)]
        # ONNX graphs align no words
        asked = [i for i, each in enumerate(marked) if each and translator.can_force]
        pairs = [texts[i] for i in asked], [rows[i] for i in asked]
        forced = force_candidates(translator, *pairs, align=True)
        words = {i: row[0].words for i, row in zip(asked, forced, strict=True)}
        for number, (best,) in enumerate(rows, before + 1):
            terms.add(number, best.terms)
        return [(best.text if math.isfinite(best.score) else texts[i], words.get(i)) for i, (best,) in enumerate(rows)]

    try:
        translated = translate_format(data, translate, bcp47(translator.tgt_lang))
    except ValueError as error:
        raise ValueError(f"--document {source}: {error}") from error
    with atomic_text(output) as sink:
        sink.write(translated)
    if not given:
        warn(f"{source} has no text to translate")
    notes.report(len(given), name=lambda number: f"{number} ('{shown(given[number - 1], most=40)}')")
    if options.glossary:
        print_error(f"glossary: {terms}")
    if notes.failed:
        return fail(f"{len(notes.failed):,} texts could not be translated and are as in {source}", 1)
    return 0


def _check_outputs(options: argparse.Namespace, source: Path | int | None) -> None:
    """Raise ValueError for outputs that cannot be written, or that would replace an input or each other."""
    read = [source, options.prefixes, options.phrases, options.shortlist, options.glossary]
    inputs = [file for file in read if file is not None]
    for name in ("output", "alignments"):
        if path := getattr(options, name):
            require_output(Path(path), f"--{name}", inputs=inputs)
            for ckpt in (options.ckpt, *options.ensemble):
                require_text_output(Path(path), f"--{name}", ckpt=ckpt)
    if options.alignments is None:
        return
    # The output may be standard output, or a file still to be made
    sink = _descriptor(sys.stdout) if options.output is None else options.output
    require_output(Path(options.alignments), "--alignments", inputs=[] if sink is None else [sink], what="output")
    # A device may take both outputs
    if options.output is None or written_directly(options.output):
        return
    if os.path.realpath(options.alignments) == os.path.realpath(options.output):
        raise ValueError(f"--alignments {Path(options.alignments)} is the output; choose another file")


def _descriptor(stream: Any) -> int | None:
    """Return the descriptor of a stream; None for one in memory."""
    try:
        return stream.fileno()
    except (OSError, ValueError):
        return None


def _check_counts(options: argparse.Namespace, source: Stream, line_files: Mapping[str, Stream]) -> None:
    """Raise ValueError for files that do not have as many lines as the input, where both can be counted."""
    for name, stream in line_files.items():
        found = _lines_of(stream)
        wanted = None if found is None else _lines_of(source)
        if wanted is not None and found != wanted:
            path = getattr(options, name)
            raise ValueError(f"--{name} {path} has {found:,} lines, and the input {wanted:,}; it needs one for each")


def _lines_of(stream: Stream) -> int | None:
    """Count the lines of a regular file from its start; None for other streams."""
    descriptor = _descriptor(stream)
    if descriptor is None or not stat.S_ISREG(os.fstat(descriptor).st_mode):
        return None
    return count_lines(stream)


def _check_model(options: argparse.Namespace, translator: Translator) -> None:
    """Raise ValueError for options that the model cannot serve, and for outputs that would replace a corpus."""
    asked = [f"--{name}" for name in ("alignments", "align", "pieces") if getattr(options, name)]
    if asked and not translator.can_force:
        raise ValueError(
            f"{asked[0]} needs a model that reads whole translations, and ONNX graphs only decode step by step; "
            f"name the checkpoint, or leave out {asked[0]}"
        )
    for option, path in (("--output", options.output), ("--alignments", options.alignments)):
        if path is not None:
            require_no_corpus(Path(path), option, [translator.src_lang, translator.tgt_lang])


def _partial_output(
    options: argparse.Namespace, translator: Translator
) -> contextlib.AbstractContextManager[PartialOutput]:
    """Open the partial output of an earlier run, or a new one."""
    # Imports torch
    from seq2seq.inference.model_files import files_of, locate

    made_by = dataclasses.asdict(translator.settings)
    if options.sampling:
        made_by |= dataclasses.asdict(options.sampling)
    made_by |= {name: getattr(options, name) for name in ("format", "pieces", "align", "suppress", "samples", "mbr")}
    how = ("dtype", "max_len", "sentences", "src_lang", "tgt_lang", "glossary_by")
    made_by |= {name: getattr(translator, name) for name in how}
    for name in ("input", "prefixes", "phrases", "shortlist", "glossary"):
        path = getattr(options, name)
        made_by[name] = None if path is None else identity(path)
    models = (options.ckpt, *options.ensemble)
    made_by["ckpt"], *made_by["ensemble"] = [identity(*files_of(locate(path))) for path in models]
    return resumable_file(Path(options.output), made_by=made_by)


if __name__ == "__main__":
    run_command(main)
