"""Campaigns of attempts to break the commands: their options, the processes that carry them out, and the report."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import multiprocessing
import os
import random
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import harness

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Campaign:
    """Definition of a campaign.

    Args:
        kinds: The kinds of attempts and their weights.
        outcomes: All outcomes; an attempt gets the last one if the campaign itself fails.
        good: The outcomes that are not defects.
        build: Makes the files that all attempts start from, in a new folder.
        carry_out: Draws an attempt of a kind and runs it in `work` of a folder, with its streams in `kept`.
    """

    name: str
    kinds: Mapping[str, int]
    outcomes: Sequence[str]
    good: Sequence[str]
    build: Callable[[Path], Any]
    carry_out: Callable[[str, random.Random, Any, Path], Row]

    def kind_of(self, seed: int, number: int, kinds: Sequence[str]) -> str:
        """Draw the kind of an attempt."""
        weights = [self.kinds[kind] for kind in kinds]
        return random.Random(f"{seed}/{number}/kind").choices(kinds, weights)[0]

    def attempt(self, number: int, *, world: Any, seed: int, kinds: Sequence[str], root: Path, keep: bool) -> Row:
        """Draw an attempt and carry it out; a defect keeps its files if the campaign has a folder for them."""
        kind = self.kind_of(seed, number, kinds)
        folder = root / str(number)
        shutil.rmtree(folder, ignore_errors=True)
        for name in ("work", "kept"):
            (folder / name).mkdir(parents=True)
        try:
            found = self.carry_out(kind, random.Random(f"{seed}/{number}/{kind}"), world, folder)
        except Exception:
            # A fault of the campaign itself
            found = {"what": "?", "outcome": self.outcomes[-1], "why": traceback.format_exc()[-1500:]}
        if found["outcome"] in self.good and not keep:
            shutil.rmtree(folder)
        return {"number": number, "kind": kind, **found}

    def summarize(self, found: Sequence[Row]) -> dict[str, Any]:
        """Count the outcomes by kind, and list the defects."""
        rows = {kind: dict.fromkeys(self.outcomes, 0) for kind in sorted({row["kind"] for row in found})}
        for row in found:
            rows[row["kind"]][row["outcome"]] += 1
        return {
            "attempts": len(found),
            "all": {outcome: sum(row[outcome] for row in rows.values()) for outcome in self.outcomes},
            "kinds": rows,
            "defects": [row for row in found if row["outcome"] not in self.good],
        }

    def table(self, summary: Mapping[str, Any]) -> str:
        """Write a summary as Markdown."""
        machine = summary["machine"]
        lines = [
            f"{summary['attempts']:,} attempts, seed {summary['seed']}, {machine['date']}, torch {machine['torch']}, "
            f"Python {machine['python']}, {summary['seconds']:,} s.",
            "",
            f"| kind | {' | '.join(self.outcomes)} |",
            f"|---|{'---:|' * len(self.outcomes)}",
        ]
        for name, row in [*summary["kinds"].items(), ("all", summary["all"])]:
            lines.append(f"| {name} | {' | '.join(str(row[outcome] or '') for outcome in self.outcomes)} |")
        lines.append("")
        for row in summary["defects"]:
            why = " ".join(str(row["why"]).split()).replace("`", "'")
            lines.append(f"- {row['number']} {row['kind']}: {row['outcome']}: {row['what']}: {why[:300]}")
            lines.append(f"  `{row.get('command', '')[:600]}`")
        return "\n".join(lines)


def parser_for(name: str, description: str | None, *, attempts: int) -> argparse.ArgumentParser:
    """Create the parser of a campaign's command line.

    Args:
        attempts: The default of --attempts.
    """
    parser = harness.parser_for(name, description)
    add = parser.add_argument
    add("--attempts", type=int, default=attempts, metavar="N", help="how many (%(default)s)")
    add("--seed", type=int, default=0, metavar="N", help="of all attempts (%(default)s)")
    add("--only", metavar="KIND", help="attempts of one kind")
    add("--repeat", type=int, metavar="NUMBER", help="carry out this attempt alone, and print all of its outcome")
    add("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="attempts at a time (the number of cores)")
    add("--keep", type=Path, metavar="DIR", help="keep the files of all attempts there")
    return parser


def run(campaign: Campaign, parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> int:
    """Carry out the attempts, print and write the report; return 1 if there are defects."""
    options = parser.parse_args(arguments)
    start = time.monotonic()
    kinds = [options.only] if options.only else list(campaign.kinds)
    if not set(kinds) <= set(campaign.kinds):
        parser.error(f"--only {options.only}: choose from {', '.join(campaign.kinds)}")
    root = (options.keep or Path(tempfile.mkdtemp(prefix=f"{campaign.name}-"))).absolute()
    try:
        shutil.rmtree(root / "world", ignore_errors=True)
        world = campaign.build(root / "world")
        keep = options.keep is not None
        attempt = functools.partial(campaign.attempt, world=world, seed=options.seed, kinds=kinds, root=root, keep=keep)
        numbers = range(options.attempts) if options.repeat is None else [options.repeat]
        # Workers are forks of this process, which has imported torch
        with multiprocessing.get_context("fork").Pool(options.jobs) as pool:
            found = list(pool.imap(attempt, numbers))
    finally:
        if not options.keep:
            shutil.rmtree(root, ignore_errors=True)
    if options.repeat is not None:
        print(json.dumps(found[0], indent=1, ensure_ascii=False))
    summary = {"machine": harness.machine(), "seed": options.seed, **campaign.summarize(found)}
    summary |= {"seconds": round(time.monotonic() - start), "outcomes": found}
    table = campaign.table(summary)
    print(table)
    harness.write(options.out, campaign.name, summary, table)
    return int(bool(summary["defects"]))
