"""The parts of a visit in the order of their worth, with time limits."""

from __future__ import annotations

from typing import NamedTuple

MIXERS = ("transformer", "dynamicconv", "lightconv", "bahdanau")
# The last of the open parts, which `--parts open` names.
OPEN, _LAST_OPEN = "open", "fifteen"


class Part(NamedTuple):
    """Part of a visit, which runs in a separate process.

    Attributes:
        name: Kind of work and its subject, separated by "/".
        limit: Time limit in seconds.
        least: Seconds that must remain at its start.
    """

    name: str
    limit: float
    least: float

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
        Part("machine", 60, 5),
        # New code must be right before it is timed
        Part("pytest/replay", 90, 25),
        Part("pytest/fused", 90, 25),
        Part("attention", 40, 15),
        Part("norm", 40, 15),
        Part("kernels", 90, 40),
        *(Part(f"command/{mixer}/16384", 80, 50) for mixer in MIXERS[:2]),
        *(Part(f"command/{mixer}/65536", 70, 45) for mixer in MIXERS[:2]),
        Part("marian", 60, 30),
        Part("translate", 60, 30),
        *(Part(f"command/{mixer}/16384/eager", 60, 35) for mixer in MIXERS[:2]),
        *(Part(f"command/transformer/16384/{way}", 60, 35) for way in ("fused", "fused/residual")),
        Part("command/transformer/32768/big", 80, 45),
        *(Part(f"command/lightconv/{way}", 70, 40) for way in ("16384", "16384/eager", "65536")),
        *(Part(f"command/bahdanau/{way}", 70, 40) for way in ("16384", "16384/eager")),
        Part("fifteen", 180, 80),
        # The end of the open parts; resumed test suites skip tests that have passed
        Part("pytest/gpu", 240, 30),
        Part("pytest/kernels", 240, 30),
        Part("command/bahdanau/65536", 70, 45),
        # The command finds the size of its micro-batches itself
        Part("command/dynamicconv/auto", 180, 90),
        Part("tune", 300, 90),
    ]
