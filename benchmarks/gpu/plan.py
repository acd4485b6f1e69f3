"""The parts of a visit, in the order of what they teach, with the time that each may take."""

from __future__ import annotations

from typing import NamedTuple

MIXERS = ("transformer", "dynamicconv", "lightconv", "bahdanau")
SIZES = ("base", "big")


class Part(NamedTuple):
    """Part of a visit, which runs in a process of its own.

    Attributes:
        name: Kind of work and what it is done with, divided by "/".
        limit: Seconds after which it is stopped.
        least: Seconds that must be left for it to start.
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


def parts_of(device: str) -> list[Part]:
    """List the parts in order; on a CPU, where all sizes are tiny, with other limits."""
    if device == "cpu":
        # Of a slow machine that others keep busy
        return [part._replace(limit=600.0, least=1.0) for part in _parts()]
    return _parts()


def _parts() -> list[Part]:
    # The two mixers of the goals before the others, base before big
    first = [Part(f"step/base/{mixer}", 150, 45) for mixer in MIXERS[:2]]
    steps = [Part(f"step/{size}/{mixer}", 180, 45) for size in SIZES for mixer in MIXERS]
    return [
        Part("machine", 60, 5, data=False),
        Part("kernels", 150, 40, data=False),
        *first,
        *(part for part in steps if part.name not in {one.name for one in first}),
        Part("decode", 150, 40),
        Part("memory", 90, 20),
        Part("optimizers", 60, 15),
        # What has passed is not repeated when these go on
        Part("pytest/kernels", 240, 30, data=False),
        Part("pytest/gpu", 240, 30, data=False),
        *(Part(f"profile/{mixer}", 120, 40) for mixer in MIXERS[:2]),
        Part("tune", 300, 90, data=False),
        Part("train", 180, 90, data=False),
        *(Part(f"quality/{mixer}", 420, 240) for mixer in MIXERS),
    ]
