"""Wrong options of all commands but train and prepare."""

from __future__ import annotations

import argparse
import importlib
import random
import sys
from pathlib import Path

from benchmarks.hostile.attempts import Attempt
from benchmarks.hostile.processes import Command, Done
from benchmarks.hostile.settings import misspell
from benchmarks.hostile.world import World

COMMANDS = ("translate", "score", "average", "inspect", "compare", "draw")
# Values for options that take a number; none is a positive integer.
NO_NUMBER = ("0", "-1", "banana", "nan", "", "1.5", "-inf", "１.５", "1e400", "--", "1,000", " ", "٣x", "0x10", "[1]")
# Numbers that may be too large.
LARGE = ("99999999999999999999999", "1000000000000", "4294967296", "1e5", "300", "1e300", "inf", "5000")
# Files that cannot be read, or written.
UNREADABLE = ("nowhere", "/proc/self/mem", "/", "/dev/null/x", "", "a\tb", "x" * 300, "/dev/zero", "loop", "~nobody/x")
UNWRITABLE = ("/proc/x", "/dev/null/x", "", "no/such/folder/x", "x" * 300, "/dev/full", "loop/x", "input")
FILES = ("--ckpt", "--input", "--hypotheses", "--references", "--compare", "--data")
OUTPUTS = ("--output", "--out", "--save", "--corpus", "--digits", "--alignments")


def draw(rng: random.Random, world: World, folder: Path) -> Attempt:
    """Draw a wrong option, file or combination of a command."""
    work = folder / "work"
    (work / "loop").symlink_to("loop")
    (work / "input").write_bytes(world.lines)
    (work / "references").write_bytes(world.translation)
    (work / "upper").write_bytes(world.translation.upper())
    name = rng.choice(COMMANDS)
    base = _base(rng, name, world)
    maker = rng.choice((_number, _number, _number, _file, _file, _unknown, _missing, _twice, _choice, _large))
    what, words, named, must = maker(rng, _actions(name), base)
    return Attempt(
        what=f"{name}: {what}",
        command=Command(f"seq2seq.{name}", tuple(words), stdin=world.lines),
        named=named,
        must=must,
        check=lambda done: _complete(name, done),
    )


def _base(rng: random.Random, name: str, world: World) -> list[str]:
    """Return arguments with which the command works."""
    ckpt = str(world.best)
    files = [
        "--data", "files", "src=de", "tgt=en", f"test={world.root}/corpus/test.jsonl",
        f"train={world.root}/corpus/train.jsonl", f"valid={world.root}/corpus/valid.jsonl",
    ]  # fmt: skip
    score = [
        ["--hypotheses", "input", "--references", "references"],
        ["--compare", "input", "upper", "--references", "references", "--resamples", "20"],
        ["--ckpt", ckpt, *files, "--limit", "3", "--cache", "cache"],
    ]
    inspect = [["--ckpt", ckpt, "--text", "Guten Morgen.", "--out", "report"], ["mixer=identity", "--out", "report"]]
    return {
        "translate": ["--ckpt", ckpt],
        "score": rng.choice(score),
        "average": ["--out", "mean.safetensors", ckpt, str(world.step)],
        "inspect": rng.choice(inspect),
        "compare": [str(world.root / "runs")],
        "draw": rng.choice([[], ["--corpus", "images", "--train", "20", "--held-out", "3"]]),
    }[name]


def _actions(name: str) -> list[argparse.Action]:
    module = importlib.import_module(f"seq2seq.{name}")
    # Running a loaded module as the main program would cause a warning
    del sys.modules[f"seq2seq.{name}"]
    return [action for action in module._parser()._actions if action.option_strings]


Drawn = tuple[str, list[str], tuple[str, ...], str]


def _number(rng: random.Random, actions: list[argparse.Action], base: list[str]) -> Drawn:
    """Draw a word that is not a number, or a number out of range."""
    options = [action for action in actions if action.type not in (None, Path)]
    # Output options are left out, since any word is a valid file name
    options = [action for action in options if action.option_strings[-1] not in OUTPUTS]
    if not options:
        return _unknown(rng, actions, base)
    action = rng.choice(options)
    option, value = action.option_strings[-1], rng.choice(NO_NUMBER)
    # 0 is a seed, a penalty and a limit; halves are penalties
    whole = getattr(action.type, "__name__", "") == "positive"
    must = "refuse" if whole or value in ("banana", "nan", "", "[1]", "1,000", "-inf", "-1") else "either"
    return f"{option} is not a number", [*base, f"{option}={value}"], (option, value), must


def _large(rng: random.Random, actions: list[argparse.Action], base: list[str]) -> Drawn:
    """Draw a number that is large or too large."""
    options = [action for action in actions if action.type not in (None, Path)]
    # Options whose value is a duration or a count of slow work
    slow = ("--samples", "--resamples", "--train", "--held-out")
    options = [action for action in options if action.option_strings[-1] not in slow]
    if not options:
        return _unknown(rng, actions, base)
    option, value = rng.choice(options).option_strings[-1], rng.choice(LARGE)
    # Text on standard input may have no room in the pictures of draw
    named = (option, option[2:].replace("-", "_"), value, "--width")
    return f"{option} is large", [*base, f"{option}={value}"], named, "either"


def _file(rng: random.Random, actions: list[argparse.Action], base: list[str]) -> Drawn:
    """Draw a file that cannot be read or written."""
    names = [action.option_strings[-1] for action in actions]
    option = rng.choice([name for name in names if name in (*FILES, *OUTPUTS)] or names)
    value = rng.choice(UNWRITABLE if option in OUTPUTS else UNREADABLE)
    # Endless text cannot be detected
    if value == "/dev/zero" and option != "--ckpt":
        value = "nowhere"
    words = [*base, option, value]
    # Replace the right value, if there is one
    if option in base:
        place = base.index(option)
        words = [*base[: place + 1], value, *base[place + 2 :]]
    # /dev/full may be written as a device; the input may be the output of another command
    known = value not in ("/dev/full", "input", "/dev/zero", "") and option in (*FILES, *OUTPUTS)
    # compare, inspect and draw create folders
    known = known and (option not in ("--out", "--corpus", "--digits") or value != "no/such/folder/x")
    return (
        f"{option} cannot be used",
        words,
        (option, option[2:], value) if value else (),
        "refuse" if known else "either",
    )


def _unknown(rng: random.Random, actions: list[argparse.Action], base: list[str]) -> Drawn:
    """Draw an option that does not exist."""
    names = [action.option_strings[-1] for action in actions]
    option = misspell(rng, rng.choice(names))
    if option in names or not option.startswith("--") or len(option) < 4:
        option = f"--{rng.choice(('nbest', 'beam', 'batch', 'lenght', 'ünïcode'))}"
    words = [*base, option] if rng.random() < 0.4 else [*base, option, rng.choice(("1", "x", "-1"))]
    return "option that does not exist", words, (option,), "refuse"


def _missing(rng: random.Random, actions: list[argparse.Action], base: list[str]) -> Drawn:
    """Leave out one word of the command."""
    if not base:
        return _unknown(rng, actions, base)
    place = rng.randrange(len(base))
    return "a word left out", [*base[:place], *base[place + 1 :]], (), "either"


def _twice(rng: random.Random, actions: list[argparse.Action], base: list[str]) -> Drawn:
    """Draw an option without its value, or an option of another mode."""
    # --help succeeds, and --watch waits for a sweep
    names = [action.option_strings[-1] for action in actions if action.option_strings[-1] not in ("--help", "--watch")]
    words = [*base, rng.choice([name for name in names if name != "--atlas"])]
    return f"{words[-1]} without a value", words, (), "either"


def _choice(rng: random.Random, actions: list[argparse.Action], base: list[str]) -> Drawn:
    """Draw a choice that does not exist."""
    options = [action for action in actions if action.choices]
    if not options:
        return _unknown(rng, actions, base)
    action = rng.choice(options)
    option, value = action.option_strings[-1], misspell(rng, str(rng.choice(list(action.choices or ())))) + "x"
    return f"{option} has no such choice", [*base, option, value], (option, value), "refuse"


def _complete(name: str, done: Done) -> str:
    """Return the fault in the output of a successful command, or ""."""
    if name == "translate" and done.out.count(b"\n") not in (6, 0) and b"\t" not in done.out:
        return "not as many lines as came in"
    return "" if done.out or name in ("translate", "compare") else "no output"
