"""Time each backend of attention at the shapes of training."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.gpu.machine import wait
from seq2seq.kernels.attention import attention, packed_attention
from seq2seq.kernels.attention.short_rows import divide
from seq2seq.kernels.fused import fused
from seq2seq.kernels.launch_config import ONE_TILE
from seq2seq.search.graphs import CudaRecorder

if TYPE_CHECKING:
    from benchmarks.gpu.part import PartJob


class AttentionShape(NamedTuple):
    """Sentences, heads, queries, keys, and channels of a head."""

    batch: int
    heads: int
    queries: int
    keys: int
    channels: int

    @property
    def least_bytes(self) -> int:
        """Count the fewest bytes of both passes in bf16: q, k, v, the result, and the gradient of each."""
        rows = 5 * self.queries + 6 * self.keys
        return 2 * self.batch * self.heads * rows * self.channels


# Short sentences, the typical batch of a corpus, and longer sentences: 16k tokens each.
_SHAPES = (
    *(AttentionShape(585, 8, 28, 28, 64), AttentionShape(372, 8, 40, 48, 64), AttentionShape(16, 8, 1024, 1024, 64)),
    *(AttentionShape(16384 // length, 8, length, length, 64) for length in (64, 128, 256)),
)
_TINY = (AttentionShape(2, 2, 8, 8, 64),)


def run(job: PartJob) -> None:
    """Save the microseconds of a call by shape and backend, forward and with its backward pass, and its bandwidth."""
    for shape in _SHAPES if job.on_gpu else _TINY:
        row: dict[str, Any] = {}
        for name, call, inputs in _calls(shape, torch.device(job.device)):
            try:
                row[name] = _timed(call, inputs)
                # Comparable with the bandwidth of a copy (part "kernels")
                row[name]["GB/s"] = round(shape.least_bytes / row[name]["both us"] / 1e3)
            # Triton's errors are of types of its own
            except Exception as error:
                row[name] = str(error)[:80]
            job.save(**{f"B {shape.batch} T {shape.queries} S {shape.keys}": row})


def _calls(shape: AttentionShape, device: torch.device) -> list[tuple[str, Callable[[], Tensor], list[Tensor]]]:
    """List names, calls, and the tensors that get gradients."""

    def heads(length: int) -> Tensor:
        rows = torch.randn(shape.batch, length, shape.heads, shape.channels, device=device, dtype=torch.bfloat16)
        return rows.transpose(1, 2).requires_grad_()

    q, k, v = heads(shape.queries), heads(shape.keys), heads(shape.keys)
    joint = torch.randn(shape.batch, shape.queries, 3 * shape.heads * shape.channels, device=device, dtype=q.dtype)
    joint.requires_grad_()
    mask = torch.ones(shape.batch, 1, 1, shape.keys, device=device, dtype=torch.bool)

    def by(backend: SDPBackend, given: Tensor | None = None, *, causal: bool = False) -> Callable[[], Tensor]:
        def call() -> Tensor:
            with sdpa_kernel([backend if device.type == "cuda" else SDPBackend.MATH]):
                return F.scaled_dot_product_attention(q, k, v, attn_mask=given, is_causal=causal)

        return call

    def ours(*, by_tile: bool, **given: Any) -> Tensor:
        with fused(by_tile):
            return attention(q, k, v, **given)

    def joined(*, by_tile: bool) -> Tensor:
        """Attend from a joint projection of queries, keys and values, so that the gradient is joint as well."""
        with fused(by_tile):
            parts = divide(joint, *3 * [shape.heads * shape.channels])
            return attention(*(part.unflatten(-1, (shape.heads, -1)).transpose(1, 2) for part in parts), causal=True)

    ways: dict[str, Callable[[], Tensor]] = {
        "ours, mask": lambda: ours(by_tile=False, mask=mask),
        "flash": by(SDPBackend.FLASH_ATTENTION),
        "efficient, mask": by(SDPBackend.EFFICIENT_ATTENTION, mask),
        "efficient, float mask": by(SDPBackend.EFFICIENT_ATTENTION, torch.zeros_like(mask, dtype=q.dtype)),
        "cudnn": by(SDPBackend.CUDNN_ATTENTION),
        "math, mask": by(SDPBackend.MATH, mask),
    }
    if shape.queries == shape.keys:
        ways["ours, causal"] = lambda: ours(by_tile=False, causal=True)
        ways["flash, causal"] = by(SDPBackend.FLASH_ATTENTION, causal=True)
        ways["efficient, causal"] = by(SDPBackend.EFFICIENT_ATTENTION, causal=True)
    short = max(shape.queries, shape.keys) <= ONE_TILE
    if short:
        ways["one tile, mask"] = lambda: ours(by_tile=True, mask=mask)
        ways["one tile, mask, dropout"] = lambda: ours(by_tile=True, mask=mask, dropout=0.1)
    if short and shape.queries == shape.keys:
        ways["one tile, causal"] = lambda: ours(by_tile=True, causal=True)
        ways["joint, causal"] = lambda: joined(by_tile=False)
        ways["joint, one tile, causal"] = lambda: joined(by_tile=True)
    if device.type == "cuda":
        ways["packed, mask"] = lambda: packed_attention(q, k, v, mask[:, 0, 0])
    return [(name, call, [joint] if name.startswith("joint") else [q, k, v]) for name, call in ways.items()]


def _timed(call: Callable[[], Tensor], inputs: list[Tensor]) -> dict[str, float]:
    grad = torch.randn_like(call())
    device = grad.device
    return {
        "forward us": device_us(call, device),
        "both us": device_us(lambda: torch.autograd.grad(call(), inputs, grad), device),
    }


def device_us(call: Callable[[], object], device: torch.device, calls: int = 50) -> float:
    """Return the microseconds of a call: on a GPU from a graph of many calls, on a CPU from one call."""
    for _ in range(3):
        call()
    wait(device)
    if device.type != "cuda":
        began = time.perf_counter()
        call()
        return round(1e6 * (time.perf_counter() - began), 1)

    def several() -> None:
        for _ in range(calls):
            call()

    # A launch may take the host longer than the kernel takes the GPU
    replay = CudaRecorder(device).record(several)
    replay()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    replay()
    end.record()
    wait(device)
    return round(1e3 * start.elapsed_time(end) / calls, 1)
