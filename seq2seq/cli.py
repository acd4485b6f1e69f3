"""Parse options, check outputs and return exit statuses, for all commands. Imports no torch."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from seq2seq.config.names import suggestion
from seq2seq.files import disk_message
from seq2seq.inference.limits import CPU_TOKENS, DTYPES, GPU_TOKENS, LONGEST_SOURCE
from seq2seq.streams import fill_closed_descriptors, print_error, whole_output

if TYPE_CHECKING:
    from seq2seq.inference.translator import Translator


class UsageError(ValueError):
    """Error of the user's; the message is one line and names the remedy."""


def warn(message: str) -> None:
    """Print a warning, one line, on standard error."""
    print_error(f"warning: {message}")


# Names that other programs have for options.
OTHERS = {
    "--batch-size": "--max-tokens",
    "--max-batch-size": "--max-tokens",
    "--num-beams": "--beam-size",
    "--beams": "--beam-size",
    "--lenpen": "--length-penalty",
    "--alpha": "--length-penalty",
    "--checkpoint": "--ckpt",
    "--model": "--ckpt",
    "--path": "--ckpt",
    "--gpu": "--device",
    "--fp16": "--dtype",
    "--tokenizer": "--tokenize",
    "--target-lang": "--tgt-lang",
    "--num-threads": "--threads",
    "--refs": "--references",
    "--hyps": "--hypotheses",
}


def fail(message: object, status: int = 2) -> int:
    """Print an error, one line, on standard error and return the exit status."""
    print_error(f"error: {' '.join(str(message).split())}")
    return status


class Parser(argparse.ArgumentParser):
    """Argument parser whose errors are one line, `error: ...`, and whose options are not abbreviated."""

    # What is parsed.
    _words: Sequence[str] = ()

    def __init__(self, *, prog: str, description: str | None, epilog: str) -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog=epilog,
            # an abbreviation would break as soon as another option begins like it
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does, and keep the words for `error`."""
        self._words = sys.argv[1:] if args is None else list(args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Exit with status 2 and one line, which names options that are spelled like an unknown one."""
        # argparse would print the whole usage first
        sys.exit(fail(f"{message}{self._suggestion()} (--help lists the options)"))

    def _suggestion(self) -> str:
        """Suggest an option for the first word that looks like one and is none; "" if there is none."""
        known = [option for option in self._option_string_actions if option.startswith("--")]
        words = [word.partition("=")[0] for word in self._words]
        # also where argparse first misses an option that is required: --checkpoint for --ckpt
        for word in words[: words.index("--")] if "--" in words else words:
            if word.startswith("--") and word not in known:
                named = OTHERS.get(word.lower().replace("_", "-"))
                found = f"; did you mean {named}?" if named in known else suggestion(word, known)
                return f"; there is no {word}{found}"
        return ""

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        # argparse itself takes the value of --option=-- for a separator, and sets the option to an empty list
        if action.option_strings and arg_strings == ["--"]:
            raise argparse.ArgumentError(action, "expected a value, not '--'")
        return super()._get_values(action, arg_strings)

    def print_help(self, file: Any = None) -> None:
        """Print the help and exit: argparse ignores an output that is full."""
        if file is None:
            sys.exit(exit_status(lambda: print(self.format_help(), end="") or 0))
        super().print_help(file)


def positive(text: str) -> int:
    """Parse a whole number from 1, for argparse."""
    try:
        value = int(text)
    except ValueError:
        # refused below with the same message
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is no whole number from 1")
    return value


def seed(text: str) -> int:
    """Parse a random seed, a whole number from 0 that 63 bits hold, for argparse."""
    # isdecimal refuses signs, spaces and underscores, which int() takes
    if not text.isdecimal() or int(text) >= 1 << 63:
        raise argparse.ArgumentTypeError(f"'{text}' is no whole number from 0 to 2^63 - 1")
    return int(text)


def require_folder(folder: Path, option: str = "--out") -> Path:
    """Return `folder`, which need not exist yet.

    Raises:
        UsageError: It cannot be made, or nothing can be written in it.
    """
    # the nearest ancestor that exists decides; the root always does
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise UsageError(f"{option} {folder}: cannot be made ({existing} is a file); choose another folder")
    # W to add an entry, X to enter
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UsageError(f"{option} {folder}: {existing} is not writable; choose another folder")
    return folder


def require_output(path: Path, option: str, *, inputs: Sequence[str | Path | int] = (), what: str = "input") -> None:
    """Check that a file can be written without replacing an input.

    Args:
        inputs: Paths, or descriptors of open files.
        what: The name of the inputs in the message.

    Raises:
        UsageError: It cannot be written, or is one of the inputs.
    """
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UsageError(f"{option} {path}: is a directory" if path.is_dir() else f"{option} {path}: no such folder")
    if path.is_file() and any(_same_file(path, other) for other in inputs):
        raise UsageError(f"{option} {path} is the {what}; choose another file")


def require_text_output(path: Path, option: str, *, inputs: Sequence[str | int] = (), ckpt: str) -> None:
    """Check that a file can be written without replacing an input or any checkpoint.

    Raises:
        UsageError: It cannot be written, or is an input or a checkpoint.
    """
    # no checkpoint at all, not only --ckpt: a slip of the shell's completion must not cost a training
    require_output(path, option, inputs=inputs)
    require_output(path, option, inputs=[ckpt], what="checkpoint")
    if path.is_file():
        with path.open("rb") as file:
            # the first bytes of a zip file, which torch writes
            if file.read(4) == b"PK\x03\x04":
                raise UsageError(f"{option} {path} is a checkpoint; choose another file")


def _same_file(path: Path, other: str | Path | int) -> bool:
    """Return True if both are one file on the disk; `other` may be an open descriptor."""
    with contextlib.suppress(OSError):  # no such file
        # by inode: two paths, a link or an open descriptor may be the same file
        return os.path.samestat(path.stat(), os.stat(other))
    return False


def _from_zero(text: str) -> float:
    """Parse a number from 0, for argparse."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    # the comparison also refuses nan
    if not 0 <= value < 1e3:
        raise argparse.ArgumentTypeError(f"'{text}' is no number from 0")
    return value


def add_model_options(parser: argparse._ActionsContainer) -> None:
    """Add the options of every command that translates with a checkpoint."""
    # a search setting that is left out is None; `load_translator` fills it in from the checkpoint
    add = parser.add_argument
    text = "hypotheses kept at each step; 1 is greedy (default: the run's)"
    add("--beam-size", type=positive, metavar="N", help=text)
    text = "alpha in log-probability / length^alpha; larger favors longer output (default: the run's)"
    add("--length-penalty", type=_from_zero, metavar="ALPHA", help=text)
    text = "longest translation in pieces: this times the source's ... (default: the run's)"
    add("--max-len-ratio", type=_from_zero, metavar="R", help=text)
    add("--max-len-extra", type=positive, metavar="N", help="... plus this (default: the run's)")
    text = f"source pieces in a batch, padding counted ({CPU_TOKENS} on a CPU, {GPU_TOKENS} on a GPU)"
    add("--max-tokens", type=positive, metavar="N", help=text)
    text = f"longest source line in pieces ({LONGEST_SOURCE})"
    add("--max-len", type=positive, default=LONGEST_SOURCE, metavar="N", help=text)
    add("--tgt-lang", metavar="LANG", help="target language, of a checkpoint that has several")
    add("--device", default="auto", metavar="DEVICE", help="cpu, cuda, cuda:N or auto (auto)")
    add("--dtype", choices=DTYPES, default="float32", help="number format of the weights (float32)")
    add("--threads", type=positive, metavar="N", help="CPU threads (torch's choice)")
    text = "package, besides seq2seq, whose mixers a checkpoint may name; may be repeated"
    add("--trust", action="append", default=[], metavar="PACKAGE", help=text)


def load_translator(options: argparse.Namespace, n_best: int = 1) -> Translator:
    """Load the translator that the options of `add_model_options` ask for.

    Search settings that the options leave open are the checkpoint's.

    Raises:
        ValueError: The checkpoint, the device or an option cannot be used.
    """
    # imported here, so that --help and wrong options do not wait for torch
    import torch

    from seq2seq.checkpoint import SEARCH
    from seq2seq.inference.translator import Translator, choose_device

    # cheap checks first: loading may take long
    device = choose_device(options.device)
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
        # one piece and eos
        max_len=max(2, options.max_len),
        tgt_lang=options.tgt_lang,
    )
    # options are named like the settings, so SEARCH serves for both
    chosen = {name: getattr(options, name) for name in SEARCH if getattr(options, name) is not None}
    settings = dataclasses.replace(translator.settings, **chosen)
    # where --beam-size is left open, only the checkpoint says how large the beam is
    if n_best > settings.beam_size:
        raise UsageError(
            f"--n-best {n_best} needs at least as large a --beam-size, not {settings.beam_size}, which is the run's"
        )
    translator.settings = dataclasses.replace(settings, n_best=n_best)
    return translator


def exit_status(work: Callable[[], int]) -> int:
    """Run a command and return its exit status, also if it is interrupted, loses its reader or cannot use a file.

    What it writes to sys.stdout has arrived, or the status is not 0.
    """
    try:
        with whole_output():
            return work()
    except KeyboardInterrupt:
        # 128 + SIGINT, as shells report it
        return fail("interrupted", 130)
    except BrokenPipeError:
        # the reader has gone (| head): 128 + SIGPIPE
        return 141
    # wrong options, files and checkpoints, and a model whose scores are not finite
    except (ValueError, FloatingPointError) as error:
        return fail(error)
    except OSError as error:
        return fail(disk_message(error) or f"{error.filename or 'input or output'}: {error.strerror or error}")


def require_standard_output(option: str) -> None:
    """Check that there is a standard output.

    Args:
        option: The remedy, such as "--output".

    Raises:
        UsageError: It is closed.
    """
    if sys.stdout is None:
        raise UsageError(f"there is no standard output; {option}")


def run_command(main: Callable[[], int]) -> NoReturn:
    """Run a command's `main` as this process, and exit with its status."""
    fill_closed_descriptors()
    for number in (signal.SIGTERM, signal.SIGHUP):
        # as an exception, so that nothing half-written stays; nohup has set SIGHUP to be ignored
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, lambda number, frame: sys.exit(128 + number))
    try:
        sys.exit(main())
    # before `exit_status` has begun, or after its end
    except KeyboardInterrupt:
        sys.exit(fail("interrupted", 130))
