"""The convolution of LightConv and DynamicConv on a CPU: band matrix, one multiply per tap, and unfolding.

    OMP_NUM_THREADS=1 python -m benchmarks.conv_cpu [--out DIR]

Milliseconds of forward + backward in float32, the median of the repetitions, and the ratio to the band.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from seq2seq.kernels.dynamicconv import dynamicconv
from seq2seq.kernels.lightconv import lightconv


def per_tap(x: Tensor, weights: Tensor) -> Tensor:
    """K shifted multiplications of x (B, T, H, R) by causal weights (B or 1, T or 1, H, K)."""
    taps = weights.shape[-1]
    padded = F.pad(x, (0, 0, 0, 0, taps - 1, 0))
    return sum((weights[..., k, None] * padded[:, k : k + x.shape[1]] for k in range(taps)), torch.zeros(()))


def unfolded(x: Tensor, weights: Tensor) -> Tensor:
    """All windows written out, (B, T, H, R, K), then one product with causal weights."""
    padded = F.pad(x, (0, 0, 0, 0, weights.shape[-1] - 1, 0))
    windows = padded.unfold(1, weights.shape[-1], 1).contiguous()
    return (windows @ weights.expand(*windows.shape[:3], -1)[..., None]).squeeze(-1)


def milliseconds(run: Callable[[], Tensor], repeat: int) -> float:
    """Median time of forward and backward."""
    times = []
    for _ in range(repeat + 2):
        start = time.perf_counter()
        run().sum().backward()
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times[2:])


def measure(batch: int, length: int, dim: int, heads: int, taps: int) -> dict[str, dict[str, float]]:
    """Times of the three ways for both operators."""
    x = torch.randn(batch, length, dim, requires_grad=True)
    logits = torch.randn(batch, length, heads, taps, requires_grad=True)
    static = torch.randn(heads, taps, requires_grad=True)
    split = lambda: x.unflatten(-1, (heads, -1))  # noqa: E731
    ways = {
        "lightconv": {
            "band": (lambda: lightconv(x, static.softmax(-1), causal=True), 7),
            "per tap": (lambda: per_tap(split(), static.softmax(-1)[None, None]), 3),
            "unfold": (lambda: unfolded(split(), static.softmax(-1)[None, None]), 1),
        },
        "dynamicconv": {
            "band": (lambda: dynamicconv(x, logits, causal=True), 7),
            "per tap": (lambda: per_tap(split(), logits.softmax(-1)), 3),
            "unfold": (lambda: unfolded(split(), logits.softmax(-1)), 1),
        },
    }
    return {op: {name: milliseconds(*way) for name, way in found.items()} for op, found in ways.items()}


def main() -> None:
    """Print the table; with --out also write conv_cpu.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = []
    for batch, length, dim, heads, taps in ((128, 32, 512, 8, 31), (128, 32, 512, 8, 7), (8, 512, 512, 8, 31)):
        shape = f"B {batch}, T {length}, C {dim}, H {heads}, K {taps}"
        for op, times in measure(batch, length, dim, heads, taps).items():
            rows.append({"op": op, "shape": shape, **times})
            ratios = "  ".join(f"{name} {ms:7.1f} ms ({ms / times['band']:.1f}x)" for name, ms in times.items())
            print(f"{op:<12} {shape:<34} {ratios}", flush=True)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        result = {"torch": torch.__version__, "threads": torch.get_num_threads(), "rows": rows}
        (options.out / "conv_cpu.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
