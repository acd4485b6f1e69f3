"""Every way to compute a convolution: ours, torch's band matrices, unfolding, and fairseq's CUDA extensions."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.kernels.inputs import Inputs, convolve, with_gradients
from benchmarks.kernels.shapes import Shape
from seq2seq.kernels.dropconnect import drop_weights, keep_probability


class Prepared(NamedTuple):
    """Leaves to differentiate by, the computation, and how its output becomes (B, T, C); None = not comparable."""

    leaves: list[Tensor]
    run: Callable[[], Tensor]
    restore: Callable[[Tensor], Tensor] | None = lambda y: y


Way = Callable[[str, Inputs, Shape], Prepared]


def ways(op: str, shape: Shape, ours: str) -> dict[str, Way | str]:
    """Every way to compute op, fastest first; a text says why there is none."""
    found: dict[str, Way | str] = {"ours": functools.partial(by_backend, ours)}
    if shape.glu:
        found["ours, GLU apart"] = functools.partial(gated_apart, ours)
    found |= {"torch": functools.partial(by_backend, "torch"), "unfold": unfolded}
    try:
        module = importlib.import_module(f"{op}_cuda")
    except ImportError:
        return found | dict.fromkeys(("fairseq", "fairseq kernel"), "not importable")
    found["fairseq"] = functools.partial(fairseq_layer, module)
    found["fairseq kernel"] = functools.partial(fairseq_kernel, module)
    return found


def by_backend(backend: str, op: str, inputs: Inputs, shape: Shape) -> Prepared:
    """Our operator on a backend."""
    inputs, leaves = with_gradients(inputs)
    return Prepared(leaves, lambda: convolve(op, inputs, shape, backend))


def gated_apart(backend: str, op: str, inputs: Inputs, shape: Shape) -> Prepared:
    """The GLU by torch, then our LightConv: what fusing the gate saves."""
    inputs, leaves = with_gradients(inputs)
    bare = shape._replace(glu=False)
    return Prepared(leaves, lambda: convolve(op, inputs._replace(x=F.glu(inputs.x, -1)), bare, backend))


def unfolded(op: str, inputs: Inputs, shape: Shape) -> Prepared:
    """All windows written out, (B, T, H, R, K), then one product: what fairseq's layers do without their kernels."""
    inputs, leaves = with_gradients(inputs)

    def run() -> Tensor:
        values = F.glu(inputs.x, -1) if shape.glu else inputs.x
        weights = inputs.kernel.softmax(-1) if op == "dynamicconv" else inputs.kernel.expand(*values.shape[:2], -1, -1)
        weights = drop_weights(weights, inputs.keep, keep_probability(shape.drop)).to(values.dtype)
        windows = F.pad(values, (0, 0, shape.taps - 1, 0)).unfold(1, shape.taps, 1)  # (B, T, C, K)
        windows = windows.unflatten(2, (shape.heads, -1)).contiguous()
        return (windows @ weights[..., None]).squeeze(-1).flatten(-2)

    return Prepared(leaves, run)


class Extension(torch.autograd.Function):
    """fairseq's compiled operator: x (B, C, T), normalised weights (H, K) or (B, H, K, T), `left` zeros before x."""

    @staticmethod
    def forward(ctx: Any, module: Any, x: Tensor, weights: Tensor, left: int) -> Tensor:
        """y (B, C, T)."""
        ctx.module, ctx.left = module, left
        ctx.save_for_backward(x, weights)
        return module.forward(x, weights, left)[0]

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[None, Tensor, Tensor, None]:
        """dx and dweights."""
        dx, dweights = ctx.module.backward(dy.contiguous(), ctx.left, *ctx.saved_tensors)
        return None, dx, dweights, None


def fairseq_layer(module: Any, op: str, inputs: Inputs, shape: Shape) -> Prepared:
    """As fairseq's layer calls it: float16 (it knows no bf16), (T, B, C) in and out, softmax and dropout in torch."""
    x = inputs.x.half().transpose(0, 1).contiguous().requires_grad_()
    kernel = inputs.kernel.half()
    kernel = (kernel.transpose(0, 1).contiguous() if op == "dynamicconv" else kernel).requires_grad_()

    def run() -> Tensor:
        values = F.glu(x, -1) if shape.glu else x
        weights = F.dropout(kernel.softmax(-1) if op == "dynamicconv" else kernel, shape.drop)
        weights = weights.permute(1, 2, 3, 0).contiguous() if op == "dynamicconv" else weights
        y = Extension.apply(module, values.permute(1, 2, 0).contiguous(), weights, shape.taps - 1)
        return y.permute(2, 0, 1)

    return Prepared([x, kernel], run, None if shape.drop else lambda y: y.transpose(0, 1))


def fairseq_kernel(module: Any, op: str, inputs: Inputs, shape: Shape) -> Prepared:
    """fairseq's kernel alone, its inputs already normalised and laid out as it wants them."""
    x = (F.glu(inputs.x, -1) if shape.glu else inputs.x).half().transpose(1, 2).contiguous().requires_grad_()
    weights = inputs.kernel
    if op == "dynamicconv":
        weights = drop_weights(weights.softmax(-1), inputs.keep, keep_probability(shape.drop)).permute(0, 2, 3, 1)
    weights = weights.half().contiguous().requires_grad_()
    run = functools.partial(Extension.apply, module, x, weights, shape.taps - 1)
    return Prepared([x, weights], run, None if shape.drop else lambda y: y.transpose(1, 2))
