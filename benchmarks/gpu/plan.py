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
    return [
        Part("machine", 60, 5, data=False),
        # What decides how training runs on a GPU: together less than 200 seconds
        Part("replay", 110, 30),
        Part("attention", 60, 20, data=False),
        Part("norm", 40, 15, data=False),
        Part("launch", 40, 10, data=False),
        Part("sdpa", 60, 15, data=False),
        *(Part(f"command/{mixer}/16384", 120, 70, data=False) for mixer in MIXERS[:2]),
        Part("kernels", 150, 40, data=False),
        Part("eager", 150, 40),
        *(Part(f"compiled/base/{mixer}", 150, 45) for mixer in MIXERS[:2]),
        *(Part(f"command/{mixer}/65536", 120, 70, data=False) for mixer in MIXERS[:2]),
        *(Part(f"command/{mixer}/16384/eager", 120, 70, data=False) for mixer in MIXERS[:2]),
        Part("decode", 150, 40),
        # What has passed is not repeated when these go on
        Part("pytest/gpu", 240, 30, data=False),
        Part("pytest/kernels", 240, 30, data=False),
        *(Part(f"command/{mixer}/{tokens}", 120, 70, data=False) for mixer in MIXERS[2:] for tokens in (16384, 65536)),
        *(Part(f"command/{mixer}/16384/eager", 120, 70, data=False) for mixer in MIXERS[2:]),
        # Micro-batches of a size that it finds itself
        Part("command/dynamicconv/auto", 180, 90, data=False),
        *(Part(f"compiled/big/{mixer}", 180, 45) for mixer in MIXERS[:2]),
        *(Part(f"compiled/{size}/lightconv", 180, 45) for size in SIZES),
        Part("memory", 90, 20),
        Part("optimizers", 60, 15),
        Part("tune", 300, 90, data=False),
        *(Part(f"quality/{mixer}", 420, 240) for mixer in MIXERS),
    ]
