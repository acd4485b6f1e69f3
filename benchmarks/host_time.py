"""Measure the host's cost of a call of a convolution, without a GPU and without the launches.

    python -m benchmarks.host_time
    python -m benchmarks.host_time --rounds 20 --out benchmarks/results/host_time

The public functions run on a CPU with backend=triton, with tiny tensors, under autocast as in training. A launch does
nothing here, so that Triton's Python for it is not counted. Microseconds are processor time of the fastest round, since
other work on the machine slows rounds down. An empty autograd function shows torch's cost of a graph of one node and
its backward pass.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from benchmarks import harness
from seq2seq.kernels.conv_step import conv_step
from seq2seq.kernels.conv_step import triton as steps
from seq2seq.kernels.dropconnect import keep_probability
from seq2seq.kernels.dynamicconv import dynamicconv
from seq2seq.kernels.dynamicconv import triton as dynamic
from seq2seq.kernels.lightconv import lightconv
from seq2seq.kernels.lightconv import triton as light

BATCH, LENGTH, HEADS, WIDTH, TAPS = 4, 27, 4, 16, 31
# Calls of a round; their times are averaged
CALLS = 100
KERNELS = {light: "band one_tile direct", dynamic: "band one_tile direct"}


class _Empty(torch.autograd.Function):
    """Function that computes nothing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:  # type: ignore[override]
        return dy


class _Nothing:
    """Kernel that does nothing."""

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return self._launch

    def _launch(self, *given: Any, **constants: Any) -> None:
        pass


@contextmanager
def without_launches() -> Iterator[None]:
    """Take Triton's code paths on any device, and launch nothing."""
    with ExitStack() as stack:
        enter = stack.enter_context
        enter(mock.patch("seq2seq.kernels.dispatch.device_obstacle", return_value=None))
        enter(mock.patch.object(steps, "conv_step_kernel", _Nothing()))
        for module, kinds in KERNELS.items():
            for kind in kinds.split():
                for direction in ("forward", "backward"):
                    enter(mock.patch.object(module, f"{kind}_{direction}", _Nothing()))
        yield


def calls(*, drop: bool) -> dict[str, tuple[Callable[[], Tensor], list[Tensor]]]:
    """Return a call of each operation with the inputs of its gradients."""
    torch.manual_seed(0)
    channels = HEADS * WIDTH
    x = torch.randn(BATCH, LENGTH, channels).bfloat16().requires_grad_()
    gated = torch.randn(BATCH, LENGTH, 2 * channels).bfloat16().requires_grad_()
    weights = torch.randn(HEADS, TAPS).softmax(-1).requires_grad_()
    logits = torch.randn(BATCH, LENGTH, HEADS, TAPS).bfloat16().requires_grad_()
    given: dict[str, Any] = {"causal": True, "end": torch.full((BATCH,), LENGTH), "backend": "triton"}
    given |= {"keep_prob": keep_probability(0.1)}
    words, many = (torch.full((*shape, 1), -1, dtype=torch.int32) for shape in ((HEADS,), logits.shape[:3]))
    few, each = ({"keep": words}, {"keep": many}) if drop else ({}, {})
    nothing = {} if drop else {"an autograd function": (lambda: _Empty.apply(x), [x])}
    return nothing | {  # type: ignore[return-value]
        "lightconv": (lambda: lightconv(gated, weights, glu=True, **few, **given), [gated, weights]),
        "dynamicconv": (lambda: dynamicconv(x, logits, **each, **given), [x, logits]),
    }


def step() -> Callable[[], Tensor]:
    """Return a decoding step."""
    values = torch.randn(BATCH, HEADS, TAPS, 5, WIDTH)
    rows = BATCH * 5
    owner, position = torch.zeros(rows, TAPS, dtype=torch.int64), torch.zeros(rows, dtype=torch.int64)
    weights = torch.randn(1, HEADS, TAPS)
    return lambda: conv_step(values, owner, position, weights, softmax=False, backend="triton")


def microseconds(call: Callable[[], Any], rounds: int) -> float:
    """Time a call."""
    found = []
    for _ in range(rounds):
        began = time.process_time()
        for _ in range(CALLS):
            call()
        found.append((time.process_time() - began) / CALLS)
    return round(1e6 * min(found), 1)


def measure(rounds: int) -> dict[str, dict[str, float]]:
    """Time calls forward, and forward and backward."""
    found: dict[str, dict[str, float]] = {}
    with without_launches(), torch.autocast("cpu", torch.bfloat16):
        for drop in (False, True):
            for name, (call, inputs) in calls(drop=drop).items():
                with torch.no_grad():
                    alone = microseconds(call, rounds)
                grad = call().detach()
                both = microseconds(lambda call=call, inputs=inputs, grad=grad: _both(call, inputs, grad), rounds)
                row = name + (", DropConnect" if drop else "")
                found[row] = {"forward without gradient": alone, "forward and backward": both}
        with torch.no_grad():
            found["conv_step"] = {"forward without gradient": microseconds(step(), rounds)}
    return found


def _both(call: Callable[[], Tensor], inputs: list[Tensor], grad: Tensor) -> None:
    torch.autograd.grad(call(), inputs, grad)


def main() -> int:
    """Print the table; with --out also write host_time.json."""
    parser = harness.parser_for("host_time", __doc__)
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = measure(options.rounds)
    columns = list(results["lightconv"])
    print(f"| us a call | {' | '.join(columns)} |")
    print(f"|---|{'--:|' * len(columns)}")
    for name, row in results.items():
        print(f"| {name} | {' | '.join(str(row.get(column, '')) for column in columns)} |")
    harness.write(options.out, "host_time", {"machine": harness.machine(), "results": results})
    return 0


if __name__ == "__main__":
    sys.exit(main())
