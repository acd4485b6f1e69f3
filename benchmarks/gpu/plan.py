"""The parts of a visit in the order of their worth, with time limits."""

from __future__ import annotations

from typing import NamedTuple

MIXERS = ("transformer", "dynamicconv", "lightconv", "bahdanau")
SIZES = ("base", "big")
# The last of the open parts, which `--parts open` names.
OPEN, _LAST_OPEN = "open", "fifteen"


class Part(NamedTuple):
    """Part of a visit, which runs in a separate process.

    Attributes:
        name: Kind of work and its subject, separated by "/".
        limit: Time limit in seconds.
        least: Seconds that must remain at its start.
        data: True if it needs the prepared folder.
    """

    name: str
    limit: float
    least: float
    data: bool = True

    @property
    def kind(self) -> str:
        """Name of the function that does the work."""
        return self.name.split("/")[0]


def open_parts(device: str) -> list[Part]:
    """List the parts whose question is still open."""
    parts = parts_of(device)
    return parts[: 1 + [part.name for part in parts].index(_LAST_OPEN)]


def parts_of(device: str) -> list[Part]:
    """List the parts in order; a rehearsal on a CPU has other limits."""
    if device == "cpu":
        # Limits for a slow and busy machine
        return [part._replace(limit=600.0, least=1.0) for part in _parts()]
    return _parts()


def _parts() -> list[Part]:
    return [
        Part("machine", 60, 5, data=False),
        # New code must be right before it is timed
        Part("pytest/replay", 90, 25, data=False),
        Part("pytest/fused", 90, 25, data=False),
        Part("attention", 40, 15, data=False),
        Part("norm", 40, 15, data=False),
        Part("kernels", 90, 40, data=False),
        *(Part(f"command/{mixer}/16384", 80, 50, data=False) for mixer in MIXERS[:2]),
        *(Part(f"command/{mixer}/65536", 70, 45, data=False) for mixer in MIXERS[:2]),
        Part("marian", 60, 30, data=False),
        Part("translate", 60, 30, data=False),
        *(Part(f"command/{mixer}/16384/eager", 60, 35, data=False) for mixer in MIXERS[:2]),
        *(Part(f"command/transformer/16384/{way}", 60, 35, data=False) for way in ("fused", "fused/residual")),
        Part("command/transformer/32768/big", 80, 45, data=False),
        *(Part(f"command/lightconv/{way}", 70, 40, data=False) for way in ("16384", "16384/eager", "65536")),
        *(Part(f"command/bahdanau/{way}", 70, 40, data=False) for way in ("16384", "16384/eager")),
        Part("fifteen", 180, 80, data=False),
        # The end of the open parts; resumed test suites skip tests that have passed
        Part("replay", 110, 30),
        Part("eager", 150, 40),
        *(Part(f"compiled/base/{mixer}", 150, 45) for mixer in MIXERS[:2]),
        Part("decode", 150, 40),
        Part("pytest/gpu", 240, 30, data=False),
        Part("pytest/kernels", 240, 30, data=False),
        Part("command/bahdanau/65536", 70, 45, data=False),
        # The command finds the size of its micro-batches itself
        Part("command/dynamicconv/auto", 180, 90, data=False),
        *(Part(f"compiled/big/{mixer}", 180, 45) for mixer in MIXERS[:2]),
        *(Part(f"compiled/{size}/lightconv", 180, 45) for size in SIZES),
        Part("memory", 90, 20),
        Part("optimizers", 60, 15),
        Part("tune", 300, 90, data=False),
        *(Part(f"quality/{mixer}", 420, 240) for mixer in MIXERS),
    ]
