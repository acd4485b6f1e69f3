"""Read generated files as people have them, with known right outcomes; nothing may be wrong without a word.

    python -m benchmarks.real_files --seed 1 --attempts 300 --out real_files.json --out real_files.md
    python -m benchmarks.real_files --only "code page" --attempts 20
    python -m benchmarks.real_files --seed 1 --repeat 117 --keep /tmp/117     # one attempt again, its files kept

Each attempt follows from --seed and its number; kinds take turns. Exit status: 0 every attempt was right, or was
refused or warned of in words that name the fault; 1 another outcome; 2 wrong options.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.hostile import processes


def attempt(number: int, *, world: Any, seed: int, names: Sequence[str], root: Path, keep: bool) -> dict[str, Any]:
    """Draw an attempt and carry it out; its outcome as plain values."""
    from benchmarks.real_files import attempts

    kind = names[number % len(names)]
    folder = root / str(number)
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "work").mkdir(parents=True)
    rng = random.Random(f"{seed}/{number}/{kind}")
    try:
        found = attempts.carry_out(kinds()[kind](rng=rng, world=world, work=folder / "work"), folder)
    except Exception:
        # The campaign's own fault
        found = {"what": "?", "verdict": "crash", "why": traceback.format_exc()[-1500:], "command": ""}
    if not keep:
        shutil.rmtree(folder)
    return {"number": number, "kind": kind, **found}


def kinds() -> dict[str, Any]:
    """Return the kinds of files."""
    from benchmarks.real_files import lines, relations, tables

    return {**lines.KINDS, **tables.KINDS, **relations.KINDS}


def summarize(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Count the verdicts, by kind and in all."""
    from benchmarks.real_files.attempts import GOOD, VERDICTS

    rows = {kind: dict.fromkeys(VERDICTS, 0) for kind in sorted({row["kind"] for row in found})}
    for row in found:
        rows[row["kind"]][row["verdict"]] += 1
    return {
        "attempts": len(found),
        "verdicts": {verdict: sum(row[verdict] for row in rows.values()) for verdict in VERDICTS},
        "kinds": rows,
        "defects": [row for row in found if row["verdict"] not in GOOD],
    }


def table(summary: Mapping[str, Any]) -> str:
    """Write the summary as Markdown."""
    verdicts = list(summary["verdicts"])
    lines = [
        f"{summary['attempts']:,} attempts, seed {summary['seed']}, {summary['seconds']:,} s: "
        f"{summary['verdicts']['silent']} wrong without a word.",
        "",
        f"| kind | {' | '.join(verdicts)} |",
        f"|---|{'---:|' * len(verdicts)}",
    ]
    for name, row in [*summary["kinds"].items(), ("all", summary["verdicts"])]:
        lines.append(f"| {name} | {' | '.join(str(row[verdict] or '') for verdict in verdicts)} |")
    lines.append("")
    for row in summary["defects"]:
        why = " ".join(str(row["why"]).split()).replace("`", "'")
        lines.append(f"- {row['number']} {row['verdict']}: {row['kind']}: {row['what']}: {why[:300]}")
    return "\n".join(lines) + "\n"


def _parser() -> argparse.ArgumentParser:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m benchmarks.real_files", description=__doc__, formatter_class=form)
    add = parser.add_argument
    add("--attempts", type=int, default=300, metavar="N", help="how many (300)")
    add("--seed", type=int, default=1, metavar="N", help="of all attempts (1)")
    add("--only", metavar="KIND", help="attempts of one kind")
    add("--repeat", type=int, metavar="NUMBER", help="carry out this attempt alone, and print all of its outcome")
    add("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="attempts at a time (the number of cores)")
    add("--keep", type=Path, metavar="DIR", help="folder for the files of the attempts")
    text = "write the outcomes there, .json or .md by its name; may be given twice"
    add("--out", type=Path, action="append", default=[], metavar="FILE", help=text)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out the attempts, print and write the report; return 1 if there was an outcome that is not good."""
    parser = _parser()
    options = parser.parse_args(arguments)
    start = time.monotonic()
    processes.load_modules()
    from benchmarks.real_files import world

    names = [options.only] if options.only else list(kinds())
    if not set(names) <= set(kinds()):
        parser.error(f"--only {options.only}: choose from {', '.join(kinds())}")
    if wrong := [path for path in options.out if path.suffix not in (".json", ".md")]:
        parser.error(f"--out {wrong[0]}: its name must end in .json or .md")
    root = options.keep or Path(tempfile.mkdtemp(prefix="real-files-"))
    try:
        shutil.rmtree(root / "world", ignore_errors=True)
        built = world.build(root.absolute() / "world")
        run = functools.partial(
            attempt, world=built, seed=options.seed, names=names, root=root.absolute(), keep=bool(options.keep)
        )
        numbers = range(options.attempts) if options.repeat is None else [options.repeat]
        with multiprocessing.get_context("fork").Pool(options.jobs) as pool:
            found = list(pool.imap(run, numbers))
    finally:
        if not options.keep:
            shutil.rmtree(root, ignore_errors=True)
    if options.repeat is not None:
        print(json.dumps(found[0], indent=1, ensure_ascii=False))
    summary = {"machine": harness.machine(), "seed": options.seed, **summarize(found)}
    summary |= {"seconds": round(time.monotonic() - start), "outcomes": found}
    print(table(summary))
    for path in options.out:
        text = table(summary) if path.suffix == ".md" else json.dumps(summary, ensure_ascii=False, indent=1) + "\n"
        path.write_text(text, "utf-8")
    return 1 if summary["defects"] else 0


if __name__ == "__main__":
    sys.exit(main())
