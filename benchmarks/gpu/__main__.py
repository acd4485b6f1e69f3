"""Run everything that a visit to a GPU should measure, in the order of its worth, in one command.

    python -m benchmarks.gpu --out DIR --parts open --budget 420       # a first call: what is still open
    python -m benchmarks.gpu --resume DIR --parts open --budget 330    # a later one: finished parts are not repeated
    python -m benchmarks.gpu --pack FOLDER --corpora CORPORA    # before: text and wheels for the other machine

Every part runs in a separate process with its own time limit: the tests of replayed passes; attention by its backends;
the kernels; the training command with four mixers; Marian; translation; fifteen small runs; further tests; launch
settings. DIR has results.json, log.txt and verdicts.md after every part. The command ends within its budget, with all
processes that it started; the exit status is 3 if parts are left, and 1 if some failed. It needs torch, triton and
numpy; parts that need other packages or text say so. Without a GPU it rehearses the same parts with tiny sizes.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu import verdicts
from benchmarks.gpu.pack import COMMAND_TEXT
from benchmarks.gpu.plan import OPEN, Part, open_parts, parts_of
from benchmarks.gpu.records import FAILED, ROOT, Results
from benchmarks.gpu.runner import Runner
from seq2seq.system.files import write_text

UNFINISHED = 3


def options_of(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse and check the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", type=Path, metavar="DIR", help="folder of the results; must be new or empty")
    what.add_argument("--resume", type=Path, metavar="DIR", help="continue with the results of an earlier visit")
    what.add_argument(
        "--pack", type=Path, metavar="FOLDER", help="make a folder with text and wheels for the other machine"
    )
    add("--budget", type=float, default=540.0, help="seconds that the whole command may take")
    add("--device", choices=("auto", "cuda", "cpu"), default="auto", help="auto: cuda if there is one")
    add("--data", type=Path, default=ROOT / "pack", metavar="FOLDER", help="the folder that --pack made (pack)")
    add("--command-data", nargs=3, metavar=("FOLDER", "SRC", "TGT"), help="corpus of the training command: a folder "
        "with train, valid, test and joint.model, and its languages (the pack's, or the embedded one)")  # fmt: skip
    add("--parts", nargs="+", default=[], metavar="PART", help="run only these; a beginning of a name suffices; "
        f"{OPEN}: all that is still open")  # fmt: skip
    add("--corpora", type=Path, help="with --pack: take the text of these")
    add("--wheels", type=Path, help="with --pack: take the wheels of this folder, and download none")
    options = parser.parse_args(argv)
    if not chosen(options.parts, "cuda"):
        parser.error(f"--parts {' '.join(options.parts)}: there are {', '.join(p.name for p in parts_of('cuda'))}")
    if options.out and (options.out / "results.json").exists():
        parser.error(f"{options.out} has results; continue with --resume {options.out}")
    if options.resume and not (options.resume / "results.json").is_file():
        parser.error(f"{options.resume} has no results.json; begin with --out {options.resume}")
    return options


def chosen(names: Sequence[str], device: str) -> list[Part]:
    """List the parts with these names or prefixes; all parts if there are no names, and the open ones for `open`."""
    parts = parts_of(device)
    known = {part.name for part in parts}
    exact, begins = set(names) & known, tuple(set(names) - known - {OPEN})
    exact |= {part.name for part in open_parts(device)} if OPEN in names else set()
    return [part for part in parts if not names or part.name in exact or part.name.startswith(begins)]


def main(argv: Sequence[str] | None = None) -> int:
    """Pack, or run the missing parts, and return the exit status."""
    began = time.monotonic()
    options = options_of(argv)
    if options.pack:
        from benchmarks.gpu.pack import pack

        return pack(options.pack, corpora=options.corpora, wheels=options.wheels)
    folder = (options.out or options.resume).absolute()
    try:
        results = Results(folder)
    except ValueError as error:
        print(f"gpu: {error}", file=sys.stderr)
        return 2
    try:
        device = options.device if options.device != "auto" else "cuda" if has_gpu(options.budget / 2) else "cpu"
    except subprocess.TimeoutExpired as error:
        print(f"gpu: no answer within {error.timeout:.0f} s if there is a GPU; say --device cuda", file=sys.stderr)
        return 2
    if results.data.setdefault("device", device) != device:
        print(f"gpu: {folder} has results of {results.data['device']}; take another folder", file=sys.stderr)
        return 2
    packed = options.data / COMMAND_TEXT
    text = options.command_data or ([packed, *COMMAND_TEXT.split("-")[1:]] if packed.is_dir() else [])
    more = ["--command-data", str(Path(text[0]).absolute()), *text[1:]] if text else []
    runner = Runner(results, device=device, data=options.data.absolute(), budget=options.budget, began=began, more=more)
    wanted = chosen(options.parts, device)
    # The page describes the machine of this visit
    results.parts.pop("machine", None)
    complete = runner.run([part for part in parts_of(device) if part.name == "machine" or part in wanted])
    text = verdicts.page(results)
    write_text(folder / "verdicts.md", text)
    print(text)
    if not complete:
        print(f"parts are left; continue with --resume {folder}")
        return UNFINISHED
    return int(any(results.state(part.name) == FAILED for part in wanted))


def has_gpu(seconds: float) -> bool:
    """Ask torch for a GPU in a separate process, which may hang; wait for 90 seconds at most.

    Raises:
        subprocess.TimeoutExpired: There was no answer.
    """
    question = "import torch; print(torch.cuda.is_available())"
    limit = min(90.0, seconds)
    asked = subprocess.run([sys.executable, "-c", question], capture_output=True, text=True, timeout=limit)
    return asked.stdout.strip() == "True"


if __name__ == "__main__":
    sys.exit(main())
