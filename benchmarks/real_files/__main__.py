"""Read generated files like those that users have, with known right outcomes: every fault must be reported.

    python -m benchmarks.real_files --seed 1 --attempts 300 --out benchmarks/results/real_files
    python -m benchmarks.real_files --only "code page" --attempts 20
    python -m benchmarks.real_files --seed 1 --repeat 117 --keep /tmp/117     # one attempt again, its files kept

Each attempt follows from --seed and its number. Exit status: 0 every attempt was right, or ended with a refusal or
warning that names the fault; 1 another outcome; 2 wrong options.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import campaign
from benchmarks.hostile import processes


def kinds() -> dict[str, Any]:
    """Return the function that draws an attempt of each kind of files."""
    from benchmarks.real_files import lines, relations, tables

    return {**lines.KINDS, **tables.KINDS, **relations.KINDS}


def carry_out(kind: str, rng: random.Random, world: object, folder: Path) -> campaign.Row:
    """Draw an attempt and run it."""
    from benchmarks.real_files import attempts

    return attempts.carry_out(kinds()[kind](rng=rng, world=world, work=folder / "work"), folder)


def definition() -> campaign.Campaign:
    """Define the campaign."""
    from benchmarks.real_files import attempts, world

    return campaign.Campaign(
        name="real_files",
        kinds=dict.fromkeys(kinds(), 1),
        outcomes=attempts.OUTCOMES,
        good=attempts.GOOD,
        build=world.build,
        carry_out=carry_out,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the campaign and return the exit status."""
    parser = campaign.parser_for("real_files", __doc__, attempts=300)
    # Before the imports, for --help
    parser.parse_args(arguments)
    processes.load_modules()
    return campaign.run(definition(), parser, arguments)


if __name__ == "__main__":
    sys.exit(main())
