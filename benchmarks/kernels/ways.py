"""Implementations of a convolution: ours, torch's band matrices, unfolding, and fairseq's CUDA extensions."""

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
    """A computation on prepared inputs.

    Attributes:
        leaves: Tensors to differentiate by.
        run: The computation.
        restore: Function that brings the output to (B, T, C); None if outputs cannot be compared.
    """

    leaves: list[Tensor]
    run: Callable[[], Tensor]
    restore: Callable[[Tensor], Tensor] | None = lambda y: y


Way = Callable[[str, Inputs, Shape], Prepared]


def ways(op: str, shape: Shape, ours: str) -> dict[str, Way | str]:
    """Return the implementations of `op` by name, fastest first; a text is the reason why one is missing."""
    found: dict[str, Way | str] = {"ours": functools.partial(by_backend, ours)}
    if shape.glu:
        found["ours, GLU apart"] = functools.partial(gated_apart, ours)
    found |= {"torch": functools.partial(by_backend, "torch"), "unfold": unfolded}
    try:
        # Fairseq's extensions must be built from source, so they are rarely installed
        module = importlib.import_module(f"{op}_cuda")
    except ImportError:
        return found | dict.fromkeys(("fairseq", "fairseq kernel"), "not importable")
    found["fairseq"] = functools.partial(fairseq_layer, module)
    found["fairseq kernel"] = functools.partial(fairseq_kernel, module)
    return found


def by_backend(backend: str, op: str, inputs: Inputs, shape: Shape) -> Prepared:
    """Prepare our operator on a backend."""
    inputs, leaves = with_gradients(inputs)
    return Prepared(leaves, lambda: convolve(op, inputs, shape, backend))


def gated_apart(backend: str, op: str, inputs: Inputs, shape: Shape) -> Prepared:
    """Prepare torch's GLU followed by our LightConv, to show the gain of the fused gate."""
    inputs, leaves = with_gradients(inputs)
    bare = shape._replace(glu=False)
    return Prepared(leaves, lambda: convolve(op, inputs._replace(x=F.glu(inputs.x, -1)), bare, backend))


def unfolded(op: str, inputs: Inputs, shape: Shape) -> Prepared:
    """Prepare a product with all windows written out, (B, T, H, R, K), as fairseq's layers do without their kernels."""
    inputs, leaves = with_gradients(inputs)

    def run() -> Tensor:
        values = F.glu(inputs.x, -1) if shape.glu else inputs.x  # (B, T, C)
        weights = inputs.kernel.softmax(-1) if op == "dynamicconv" else inputs.kernel.expand(*values.shape[:2], -1, -1)
        weights = drop_weights(weights, inputs.keep, keep_probability(shape.drop)).to(values.dtype)
        windows = F.pad(values, (0, 0, shape.taps - 1, 0)).unfold(1, shape.taps, 1)  # (B, T, C, K)
        windows = windows.unflatten(2, (shape.heads, -1)).contiguous()  # (B, T, H, R, K)
        return (windows @ weights[..., None]).squeeze(-1).flatten(-2)

    return Prepared(leaves, run)


class Extension(torch.autograd.Function):
    """fairseq's compiled operator: x (B, C, T), normalized weights (H, K) or (B, H, K, T), `left` zeros before x."""

    @staticmethod
    def forward(ctx: Any, module: Any, x: Tensor, weights: Tensor, left: int) -> Tensor:
        """Return y (B, C, T)."""
        ctx.module, ctx.left = module, left
        ctx.save_for_backward(x, weights)
        return module.forward(x, weights, left)[0]

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[None, Tensor, Tensor, None]:
        """Return dx and dweights."""
        dx, dweights = ctx.module.backward(dy.contiguous(), ctx.left, *ctx.saved_tensors)
        return None, dx, dweights, None


def fairseq_layer(module: Any, op: str, inputs: Inputs, shape: Shape) -> Prepared:
    """Prepare fairseq's whole layer: float16 (it lacks bf16), (T, B, C) in and out, softmax and dropout in torch."""
    x = inputs.x.half().transpose(0, 1).contiguous().requires_grad_()  # (T, B, C)
    kernel = inputs.kernel.half()
    kernel = (kernel.transpose(0, 1).contiguous() if op == "dynamicconv" else kernel).requires_grad_()

    def run() -> Tensor:
        values = F.glu(x, -1) if shape.glu else x
        weights = F.dropout(kernel.softmax(-1) if op == "dynamicconv" else kernel, shape.drop)
        # Layouts of fairseq's kernel: weights (B, H, K, T), values (B, C, T)
        weights = weights.permute(1, 2, 3, 0).contiguous() if op == "dynamicconv" else weights
        y = Extension.apply(module, values.permute(1, 2, 0).contiguous(), weights, shape.taps - 1)
        return y.permute(2, 0, 1)

    # With dropout the outputs are random, so they cannot be compared
    return Prepared([x, kernel], run, None if shape.drop else lambda y: y.transpose(0, 1))


def fairseq_kernel(module: Any, op: str, inputs: Inputs, shape: Shape) -> Prepared:
    """Prepare fairseq's kernel alone, on normalized inputs in its own layout."""
    x = (F.glu(inputs.x, -1) if shape.glu else inputs.x).half().transpose(1, 2).contiguous().requires_grad_()
    weights = inputs.kernel
    if op == "dynamicconv":
        weights = drop_weights(weights.softmax(-1), inputs.keep, keep_probability(shape.drop)).permute(0, 2, 3, 1)
    weights = weights.half().contiguous().requires_grad_()
    run = functools.partial(Extension.apply, module, x, weights, shape.taps - 1)
    return Prepared([x, weights], run, None if shape.drop else lambda y: y.transpose(1, 2))
