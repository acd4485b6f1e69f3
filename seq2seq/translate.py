"""Translate text with a checkpoint: standard input to standard output, one line out for every line in."""

from __future__ import annotations

import argparse
import codecs
import contextlib
import dataclasses
import logging
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, NamedTuple, NoReturn

if TYPE_CHECKING:
    import torch

    from seq2seq.model import Seq2Seq
    from seq2seq.search import Hypothesis, SearchSettings
    from seq2seq.tokenizer import Tokenizer

log = logging.getLogger(__name__)

WINDOW_LINES = 4096  # lines sorted by length together
WINDOW_BYTES = 2 << 20
LINE_BYTES = 1 << 20  # of a longer line, only these are kept; the rest is counted and dropped
PAUSE_SECONDS = 0.1  # input that stays silent for so long is waited for no more: what is there is translated
PATIENCE_SECONDS = 1.0  # and so is a window whose first line is this old
CPU_TOKENS, GPU_TOKENS = 2048, 8192  # source pieces in a batch
DTYPES = ("float32", "bfloat16")

EPILOG = """\
Lines end at the byte \\n only; a \\r before it is dropped. Blank lines give empty lines, invalid UTF-8 is replaced,
a line of more than --max-len pieces is cut with a warning, and a line that should be a picture (base64 of a grey PNG of
the size trained on) and is none stays empty: there is always one line out for each line in.

With --n-best N there are N lines for each, best first, in three columns set apart by tabs: the line's number from 1,
the score (log-probability, natural logarithm, normalised by length), and the text.

Exit status: 0 done; 1 some lines failed, are empty and were named; 2 wrong options or files; 130 interrupted."""


class UsageError(ValueError):
    """What the user asked for cannot be done here, and the remedy, in one line."""


class Candidate(NamedTuple):
    """A translation and its length-normalised log-probability (natural logarithm)."""

    text: str
    score: float


class Note(NamedTuple):
    """What happened to line `position`, from 0: `kept` of its `pieces` were translated, or it failed."""

    position: int
    pieces: int
    kept: int
    error: str = ""

    def __str__(self) -> str:
        if self.error:
            return f"was not translated and is empty ({self.error})"
        return f"is cut: {self.pieces:,} pieces, the first {self.kept:,} are translated"


class Translator:
    """A checkpoint, loaded once, that translates any number of lists of lines, whatever is in them."""

    def __init__(
        self,
        *,
        model: Seq2Seq,
        tokenizer: Tokenizer,
        meta: dict[str, Any],
        settings: SearchSettings,
        device: str | torch.device = "cpu",
        max_tokens: int = 2048,
        max_len: int = 1024,
        tags: Sequence[int] = (),
    ) -> None:
        self.tags = list(tags)  # ids before every source
        self.model, self.tokenizer, self.meta, self.settings = model, tokenizer, meta, settings
        self.device, self.max_tokens, self.max_len = device, max_tokens, max_len

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        settings: SearchSettings | None = None,
        device: str = "auto",
        dtype: str = "float32",
        trust: Sequence[str] = (),
        max_tokens: int | None = None,
        max_len: int = 1024,
        tgt_lang: str | None = None,
    ) -> Translator:
        """Open the checkpoint `path`; ValueError, in one line, for a checkpoint, device or dtype that cannot be used.

        Without `settings` the search is the run's: what the checkpoint says, else SearchSettings' defaults. A batch
        holds at most `max_tokens` source pieces, padding counted (default: by device); a line, `max_len`.
        `tgt_lang` chooses among the languages of a checkpoint that has several (default: the one it names first).
        """
        place = choose_device(device)
        from seq2seq.build import max_positions
        from seq2seq.checkpoint import load, search_settings

        loaded = load(path, device=place, trust=trust)
        _convert(loaded.model, dtype)
        positions = max_positions(loaded.meta["model"])
        return cls(
            model=loaded.model,
            tokenizer=loaded.tokenizer,
            meta=loaded.meta,
            settings=dataclasses.replace(settings or search_settings(loaded.meta), max_len=positions),
            device=place,
            max_tokens=max_tokens or (CPU_TOKENS if place == "cpu" else GPU_TOKENS),
            max_len=min(max_len, positions or max_len),
            tags=_target_tags(loaded.meta, loaded.tokenizer, tgt_lang),
        )

    def translate(
        self,
        lines: Sequence[str],
        *,
        settings: SearchSettings | None = None,
        note: Callable[[Note], None] | None = None,
    ) -> list[list[Candidate]]:
        """For every line exactly `n_best` candidates, best first; a blank line's are empty.

        `note` is told of lines that were cut or failed (default: a logged warning). In float32 a line's text does not
        depend on the lines beside it.
        """
        settings = dataclasses.replace(settings or self.settings, max_len=self.settings.max_len)
        note = note or (lambda n: log.warning("line %d %s", n.position + 1, n))
        ids = self._encode(lines, note)
        found: list[list[Candidate]] = [[] for _ in lines]
        for rows in self._batches(ids):
            self._fill(found, ids, rows, settings, note)
        for candidates in found:
            # blank lines, and beams that ended with fewer hypotheses than were asked for
            score = 0.0 if not candidates else float("-inf")
            candidates += [Candidate("", score)] * (settings.n_best - len(candidates))
        return found

    def texts(self, lines: Sequence[str], *, note: Callable[[Note], None] | None = None) -> list[str]:
        """The best translation of every line."""
        return [candidates[0].text for candidates in self.translate(lines, note=note)]

    def _encode(self, lines: Sequence[str], note: Callable[[Note], None]) -> list[list[int]]:
        """Source ids of every line, at most `max_len` with the final eos; [] for a line that has nothing to translate.

        At most a megabyte of text is tokenised at a time, so that a window of huge lines fits in memory.
        """
        ids: list[list[int]] = [[] for _ in lines]
        for chosen in _chunks(lines, WINDOW_BYTES // 2):
            for i, row in self._source_ids({i: _unicode(lines[i]) for i in chosen}, note):
                longest = max(2, self.max_len - len(self.tags))
                if len(row) > longest and not self.tokenizer.patches:
                    note(Note(i, len(row) - 1, longest - 1))
                    row = [*row[: longest - 1], row[-1]]
                ids[i] = [*self.tags, *row] if len(row) > 1 else []
        return ids

    def _source_ids(self, lines: dict[int, str], note: Callable[[Note], None]) -> Iterator[tuple[int, list[int]]]:
        """The number and ids of each line; what is no picture, where there should be one, is noted and left out."""
        from seq2seq.pictures import PictureError

        try:
            yield from zip(lines, self.tokenizer.encode_src(list(lines.values())), strict=True)
        except PictureError as error:
            if len(lines) == 1:
                note(Note(next(iter(lines)), 0, 0, error.reason))
                return
            numbers = list(lines)
            for half in (numbers[: len(lines) // 2], numbers[len(lines) // 2 :]):
                yield from self._source_ids({i: lines[i] for i in half}, note)

    def _batches(self, ids: list[list[int]]) -> Iterator[list[int]]:
        """Positions of the lines to translate, those of similar length together, longest first."""
        import numpy as np

        from seq2seq.batching import token_batches

        rows = np.array([i for i, row in enumerate(ids) if row], dtype=np.int64)
        if rows.size:
            lengths = np.array([len(ids[i]) for i in rows], dtype=np.int64)
            for batch in token_batches(lengths, lengths, max_tokens=self.max_tokens, shuffle=False):
                yield rows[batch].tolist()

    def _fill(
        self,
        found: list[list[Candidate]],
        ids: list[list[int]],
        rows: list[int],
        settings: SearchSettings,
        note: Callable[[Note], None],
    ) -> None:
        """Translate `rows` into `found`; a batch that fails, for want of memory say, is halved and tried again."""
        try:
            hypotheses = self._search([ids[i] for i in rows], settings)
        except (RuntimeError, ValueError, MemoryError) as error:
            if len(rows) == 1:
                reason = next(iter(str(error).splitlines()), "")[:200] or type(error).__name__
                note(Note(rows[0], len(ids[rows[0]]) - 1, 0, reason))
                return
            for half in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
                self._fill(found, ids, half, settings, note)
            return
        texts = iter(self.tokenizer.decode([h.ids for beams in hypotheses for h in beams]))
        for i, beams in zip(rows, hypotheses, strict=True):
            found[i] = [Candidate(next(texts), float(h.score)) for h in beams[: settings.n_best]]

    def _search(self, rows: list[list[int]], settings: SearchSettings) -> list[list[Hypothesis]]:
        import torch

        from seq2seq.search import search

        t = self.tokenizer
        lengths = torch.tensor([len(row) for row in rows])
        src = torch.full((len(rows), int(lengths.max())), t.pad_id)  # (B, S)
        for i, row in enumerate(rows):
            src[i, : len(row)] = torch.tensor(row)
        mask = torch.arange(src.shape[1]) < lengths[:, None]  # (B, S)
        with torch.inference_mode():
            src, mask = src.to(self.device), mask.to(self.device)
            return search(self.model, src, mask, settings=settings, bos_id=t.bos_id, eos_id=t.eos_id, pad_id=t.pad_id)


def choose_device(name: str) -> str:
    """`auto` is the GPU if there is one; UsageError for a GPU that is not there or a name that is no device."""
    import torch

    kind, _, number = name.partition(":")
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cpu":
        return name
    if kind != "cuda" or (number and not number.isdecimal()):
        raise UsageError(f"unknown device '{name}': choose cpu, cuda, cuda:N or auto")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if int(number or 0) >= count:
        raise UsageError(f"device '{name}' is not there ({count} GPUs are visible to torch); use --device cpu")
    return name


def _target_tags(meta: dict[str, Any], tokenizer: Tokenizer, tgt_lang: str | None) -> list[int]:
    """The ids that ask for a target language; none where the model has only one."""
    from seq2seq.tokenizer import language_tag

    languages = meta.get("tgt_langs")
    languages = [str(language) for language in languages] if isinstance(languages, list) else []
    wanted = tgt_lang or meta["tgt_lang"]
    if wanted not in (languages or [meta["tgt_lang"]]):
        known = ", ".join(languages or [meta["tgt_lang"]])
        raise UsageError(f"this checkpoint does not translate to '{wanted}'; it translates to {known}")
    return tokenizer.tag_ids([language_tag(wanted)]) if languages else []


def _convert(model: Seq2Seq, dtype: str) -> None:
    """Store the weights in `dtype`; buffers stay as they are (the rates of sinusoidal positions need float32)."""
    import torch

    if dtype not in DTYPES:
        raise UsageError(f"unknown dtype '{dtype}': choose {' or '.join(DTYPES)}")
    for parameter in model.parameters():
        parameter.data = parameter.data.to(getattr(torch, dtype))


def _unicode(line: str) -> str:
    """The line without lone surrogates, which no UTF-8 tokeniser takes."""
    try:
        line.encode()
    except UnicodeEncodeError:
        return line.encode("utf-8", "replace").decode()
    return line


def _chunks(lines: Sequence[str], size: int) -> Iterator[list[int]]:
    """Positions of the lines that are not blank, in runs of at most `size` characters (or of one line)."""
    chosen: list[int] = []
    total = 0
    for i, line in enumerate(lines):
        if not line.strip():
            continue
        if chosen and total + len(line) > size:
            yield chosen
            chosen, total = [], 0
        chosen.append(i)
        total += len(line)
    if chosen:
        yield chosen


class RawLine(NamedTuple):
    """A line as it was read, without its end: its first bytes, and how many there were in all."""

    data: bytes
    size: int


class Window(NamedTuple):
    """Consecutive lines: the number, from 1, of the first, and their text."""

    first: int
    raw: list[RawLine]


def read_windows(
    stream: BinaryIO | IO[bytes], *, max_lines: int = WINDOW_LINES, max_bytes: int = WINDOW_BYTES
) -> Iterator[Window]:
    """The lines of a binary stream, which end at \\n only, in windows of bounded size.

    A window ends early when the stream pauses, so that a slow writer gets its answers; a line's tail beyond
    LINE_BYTES is dropped while reading.
    """
    first, held, size, since = 1, [], 0, 0.0
    for line in _raw_lines(stream):
        if line is not None:
            since = since if held else time.monotonic()
            held.append(line)
            size += len(line.data)
        full = len(held) >= max_lines or size >= max_bytes
        if held and (line is None or full or time.monotonic() - since > PATIENCE_SECONDS):
            yield Window(first, held)
            first, held, size = first + len(held), [], 0
    if held:
        yield Window(first, held)


def _raw_lines(stream: BinaryIO | IO[bytes]) -> Iterator[RawLine | None]:
    """Every line of the stream, and None whenever there is no more to read for the moment."""
    read = getattr(stream, "read1", stream.read)  # read1 returns what is there instead of waiting for more
    held, size = bytearray(), 0
    while chunk := read(1 << 16):
        *ended, rest = chunk.split(b"\n")
        for piece in ended:
            held += piece[: LINE_BYTES - len(held)]
            yield RawLine(bytes(held), size + len(piece))
            held, size = bytearray(), 0
        held += rest[: LINE_BYTES - len(held)]
        size += len(rest)
        if not _readable(stream):
            yield None
    if size:
        yield RawLine(bytes(held), size)


def _readable(stream: BinaryIO | IO[bytes]) -> bool:
    """False if the stream has been silent for PAUSE_SECONDS; True also where that cannot be found out."""
    try:
        return bool(select.select([stream], [], [], PAUSE_SECONDS)[0])
    except (OSError, ValueError, TypeError):  # a stream in memory; Windows, where select takes sockets only
        return True


def decode_line(line: RawLine) -> tuple[str, bool]:
    """The text of a line without the \\r of a CRLF, and whether it was valid UTF-8; what is invalid becomes U+FFFD."""
    whole = line.size == len(line.data)
    data = line.data[:-1] if whole and line.data.endswith(b"\r") else line.data
    try:
        return codecs.utf_8_decode(data, "strict", whole)[0], True
    except UnicodeDecodeError:
        return codecs.utf_8_decode(data, "replace", whole)[0], False


class _Session:
    """One run of the command: windows in, bytes out, and what was wrong with the lines in between."""

    def __init__(self, *, translator: Translator, n_best: int) -> None:
        self.translator, self.n_best = translator, n_best
        self.invalid = self.failed = self.lines = 0

    def run(self, source: BinaryIO | IO[bytes], sink: BinaryIO | IO[bytes]) -> None:
        """Translate until the source ends; every window is flushed."""
        for window in read_windows(source):
            sink.write(self._translate(window))
            sink.flush()

    def _translate(self, window: Window) -> bytes:
        lines = [self._decode(window.first + i, line) for i, line in enumerate(window.raw)]
        results = self.translator.translate(lines, note=lambda n: self._note(window, n))
        self.lines += len(lines)
        numbers = range(window.first, window.first + len(lines))
        return "".join(self._format(n, r) for n, r in zip(numbers, results, strict=True)).encode("utf-8", "replace")

    def _decode(self, number: int, line: RawLine) -> str:
        text, valid = decode_line(line)
        if not valid:
            self.invalid += 1
            if self.invalid == 1:
                warn(f"line {number} is not valid UTF-8; the invalid bytes are replaced (warned once)")
        if line.size > len(line.data):
            warn(f"line {number} has {line.size:,} bytes; only the first {len(line.data):,} are read")
        return text.removeprefix("\ufeff") if number == 1 else text

    def _note(self, window: Window, note: Note) -> None:
        self.failed += bool(note.error)
        line = window.raw[note.position]
        text = str(note)
        if not note.error and line.size > len(line.data):
            whole = round(note.pieces * line.size / len(line.data), -3)
            text = f"is cut: about {whole:,} pieces, the first {note.kept:,} are translated"
        warn(f"line {window.first + note.position} {text}")

    def _format(self, number: int, candidates: list[Candidate]) -> str:
        if self.n_best == 1:
            return candidates[0].text + "\n"
        return "".join(f"{number}\t{c.score:.4f}\t{c.text}\n" for c in candidates)


def warn(message: str) -> None:
    """One line on standard error."""
    print(f"warning: {message}", file=sys.stderr, flush=True)


def fail(message: object, status: int = 2) -> int:
    """Say in one line on standard error what was wrong, and return the exit status."""
    print(f"error: {' '.join(str(message).split())}", file=sys.stderr, flush=True)
    return status


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, `error: ...`, and whose options are spelled out."""

    def __init__(self, *, prog: str, description: str | None, epilog: str) -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog=epilog,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def error(self, message: str) -> NoReturn:
        """Exit with status 2 and one line."""
        self.exit(2, f"error: {message} (--help lists the options)\n")


def positive(text: str) -> int:
    """A whole number from 1, for argparse."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is no whole number from 1")
    return value


def seed(text: str) -> int:
    """What starts random numbers, a whole number from 0 that 63 bits hold, for argparse."""
    if not text.isdecimal() or int(text) >= 1 << 63:
        raise argparse.ArgumentTypeError(f"'{text}' is no whole number from 0 to 2^63 - 1")
    return int(text)


def require_folder(folder: Path, option: str = "--out") -> Path:
    """`folder`, which need not be there yet; UsageError where it cannot be made or not be written in."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        raise UsageError(f"{option} {folder}: cannot be made ({there} is a file); choose another folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise UsageError(f"{option} {folder}: {there} is not writable; choose another folder")
    return folder


def require_output(path: Path, option: str, *, inputs: Sequence[str | Path | int] = (), what: str = "input") -> None:
    """UsageError for a file that cannot be written, or that is one of the `inputs` (paths, or descriptors)."""
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UsageError(f"{option} {path}: is a directory" if path.is_dir() else f"{option} {path}: no such folder")
    if path.is_file() and any(_same_file(path, other) for other in inputs):
        raise UsageError(f"{option} {path} is the {what}; choose another file")


def require_text_output(path: Path, option: str, *, inputs: Sequence[str | int] = (), ckpt: str) -> None:
    """UsageError for what `require_output` refuses, and where text would replace the checkpoint, or any other."""
    require_output(path, option, inputs=inputs)
    require_output(path, option, inputs=[ckpt], what="checkpoint")
    if path.is_file():
        with path.open("rb") as file:
            if file.read(4) == b"PK\x03\x04":
                raise UsageError(f"{option} {path} is a checkpoint; choose another file")


def _same_file(path: Path, other: str | Path | int) -> bool:
    with contextlib.suppress(OSError):  # no such file
        return os.path.samestat(path.stat(), os.stat(other))
    return False


def _from_zero(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e3:
        raise argparse.ArgumentTypeError(f"'{text}' is no number from 0")
    return value


def add_model_options(parser: argparse._ActionsContainer) -> None:
    """The options of everything that translates with a checkpoint."""
    add = parser.add_argument
    text = "hypotheses kept at each step; 1 is greedy (default: the run's)"
    add("--beam-size", type=positive, metavar="N", help=text)
    text = "alpha in log-probability / length^alpha; larger favours longer output (default: the run's)"
    add("--length-penalty", type=_from_zero, metavar="ALPHA", help=text)
    text = "longest translation in pieces: this times the source's ... (default: the run's)"
    add("--max-len-ratio", type=_from_zero, metavar="R", help=text)
    add("--max-len-extra", type=positive, metavar="N", help="... plus this (default: the run's)")
    text = f"source pieces in a batch, padding counted ({CPU_TOKENS} on a CPU, {GPU_TOKENS} on a GPU)"
    add("--max-tokens", type=positive, metavar="N", help=text)
    add("--max-len", type=positive, default=1024, metavar="N", help="longest source line in pieces (1024)")
    add("--tgt-lang", metavar="LANG", help="target language, of a checkpoint that has several")
    add("--device", default="auto", metavar="DEVICE", help="cpu, cuda, cuda:N or auto (auto)")
    add("--dtype", choices=DTYPES, default="float32", help="number format of the weights (float32)")
    add("--threads", type=positive, metavar="N", help="CPU threads (torch's choice)")
    text = "package, besides seq2seq, whose mixers a checkpoint may name; may be repeated"
    add("--trust", action="append", default=[], metavar="PACKAGE", help=text)


def _parser() -> Parser:
    parser = Parser(prog="python -m seq2seq.translate", description=__doc__, epilog=EPILOG)
    parser.add_argument("--ckpt", required=True, metavar="FILE", help="checkpoint to translate with")
    parser.add_argument("--input", metavar="FILE", help="text to translate (standard input)")
    parser.add_argument("--output", metavar="FILE", help="where the translation goes, all at once (standard output)")
    parser.add_argument("--n-best", type=positive, default=1, metavar="N", help="translations for each line (1)")
    add_model_options(parser)
    return parser


def load_translator(options: argparse.Namespace, n_best: int = 1) -> Translator:
    """The translator that the options of `add_model_options` ask for; what they leave open is the checkpoint's."""
    device = choose_device(options.device)
    import torch

    from seq2seq.checkpoint import SEARCH

    if options.threads:
        torch.set_num_threads(options.threads)
    # float32 means float32: cuDNN would otherwise round convolutions to TF32
    torch.backends.cudnn.allow_tf32 = False
    translator = Translator.load(
        options.ckpt,
        device=device,
        dtype=options.dtype,
        trust=options.trust,
        max_tokens=options.max_tokens,
        max_len=max(2, options.max_len),
        tgt_lang=options.tgt_lang,
    )
    given = {name: getattr(options, name) for name in SEARCH if getattr(options, name) is not None}
    beam_size = given.get("beam_size", translator.settings.beam_size)
    if n_best > beam_size:
        raise UsageError(
            f"--n-best {n_best} needs at least as large a --beam-size, not {beam_size}, which is the run's"
        )
    translator.settings = dataclasses.replace(translator.settings, n_best=n_best, **given)
    return translator


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parser = _parser()
    options = parser.parse_args(argv)
    if options.beam_size and options.n_best > options.beam_size:
        parser.error(f"--n-best {options.n_best} needs at least as large a --beam-size, not {options.beam_size}")
    return exit_status(lambda: _run(options))


def exit_status(work: Callable[[], int]) -> int:
    """What `work` returns, or the exit status of a command that was interrupted, lost its reader or met a bad file."""
    try:
        return work()
    except KeyboardInterrupt:
        return fail("interrupted", 130)
    except BrokenPipeError:
        # the reader has gone (| head); Python's own flush at exit must not complain about it
        with contextlib.suppress(OSError, ValueError, AttributeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        return fail(f"{error.filename or 'input or output'}: {error.strerror or error}")


def _run(options: argparse.Namespace) -> int:
    with contextlib.ExitStack() as stack:
        try:
            source = _open_source(options, stack)
            _check_output(options, source)
            translator = load_translator(options, options.n_best)
            sink = _open_sink(options, stack)
        except ValueError as error:
            return fail(error)
        session = _Session(translator=translator, n_best=options.n_best)
        session.run(source, sink)
    if session.failed:
        return fail(f"{session.failed:,} of {session.lines:,} lines could not be translated and are empty", 1)
    return 0


def _open_source(options: argparse.Namespace, stack: contextlib.ExitStack) -> BinaryIO | IO[bytes]:
    if options.input is None:
        if sys.stdin is None:
            raise UsageError("there is no standard input; name a file with --input")
        return sys.stdin.buffer
    if Path(options.input).is_dir():
        raise UsageError(f"{options.input} is a directory; name a file with --input")
    return stack.enter_context(open(options.input, "rb"))


def _check_output(options: argparse.Namespace, source: BinaryIO | IO[bytes]) -> None:
    """UsageError, before any work, for an output that cannot be written or would overwrite what is read."""
    if options.output is None:
        if sys.stdout is None:
            raise UsageError("there is no standard output; name a file with --output")
        return
    inputs: list[str | int] = []
    with contextlib.suppress(OSError, ValueError):  # an input that is no file
        inputs = [source.fileno()]
    require_text_output(Path(options.output), "--output", inputs=inputs, ckpt=options.ckpt)


def _open_sink(options: argparse.Namespace, stack: contextlib.ExitStack) -> BinaryIO | IO[bytes]:
    if options.output is None:
        return sys.stdout.buffer
    from seq2seq.checkpoint import atomic_file

    return stack.enter_context(atomic_file(options.output))


if __name__ == "__main__":
    # a terminated run, too, removes its temporary output
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
