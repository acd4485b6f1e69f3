"""Shapes to time, cases to check, the amounts of each, and the bytes that a shape must move."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

OPS = ("dynamicconv", "lightconv")
PASSES = ("forward", "backward")


class Shape(NamedTuple):
    """Sizes of a convolution; `drop` is DropConnect's probability, `glu` doubles the channels of x."""

    batch: int
    length: int
    channels: int
    heads: int
    taps: int
    drop: float = 0.0
    glu: bool = False

    @property
    def tokens(self) -> int:
        """Number of tokens, batch * length."""
        return self.batch * self.length

    def __str__(self) -> str:
        options = (f", drop {self.drop}" if self.drop else "") + (", GLU" if self.glu else "")
        return f"B {self.batch}, T {self.length}, C {self.channels}, H {self.heads}, K {self.taps}{options}"


MAIN = Shape(64, 1024, 1024, 16, 31)
# Tokens of a sentence in training, with padding
TRAINED_LENGTH = 28
# Required shares of the roofline on an H200, by direction and length
FLOORS = {("forward", 1024): 0.60, ("backward", 1024): 0.45, ("forward", 27): 0.55, ("backward", 27): 0.40}
QUICK_SWEEP = ((16, 32), (64,), (4,), (1, 4), (2,))


class Sizes(NamedTuple):
    """Amounts of all measurements; the defaults are for a GPU."""

    shapes: list[Shape]
    tuned: list[Shape]
    # Candidates for tiles, columns, warps, chunks and stages
    sweep: tuple[Sequence[int], ...] = ((16, 32, 64), (32, 64), (1, 2, 4, 8), (1, 2, 4, 8, 16), (1, 2, 3))
    layer: Shape = MAIN
    layer_lengths: Sequence[int] = tuple(2**n for n in range(5, 15))
    attention_up_to: int = 4096
    decode: Shape = MAIN._replace(batch=32 * 5, length=64)  # hypotheses of 32 sentences, and their slots
    beam: int = 5
    copy_bytes: int = 2 * 2**30
    matmul: int = 8192
    seconds: float = 0.1  # spent on one measurement, without warm-up
    rounds: int = 3  # minimum number


def gpu_sizes(quick: bool, taps: Sequence[int]) -> Sizes:
    """Return sizes whose measurements take less than eight minutes on an H200."""
    short = MAIN._replace(batch=MAIN.tokens // TRAINED_LENGTH, length=TRAINED_LENGTH)
    tuned = [shape._replace(taps=k) for k in taps or (31, 15, 7, 3, 63) for shape in (MAIN, short)]
    sizes = Sizes(timed_shapes(quick), tuned)
    return sizes._replace(sweep=QUICK_SWEEP, layer_lengths=(256, 1024), seconds=0.05) if quick else sizes


def cpu_sizes(taps: Sequence[int]) -> Sizes:
    """Return tiny shapes, which only test the script."""
    tiny = Shape(1, 20, 32, 2, 7)
    return Sizes(
        shapes=[tiny, tiny._replace(drop=0.1), tiny._replace(glu=True)],
        tuned=[tiny._replace(taps=k) for k in taps or (7,)],
        sweep=QUICK_SWEEP,
        layer=tiny,
        layer_lengths=(4, 8),
        attention_up_to=4,
        decode=tiny._replace(batch=4, length=8),
        beam=2,
        copy_bytes=2**20,
        matmul=64,
        seconds=0.0,
        rounds=2,
    )


def timed_shapes(quick: bool) -> list[Shape]:
    """List shapes of 16k and 64k tokens, the widest kernel first, with short sentences, DropConnect and GLU."""
    short, small = MAIN._replace(batch=2048, length=32), Shape(16, 1024, 512, 8, 31)
    # Either option at 64k tokens of 1,024 channels and at 16k of 512
    options = [MAIN._replace(drop=0.1), small._replace(drop=0.1), MAIN._replace(glu=True), small._replace(glu=True)]
    if quick:
        return [small, small._replace(taps=7), *options[1::2]]
    grid = [
        Shape(batch, 1024, channels, channels // 64, taps)
        for taps in (31, 15, 7, 3)
        for batch, channels in itertools.product((64, 16), (1024, 512))
    ]
    # The most important shapes come first, since the budget may end early
    return [*grid[:4], short, *options, *grid[4:], short._replace(taps=7), MAIN._replace(taps=7, glu=True)]


def timed_pairs(shapes: Sequence[Shape]) -> list[tuple[str, Shape]]:
    """Pair every operator with every shape that it supports; DynamicConv has no GLU."""
    return [(op, shape) for shape, op in itertools.product(shapes, OPS) if not (shape.glu and op == "dynamicconv")]


def minimal_bytes(op: str, direction: str, shape: Shape, itemsize: int = 2) -> int:
    """Count the fewest bytes that an operation must move: every input read once, every output written once.

    Forward reads x and writes y; backward reads x and dy and writes dx. DynamicConv has H K logits a token, of which
    backward writes gradients too, H float32 numbers that forward writes and backward reads, and DropConnect's words.
    LightConv's weights are not counted. Attention reads queries, keys and values, backward for a gradient of each, and
    has H float32 numbers a token that forward writes and backward reads.
    """
    y = shape.channels * itemsize
    if op == "attention":
        return shape.tokens * ((4 if direction == "forward" else 7) * y + 4 * shape.heads)
    x = y * (2 if shape.glu else 1)
    # LightConv's H K weights for the whole batch are negligible
    logits = others = 0
    if op == "dynamicconv":
        logits = shape.heads * shape.taps * itemsize
        # float32 log-sum-exp of each kernel, and 32-bit keep words for every 32 taps
        others = 4 * shape.heads * (1 + -(-shape.taps // 32) * (shape.drop > 0))
    forward = x + y + logits + others
    return shape.tokens * (forward if direction == "forward" else forward + x + logits)
