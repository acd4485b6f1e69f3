"""Time the convolutions of LightConv and DynamicConv on a CPU: band matrix, one multiply per tap, and unfolding.

    OMP_NUM_THREADS=1 python -m benchmarks.conv_cpu [--out DIR]

Milliseconds of forward and backward pass in float32, the median of the repetitions, and the ratio to the band's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import harness
from seq2seq.kernels.dynamicconv import dynamicconv
from seq2seq.kernels.lightconv import lightconv
from seq2seq.system.markdown import markdown_table

METHODS = ("band", "per tap", "unfold")


class Shape(NamedTuple):
    """Sizes of a convolution: x is (B, T, C), with H heads and K taps."""

    batch: int
    length: int
    channels: int
    heads: int
    taps: int

    def __str__(self) -> str:
        """Format the sizes by their letters."""
        return ", ".join(f"{letter} {size}" for letter, size in zip("BTCHK", self, strict=True))


SHAPES = (Shape(128, 32, 512, 8, 31), Shape(128, 32, 512, 8, 7), Shape(8, 512, 512, 8, 31))


def per_tap(x: Tensor, weights: Tensor) -> Tensor:
    """Multiply x (B, T, H, R), shifted by each of K taps, by causal weights (B or 1, T or 1, H, K)."""
    taps = weights.shape[-1]
    padded = F.pad(x, (0, 0, 0, 0, taps - 1, 0))  # (B, T + K - 1, H, R)
    return sum((weights[..., k, None] * padded[:, k : k + x.shape[1]] for k in range(taps)), torch.zeros(()))


def unfolded(x: Tensor, weights: Tensor) -> Tensor:
    """Write out all windows, (B, T, H, R, K), and multiply them by causal weights."""
    padded = F.pad(x, (0, 0, 0, 0, weights.shape[-1] - 1, 0))
    windows = padded.unfold(1, weights.shape[-1], 1).contiguous()  # (B, T, H, R, K)
    return (windows @ weights.expand(*windows.shape[:3], -1)[..., None]).squeeze(-1)


def measure(shape: Shape) -> dict[str, dict[str, float]]:
    """Time all methods, by operator and method, in milliseconds."""
    x = torch.randn(shape.batch, shape.length, shape.channels, requires_grad=True)
    logits = torch.randn(shape.batch, shape.length, shape.heads, shape.taps, requires_grad=True)
    static = torch.randn(shape.heads, shape.taps, requires_grad=True)

    def by_head() -> Tensor:
        return x.unflatten(-1, (shape.heads, -1))

    def shared() -> Tensor:
        return static.softmax(-1)[None, None]

    # Each with the number of its repetitions, fewer for the slower ones
    calls: dict[str, dict[str, tuple[Callable[[], Tensor], int]]] = {
        "lightconv": {
            "band": (lambda: lightconv(x, static.softmax(-1), causal=True), 7),
            "per tap": (lambda: per_tap(by_head(), shared()), 3),
            "unfold": (lambda: unfolded(by_head(), shared()), 1),
        },
        "dynamicconv": {
            "band": (lambda: dynamicconv(x, logits, causal=True), 7),
            "per tap": (lambda: per_tap(by_head(), logits.softmax(-1)), 3),
            "unfold": (lambda: unfolded(by_head(), logits.softmax(-1)), 1),
        },
    }
    return {
        op: {method: _milliseconds(call, repeat) for method, (call, repeat) in of_op.items()}
        for op, of_op in calls.items()
    }


def _milliseconds(call: Callable[[], Tensor], repeat: int) -> float:
    return 1e3 * harness.median_seconds(lambda: call().sum().backward(), repeat=repeat)


def main() -> None:
    """Print the table; with --out also write it as conv_cpu.json and conv_cpu.md."""
    options = harness.parser_for("conv_cpu", __doc__).parse_args()
    rows = []
    for shape in SHAPES:
        for op, times in measure(shape).items():
            rows.append({"op": op, "shape": str(shape), **times})
    table = markdown_table(["operator", "shape", *METHODS], [_cells(row) for row in rows], right=METHODS, padded=True)
    print(table)
    harness.write(options.out, "conv_cpu", {"machine": harness.machine(), "rows": rows}, table)


def _cells(row: dict[str, Any]) -> list[str]:
    """Format the milliseconds of each method, and the ratio to the band's."""
    times = [f"{row[method]:,.1f} ms ({row[method] / row['band']:.1f}x)" for method in METHODS]
    return [row["op"], row["shape"], *times]


if __name__ == "__main__":
    main()
