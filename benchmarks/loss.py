"""Measure the vocabulary projection and its loss on a CPU, whole logits in torch against chunks, in time and memory.

    python -m benchmarks.loss
    python -m benchmarks.loss --rows 3200 --vocab 32768 --out benchmarks/results/loss

Each way runs in a process of its own, whose peak resident memory beyond that before the first step is reported; time
is the median of process CPU seconds. Products are in bf16, weights in float32.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from typing import Any

from benchmarks import harness
from seq2seq.training.machine.environment import VARIABLES

# Before torch is imported
os.environ.update(VARIABLES | os.environ)

WAYS = ("torch", "chunked")


def measure(way: str, *, rows: int, dim: int, vocab: int, steps: int) -> dict[str, Any]:
    """Run forward and backward one way; return CPU seconds a step, and peak memory beyond inputs and weights in MiB."""
    import torch
    import torch.nn.functional as F

    from seq2seq.training.objective.loss import projected_cross_entropy

    output, features = torch.nn.Linear(dim, vocab, bias=False), torch.randn(rows, dim, requires_grad=True)
    target, mask = torch.randint(0, vocab, (rows,)), torch.ones(rows, dtype=torch.bool)
    # The peak before the first step is that of inputs and weights
    before, seconds = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, []
    for _ in range(steps):
        start = time.process_time()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            if way == "chunked":
                loss = projected_cross_entropy(features, output, target, mask, smoothing=0.1).loss
            else:
                loss = F.cross_entropy(output(features).float(), target, label_smoothing=0.1, reduction="sum")
        loss.backward()
        seconds.append(time.process_time() - start)
        # Outside the timed part
        output.zero_grad()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # The first step also allocates; ru_maxrss is in KiB
    return {"way": way, "seconds": statistics.median(seconds[1:]), "peak_mib": (peak - before) / 1024}


def main() -> int:
    """Print the table; with --out also write loss.json."""
    parser = harness.parser_for("loss", __doc__)
    for name, value in (("rows", 3200), ("dim", 512), ("vocab", 32768), ("steps", 4)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--way", choices=WAYS, help="measure this one alone, in this process, and print JSON")
    options = parser.parse_args()
    sizes = {name: getattr(options, name) for name in ("rows", "dim", "vocab", "steps")}
    if options.way:
        print(json.dumps(measure(options.way, **sizes)))
        return 0
    given = [f"--{name}={value}" for name, value in sizes.items()]
    results = []
    # A process each: the peak of resident memory never falls
    for way in WAYS:
        command = [sys.executable, "-m", "benchmarks.loss", f"--way={way}", *given]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        results.append(json.loads(done.stdout))
        print("{way:<10}{seconds:8.3f} s{peak_mib:10.0f} MiB".format(**results[-1]))
    harness.write(options.out, "loss", {"machine": harness.machine(), "sizes": sizes, "results": results})
    return 0


if __name__ == "__main__":
    sys.exit(main())
