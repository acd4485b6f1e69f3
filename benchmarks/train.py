"""Measure training speed on a CPU: target tokens per CPU-second of one core, against fairseq's recorded figures.

    python -m benchmarks.train
    python -m benchmarks.train --only base --steps 20 --out benchmarks/results/train

Forward and backward pass of batches of 32 x (25 + 25) random tokens, label smoothing 0.1, every dropout on, bf16
autocast over float32 weights: fairseq's own best way. Its figures were taken on another day (AMD EPYC of the Zen 5
class, one core, process CPU time, whose bf16 matrix products ran at 484 GFLOP/s), so the ratios are provisional; the
rate of this machine's products, taken between the measurements, stands beside them, and the ratio that remains when
both are divided by it. Run with OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from typing import Any

# as seq2seq.train sets them, before torch is imported
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "8192")

import torch

from benchmarks import harness
from seq2seq.build import build_model
from seq2seq.config.compose import resolved_settings
from seq2seq.training.flops import training_flops
from seq2seq.training.loss import projected_cross_entropy

# Sentences in a batch, and tokens on either side of a pair.
ROWS, LENGTH = 32, 25
RECORDED_GFLOPS = 484.0
# Source and target vocabularies of the recorded models.
JOINT, IWSLT = (32768, 32768), (8848, 6632)
NO_GLU = ("mixer.encoder.glu=false", "mixer.decoder.glu=false")
# By name: settings, vocabularies, fairseq's target tokens per CPU-second, and our floor as a multiple of it
MODELS: dict[str, tuple[tuple[str, ...], tuple[int, int], float, float]] = {
    "base": (("mixer=transformer", "model=base"), JOINT, 558, 1.1),
    "transformer": (("mixer=transformer", "model=small", "model.tie=target"), IWSLT, 1157, 1.1),
    "lightconv": (("mixer=lightconv", "model=small", "model.tie=target", *NO_GLU), IWSLT, 1351, 1.1),
    "dynamicconv": (("mixer=dynamicconv", "model=small", "model.tie=target", *NO_GLU), IWSLT, 417, 2.5),
}


def settings(overrides: tuple[str, ...], vocabularies: tuple[int, int]) -> dict[str, Any]:
    """Return the settings of `build_model`."""
    config = resolved_settings(overrides)
    src, tgt = vocabularies
    sizes = {"src_vocab_size": src, "tgt_vocab_size": tgt, "pad_id": 0, "joint": src == tgt}
    return {"model": config["model"], "mixer": config["mixer"], **sizes}


class Step:
    """A training step without the update, as the recorded figures are: forward, loss, backward."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.model = build_model(config).train()
        src, tgt = config["src_vocab_size"], config["tgt_vocab_size"]
        # ids from 4 on: below are padding, begin, end and unknown
        self.src = torch.randint(4, src, (ROWS, LENGTH))
        self.tgt_in, self.tgt_out = torch.randint(4, tgt, (2, ROWS, LENGTH))
        self.mask = torch.ones(ROWS, LENGTH, dtype=torch.bool)

    def __call__(self) -> None:
        """Run one step."""
        with torch.autocast("cpu", dtype=torch.bfloat16):
            features = self.model.features(self.src, self.mask, self.tgt_in, self.mask)
            loss = projected_cross_entropy(features, self.model.output, self.tgt_out, self.mask, smoothing=0.1).loss
        loss.backward()
        self.model.zero_grad(set_to_none=True)


def matrix_gflops(size: int = 1024, repeats: int = 10) -> float:
    """Measure this core's rate of bf16 products, by CPU time."""
    a, b = (torch.randn(size, size).bfloat16() for _ in range(2))
    # warm-up
    a @ b
    start = time.process_time()
    for _ in range(repeats):
        a @ b
    return 2e-9 * size**3 * repeats / (time.process_time() - start)


def measure(name: str, *, steps: int) -> dict[str, Any]:
    """Measure the median step of one model."""
    overrides, vocabularies, recorded, floor = MODELS[name]
    config = settings(overrides, vocabularies)
    step, seconds, rates = Step(config), [], []
    # warm-up
    step()
    for _ in range(steps):
        # between the steps, since a shared machine's speed drifts
        rates.append(matrix_gflops())
        start = time.process_time()
        step()
        seconds.append(time.process_time() - start)
    speed, gflops = ROWS * LENGTH / statistics.median(seconds), statistics.median(rates)
    flops = training_flops(config)
    assert flops is not None
    return {
        "model": name,
        "parameters": sum(p.numel() for p in step.model.parameters()),
        "tokens_per_cpu_second": round(speed, 1),
        "best": round(ROWS * LENGTH / min(seconds), 1),
        "recorded_fairseq": recorded,
        "ratio": round(speed / recorded, 2),
        "floor": floor,
        "matrix_gflops": round(gflops, 1),
        "ratio_at_equal_matrix_rate": round(speed / recorded * RECORDED_GFLOPS / gflops, 2),
        "model_gflops": round(1e-9 * flops(ROWS, LENGTH, LENGTH) / statistics.median(seconds), 1),
    }


def main() -> int:
    """Print the table; with --out also write train.json."""
    parser = harness.parser_for("train", __doc__)
    parser.add_argument("--only", nargs="+", choices=tuple(MODELS), default=list(MODELS), help="which models (all)")
    parser.add_argument("--steps", type=int, default=10, help="steps to take the median of (10)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = []
    print(
        f"{'model':<14}{'tokens/CPU-s':>13}{'fairseq':>9}{'ratio':>7}{'floor':>7}{'product GFLOP/s':>17}{'at 484':>8}"
    )
    for name in options.only:
        result = measure(name, steps=options.steps)
        results.append(result)
        print(
            f"{name:<14}{result['tokens_per_cpu_second']:>13}{result['recorded_fairseq']:>9}{result['ratio']:>7}"
            f"{result['floor']:>7}{result['matrix_gflops']:>17}{result['ratio_at_equal_matrix_rate']:>8}",
            flush=True,
        )
    harness.write(options.out, "train", {"machine": harness.machine(), "results": results})
    return 0


if __name__ == "__main__":
    sys.exit(main())
