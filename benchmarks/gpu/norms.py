"""Time a sublayer's dropout, residual sum and norm, by torch's operations and by one kernel each way."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from benchmarks.gpu.attention import device_us
from seq2seq.kernels.dropout import Dropout
from seq2seq.kernels.fused import fused
from seq2seq.kernels.layer_norm import LayerNorm
from seq2seq.kernels.residual_norm import residual_norm, skip_and_norm

if TYPE_CHECKING:
    from benchmarks.gpu.part import PartJob

ROWS, WIDTHS = 16384, (512, 1024)
# Types of the residual stream and of a sublayer's output, with and without `bf16_residual`
TYPES = ((torch.bfloat16, torch.bfloat16), (torch.float32, torch.bfloat16))
# Greatest relative error by norm, compared with torch's operations
LIMIT = 2e-2


def run(job: PartJob) -> None:
    """Save microseconds, GB/s and the difference between both ways, by norm, shape and types."""
    rows, widths = (ROWS, WIDTHS) if job.on_gpu else (8, (40,))
    ways = {"torch": False, "kernel": True}
    for kind, width, types in itertools.product(("post", "pre"), widths, TYPES):
        row: Any = {"ways": list(ways), "limit": LIMIT}
        try:
            sublayer = _Around(kind, rows, width, *types, torch.device(job.device))
            outcomes = []
            for name, by_kernel in ways.items():
                with fused(by_kernel):
                    outcomes.append([part.detach().double() for part in sublayer.both(0.0)])
                    row[name] = sublayer.timed()
            row["error"] = max(float((mine - a).norm() / a.norm()) for a, mine in zip(*outcomes, strict=True))
        # The next row may still work; Triton's errors are of types of its own
        except Exception as error:
            row = f"{type(error).__name__}: {str(error)[:300]}"
        stream = str(types[0]).removeprefix("torch.")
        job.save(**{f"{kind}, {rows} x {width}, stream {stream}": row})


class _Around:
    """Dropout, residual sum and norm around a sublayer with a given output."""

    def __init__(
        self, kind: str, rows: int, width: int, stream: torch.dtype, other: torch.dtype, device: torch.device
    ) -> None:
        self.kind, self.device = kind, device
        self.norm = LayerNorm(width).to(device)
        self.x, self.y = (torch.randn(rows, width, device=device).to(one).requires_grad_() for one in (stream, other))
        self.grads = [torch.randn_like(self.x) for _ in range(1 if kind == "post" else 2)]
        # Bytes that must be read and written, by `docs/kernels.md`
        a, b = stream.itemsize, other.itemsize
        each = {"post": (3 * a + b, 6 * a + 2 * b), "pre": (4 * a + b, 9 * a + 2 * b)}[kind]
        self.bytes: dict[str, int] = {
            way: rows * width * one for way, one in zip(("forward", "both"), each, strict=True)
        }

    def forward(self, drop: float = 0.1) -> list[Tensor]:
        if self.kind == "post":
            return [residual_norm(self.x, self.y, dropout=Dropout(drop), norm=self.norm)]
        x, z = skip_and_norm(self.x, self.norm)
        return [z, residual_norm(x, self.y, dropout=Dropout(drop), norm=None)]

    def both(self, drop: float = 0.1) -> list[Tensor]:
        outputs = self.forward(drop)
        inputs = [self.x, self.y, *self.norm.parameters()]
        return [*outputs, *torch.autograd.grad(outputs, inputs, self.grads)]

    def timed(self) -> dict[str, float]:
        us = {"forward": device_us(self.forward, self.device), "both": device_us(self.both, self.device)}
        rates = {f"{way} GB/s": round(1e-3 * self.bytes[way] / taken, 1) for way, taken in us.items()}
        return {f"{way} us": taken for way, taken in us.items()} | rates
