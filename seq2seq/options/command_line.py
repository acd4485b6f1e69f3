"""Parse options, check outputs and return exit statuses, for all commands. Imports no torch."""

from __future__ import annotations

import argparse
import contextlib
import gc
import math
import os
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from seq2seq.settings.values import shown, suggestion
from seq2seq.system.errors import is_out_of_memory, os_message
from seq2seq.system.files import ARCHIVES, COMPRESSIONS, compression, require_creatable, uncompressed, written_directly
from seq2seq.system.model_path import is_model_file
from seq2seq.system.packages import naming_training, require_training
from seq2seq.system.stdio import fill_closed_descriptors, print_error, whole_output

# The beginning of every command in messages and documents.
_MODULE = "python -m seq2seq."


def warn(message: str) -> None:
    """Print a warning, one line, on standard error."""
    print_error(f"warning: {message}")


def fail(message: object, status: int = 2) -> int:
    """Print an error, one line, on standard error and return the exit status."""
    print_error(f"error: {' '.join(str(message).split())}")
    return status


class Parser(argparse.ArgumentParser):
    """Argument parser whose errors are one line, `error: ...`, and whose options are not abbreviated."""

    # The beginning of a command as the user typed it
    called_as = _MODULE
    # The words of the command line
    _words: Sequence[str] = ()

    def __init__(self, *, prog: str, description: str | None, epilog: str) -> None:
        super().__init__(
            prog=self.as_typed(prog),
            description=description,
            epilog=self.as_typed(epilog),
            # A new option could make an abbreviation ambiguous
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    @classmethod
    def as_typed(cls, text: str) -> str:
        """Return a usage or examples with commands as the user typed them, such as `seq2seq translate`."""
        return text.replace(_MODULE, cls.called_as)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does, and keep the words for `error`."""
        self._words = sys.argv[1:] if args is None else list(args)
        # argparse makes an empty list of this value
        if wrong := next((word for word in self._words if word.startswith("--") and word.endswith("=--")), None):
            self.error(f"{wrong} has no value")
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Exit with status 2 and one line, which suggests an option in place of an unknown one."""
        known = [option for option in self._option_string_actions if option.startswith("--")]
        words = [word.partition("=")[0] for word in self._words if word.startswith("--") and word != "--"]
        # argparse may first report a missing option, as for --checkpoint in place of --ckpt
        if unknown := next((word for word in words if word not in known), None):
            message += f"; there is no {unknown}{suggestion(unknown, known)}"
        # argparse would print the whole usage
        sys.exit(fail(f"{message} (--help lists the options)"))

    def refuse(self, options: argparse.Namespace, names: Iterable[str], reason: str) -> None:
        """Exit with `reason` if one of the named options is not at its default."""
        for name in names:
            if getattr(options, name) != self.get_default(name):
                self.error(f"{option_name(name)} {reason}")


def option_name(name: str) -> str:
    """Return a setting's option: --beam-size for beam_size."""
    return f"--{name.replace('_', '-')}"


def whole_number(least: int, most: int) -> Callable[[str], int]:
    """Return a parser of whole numbers in a range, for argparse."""
    return _bounded(int, least, most, f"a whole number from {least} to {most:,}")


def number(least: float, most: float, *, above: bool = False) -> Callable[[str], float]:
    """Return a parser of numbers in a range, for argparse; `above` excludes the least one."""
    if above:
        return _bounded(float, math.nextafter(least, most), most, f"a number above {least:g} and at most {most:,g}")
    return _bounded(float, least, most, f"a number from {least:g} to {most:,g}")


def _bounded(kind: Callable[[str], Any], least: float, most: float, what: str) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        # The comparison also refuses nan
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"'{shown(text)}' is not {what}")
        return value

    return parse


# Parses a count without a limit of its own; a larger count is a typing error, and would overflow in products.
positive = whole_number(1, 10**9)
# Parses a random seed, for argparse.
seed = whole_number(0, 2**63 - 1)


def nonempty(text: str) -> str:
    """Parse a name that must not be empty, for argparse."""
    # An unset variable of the shell gives an empty name, which would mean the current folder or a default
    if not text:
        raise argparse.ArgumentTypeError("the name is empty")
    return text


def sentence(text: str) -> str:
    """Parse a text in UTF-8, for argparse."""
    try:
        # Bytes that are not UTF-8 reach Python as lone surrogates
        text.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError("the text is not valid UTF-8") from None
    return text


def require_folder(folder: Path, option: str = "--out", *, files: Sequence[str] = ()) -> Path:
    """Return `folder`, which need not exist yet, if it can be written.

    Args:
        files: Names of the output files. A folder with some of them, but not all, does not hold an earlier output.

    Raises:
        ValueError: The folder cannot be written, or files of something else would be lost.
    """
    there = [name for name in files if (folder / name).exists()]
    if there and len(there) < len(files):
        raise ValueError(
            f"{option} {folder}: has a file {there[0]} that is not an output of this command; choose another folder"
        )
    require_creatable(folder, option)
    return folder


def require_new_checkpoint(out: Path) -> None:
    """Raise ValueError if --out is a checkpoint that a run wrote and may need, or a file of another kind."""
    # These import torch
    from seq2seq import checkpoint
    from seq2seq.runs.averaging import is_from_training

    if is_from_training(out):
        raise ValueError(f"--out {out} is a checkpoint of a run; choose another file")
    if out.is_file():
        try:
            checkpoint.read_description(out)
        except ValueError:
            raise ValueError(
                f"--out {out} exists and is not a checkpoint; choose another file, or remove it first"
            ) from None


def require_output(path: Path, option: str, *, inputs: Sequence[str | Path | int] = (), what: str = "input") -> None:
    """Check that a file can be written without replacing an input.

    Args:
        inputs: Paths, or descriptors of open files.
        what: The name of the inputs in the message.

    Raises:
        ValueError: The file cannot be written, or is an input.
    """
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise ValueError(f"{option} {path}: is a directory" if path.is_dir() else f"{option} {path}: no such folder")
    if path.is_file() and any(_same_file(path, other) for other in inputs):
        raise ValueError(f"{option} {path} is the {what}; choose another file")
    # Other files are written next to `path` first
    if not written_directly(path):
        require_creatable(Path(os.path.realpath(path)).parent, option)


def require_text_output(path: Path, option: str, *, ckpt: str) -> None:
    """Check that a file can be written, and that it would replace only text outside of runs and checkpoints.

    Raises:
        ValueError: The file cannot be written, or must not be replaced.
    """
    if path.suffix.lower() in ARCHIVES:
        raise ValueError(
            f"{option} {path}: {path.suffix} is not written; choose {', '.join(COMPRESSIONS)}, or plain text"
        )
    # If `ckpt` is a folder, its files are inputs
    inside = (file for pattern in ("*", "checkpoints/*") for file in Path(ckpt).glob(pattern))
    require_output(path, option, inputs=[ckpt, *inside], what="checkpoint")
    # The target of a link is replaced
    final = Path(os.path.realpath(path))
    if not final.is_file():
        return
    if any((folder / "config.yaml").is_file() and (folder / "checkpoints").is_dir() for folder in final.parents[:2]):
        raise ValueError(f"{option} {path} is a file of a run; choose another file, or remove it first")
    if is_model_file(final):
        raise ValueError(f"{option} {path} is a checkpoint; choose another file")
    with final.open("rb") as file:
        is_text = compression(final) or b"\0" not in file.read(1 << 16)
    if not is_text:
        raise ValueError(f"{option} {path} exists and is not text; choose another file, or remove it first")


def require_no_corpus(path: Path, option: str, languages: Sequence[str]) -> None:
    """Raise ValueError for an existing side of a parallel corpus, such as test.en if test.de exists, too."""
    plain = uncompressed(path)
    sides = [path.with_name(path.name.replace(plain.name, f"{plain.stem}.{language}")) for language in languages]
    other = next((side for side in sides if side != path and side.is_file()), None)
    if path.is_file() and path in sides and other:
        raise ValueError(f"{option} {path} may be a side of a corpus with {other.name}; remove it or name another file")


def _same_file(path: Path, other: str | Path | int) -> bool:
    """Return True if `path` and `other`, a path or an open descriptor, are the same file."""
    with contextlib.suppress(OSError):  # no such file
        return os.path.samestat(path.stat(), os.stat(other))
    return False


def exit_status(work: Callable[[], int]) -> int:
    """Run a command, turn its expected errors into one line, and return its exit status.

    If the status is 0, all output of the command has arrived.
    """
    try:
        with whole_output(), naming_training("this"):
            return work()
    except KeyboardInterrupt:
        # 128 + SIGINT, as shells report it
        return fail("interrupted", 130)
    except BrokenPipeError:
        # The reader has exited (| head): 128 + SIGPIPE
        return 141
    # Wrong options, files and checkpoints, and scores that are not finite
    except (ValueError, FloatingPointError) as error:
        return fail(error)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return fail(
            "not enough memory: choose a smaller model, beam, batch or length, or free memory of other programs"
        )
    except OSError as error:
        return fail(os_message(error))


def exit_without_training(program: str) -> None:
    """Exit with status 2 and one line if the packages that only training needs are missing, or too old for Python."""
    try:
        require_training(program)
    except ValueError as error:
        sys.exit(fail(error))


def run_command(main: Callable[[], int]) -> NoReturn:
    """Run a command's `main` as this process, and exit with its status."""
    fill_closed_descriptors()
    for number in (signal.SIGTERM, signal.SIGHUP):
        # Raise an exception, so that no partial file stays. nohup ignores SIGHUP.
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, lambda number, frame: sys.exit(128 + number))
    try:
        sys.exit(main())
    # Interrupted before or after `exit_status`
    except KeyboardInterrupt:
        sys.exit(fail("interrupted", 130))
    finally:
        # The interpreter's last search for garbage among all modules would take half a second
        gc.freeze()
