"""Try to break the commands: wrong settings, files, options and interruptions, with the count of outcomes.

    python -m benchmarks.hostile --out benchmarks/results/hostile
    python -m benchmarks.hostile --attempts 300 --only settings
    python -m benchmarks.hostile --repeat 733 --keep /tmp/733      # one attempt again, its files kept

Each attempt follows from --seed and its number. Each command runs in a fork of a process that has imported torch, so
2,000 attempts take minutes on two cores. Exit status: 0 every attempt worked or was refused in one line; 1 another
outcome; 2 wrong options.
"""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import campaign
from benchmarks.hostile import processes

# One module for each kind, and its share of the attempts.
KINDS = {
    "settings": 27, "options": 22, "checkpoints": 20, "input": 15, "interruptions": 3,
}  # fmt: skip


def carry_out(kind: str, rng: random.Random, world: object, folder: Path) -> campaign.Row:
    """Draw an attempt and run it."""
    from benchmarks.hostile import attempts

    module = importlib.import_module(f"benchmarks.hostile.{kind}")
    if hasattr(module, "carry_out"):
        return module.carry_out(rng, world, folder)
    return attempts.carry_out(module.draw(rng, world, folder), folder)


def build(root: Path) -> object:
    """Import all that attempts use, so that they all run the same code, and make their files."""
    processes.load_modules()
    from benchmarks.hostile import world

    for kind in KINDS:
        importlib.import_module(f"benchmarks.hostile.{kind}")
    return world.build(root)


CAMPAIGN = campaign.Campaign(
    name="hostile",
    kinds=KINDS,
    outcomes=("worked", "refused", "else"),
    good=("worked", "refused"),
    build=build,
    carry_out=carry_out,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the campaign and return the exit status."""
    return campaign.run(CAMPAIGN, campaign.parser_for("hostile", __doc__, attempts=2000), arguments)


if __name__ == "__main__":
    sys.exit(main())
