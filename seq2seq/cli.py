"""Parse options, check outputs and return exit statuses, for all commands. Imports no torch."""

from __future__ import annotations

import argparse
import codecs
import contextlib
import math
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from seq2seq.data.text_files import open_bytes
from seq2seq.faults import disk_message, is_out_of_memory
from seq2seq.files import ARCHIVES, COMPRESSIONS, uncompressed, written_directly
from seq2seq.settings.values import shown, suggestion
from seq2seq.streams import fill_closed_descriptors, print_error, whole_output


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

    # The command line that is parsed
    _words: Sequence[str] = ()

    def __init__(self, *, prog: str, description: str | None, epilog: str) -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog=epilog,
            # An abbreviation would break as soon as another option begins like it
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
        # Also where argparse first misses an option that is required: --checkpoint for --ckpt
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


def option_name(name: str) -> str:
    """Return a setting's option: --beam-size for beam_size."""
    return f"--{name.replace('_', '-')}"


def whole_number(least: int, most: int) -> Callable[[str], int]:
    """Return a parser of whole numbers in a range, for argparse."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            # Refused below with the same message
            value = least - 1
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"'{shown(text)}' is not a whole number from {least} to {most:,}")
        return value

    return parse


# For counts without a limit of their own; larger ones are slips, and overflow where they are multiplied.
positive = whole_number(1, 10**9)


def number(least: float, most: float) -> Callable[[str], float]:
    """Return a parser of numbers in a range, for argparse."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        # The comparison also refuses nan
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"'{shown(text)}' is not a number from {least:g} to {most:,g}")
        return value

    return parse


def nonempty(text: str) -> str:
    """Parse a name, for argparse."""
    # An empty one, as an unset variable of the shell gives it, would mean the current folder, or a default
    if not text:
        raise argparse.ArgumentTypeError("the name is empty")
    return text


def sentence(text: str) -> str:
    """Parse a text, for argparse: it must be UTF-8."""
    try:
        # Bytes that are not UTF-8 reach Python as lone surrogates
        text.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError("the text is not valid UTF-8") from None
    return text


# Parses a random seed, for argparse.
seed = whole_number(0, 2**63 - 1)


def require_folder(
    folder: Path, option: str = "--out", *, files: Sequence[str] = (), further: Sequence[str] = ()
) -> Path:
    """Return `folder`, which need not exist yet, after a trial of writing in it.

    Args:
        files: Names of the files that will be written. A folder that has some of them but not all holds something else
            than an earlier output.
        further: Names of files that are written at times.

    Raises:
        UsageError: It cannot be made, nothing can be written in it, or files of something else would be lost.
    """
    # The nearest ancestor that exists decides; the root always does
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise UsageError(f"{option} {folder}: cannot be made ({existing} is a file); choose another folder")
    there = [name for name in (*files, *further) if (folder / name).exists()]
    if there and not all((folder / name).is_file() for name in files):
        raise UsageError(
            f"{option} {folder}: has a file {there[0]} that is not an output of this command; choose another folder"
        )
    made: list[Path] = []
    try:
        # Permissions alone do not say it: root has all of them, also on a disk that is read-only
        for path in reversed([folder.absolute(), *folder.absolute().parents]):
            if not path.exists():
                path.mkdir()
                made.append(path)
        _try_to_write(folder)
    except OSError as error:
        raise UsageError(
            f"{option} {folder}: cannot be written ({error.strerror or error}); choose another folder"
        ) from None
    finally:
        for path in reversed(made):
            path.rmdir()
    return folder


def _try_to_write(folder: Path) -> None:
    """Raise OSError if no file can be made in a folder; leave nothing behind."""
    with tempfile.TemporaryFile(dir=folder):
        pass


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
    # Any other file is written beside its place
    if not written_directly(path):
        try:
            _try_to_write(Path(os.path.realpath(path)).parent)
        except OSError as error:
            raise UsageError(f"{option} {path}: cannot be written ({error.strerror}); choose another file") from None


def require_text_output(path: Path, option: str, *, ckpt: str) -> None:
    """Check that a file can be written without replacing a checkpoint, a file of a run or anything but text.

    Raises:
        UsageError: It cannot be written, or must not be replaced.
    """
    if path.suffix.lower() in ARCHIVES:
        raise UsageError(
            f"{option} {path}: {path.suffix} is not written; choose {', '.join(COMPRESSIONS)}, or plain text"
        )
    # No checkpoint at all, not only --ckpt: a slip of the shell's completion must not cost a training
    require_output(path, option, inputs=[ckpt, *Path(ckpt).glob("*")], what="checkpoint")  # a folder with its files
    # Links resolved: what they lead to is replaced
    final = Path(os.path.realpath(path))
    if not final.is_file():
        return
    if any((folder / "config.yaml").is_file() and (folder / "checkpoints").is_dir() for folder in final.parents[:2]):
        raise UsageError(f"{option} {path} is a file of a run; choose another file, or remove it first")
    if is_zip(final):
        raise UsageError(f"{option} {path} is a checkpoint; choose another file")
    try:
        with open_bytes(final) as file:
            # The last character may be cut
            codecs.utf_8_decode(file.read(1 << 16), "strict", False)
    # A damaged file as well
    except ValueError:
        raise UsageError(f"{option} {path} exists and is not text; choose another file, or remove it first") from None


def is_zip(path: Path) -> bool:
    """Return True for a zip file, as which torch writes checkpoints."""
    with path.open("rb") as file:
        return file.read(4) == b"PK\x03\x04"


def require_no_corpus(path: Path, option: str, languages: Sequence[str]) -> None:
    """Check that a file is not one that exists as a side of a parallel corpus, as test.en beside test.de is.

    Args:
        languages: Suffixes of the sides.

    Raises:
        UsageError: It is one.
    """
    plain = uncompressed(path)
    suffix = plain.suffix[1:]
    stems = [plain.with_suffix(f".{language}") for language in languages if language and language != suffix]
    others = [stem.with_name(stem.name + packed) for stem in stems for packed in ("", *COMPRESSIONS)]
    other = next((each for each in others if each.is_file()), None)
    if suffix in languages and path.is_file() and other:
        raise UsageError(
            f"{option} {path} is there, and beside {other.name} it is a side of a corpus; choose another file, or "
            "remove it first, as where an earlier translation has written it"
        )


def _same_file(path: Path, other: str | Path | int) -> bool:
    """Return True if both are one file on the disk; `other` may be an open descriptor."""
    with contextlib.suppress(OSError):  # no such file
        # By inode: two paths, a link or an open descriptor may be the same file
        return os.path.samestat(path.stat(), os.stat(other))
    return False


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
        # The reader has gone (| head): 128 + SIGPIPE
        return 141
    # Wrong options, files and checkpoints, and a model whose scores are not finite
    except (ValueError, FloatingPointError) as error:
        return fail(error)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return fail(
            "not enough memory: choose a smaller model, beam, batch or length, or free memory of other programs"
        )
    except OSError as error:
        return fail(disk_message(error) or f"{error.filename or 'input or output'}: {error.strerror or error}")


def require_standard_output(remedy: str) -> None:
    """Check that there is a standard output.

    Args:
        remedy: What to do instead, such as "name a file with --output".

    Raises:
        UsageError: It is closed.
    """
    if sys.stdout is None:
        raise UsageError(f"there is no standard output; {remedy}")


def run_command(main: Callable[[], int]) -> NoReturn:
    """Run a command's `main` as this process, and exit with its status."""
    fill_closed_descriptors()
    for number in (signal.SIGTERM, signal.SIGHUP):
        # As an exception, so that nothing half-written stays; nohup has set SIGHUP to be ignored
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, lambda number, frame: sys.exit(128 + number))
    try:
        sys.exit(main())
    # Before `exit_status` has begun, or after its end
    except KeyboardInterrupt:
        sys.exit(fail("interrupted", 130))
