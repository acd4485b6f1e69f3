"""Draw random inputs of the convolutions and of their decoding steps, and call our operators on them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.kernels.shapes import Shape
from seq2seq.kernels.conv_step import conv_step
from seq2seq.kernels.dropconnect import keep_probability, keep_words
from seq2seq.kernels.dynamicconv import dynamicconv
from seq2seq.kernels.lightconv import lightconv


class Inputs(NamedTuple):
    """Inputs of a convolution.

    Attributes:
        x: (B, T, C), or (B, T, 2 C) with a GLU.
        kernel: Logits (B, T, H, K) of DynamicConv or weights (H, K) of LightConv.
        keep: Keep words of DropConnect.
    """

    x: Tensor
    kernel: Tensor
    keep: Tensor | None


def places(op: str, shape: Shape) -> tuple[int, ...]:
    """Return the sizes of the axes that have a kernel each: (B, T, H) or (H,)."""
    return (shape.batch, shape.length, shape.heads) if op == "dynamicconv" else (shape.heads,)


def draw(op: str, shape: Shape, dtype: torch.dtype, device: torch.device) -> Inputs:
    """Draw random inputs; LightConv's weights, the result of a softmax, are in float32, as under autocast."""
    # A GLU halves the channels that it reads
    width = shape.channels * (2 if shape.glu else 1)
    x = torch.randn(shape.batch, shape.length, width, device=device, dtype=dtype)  # (B, T, C or 2 C)
    keep = keep_words(places(op, shape), shape.taps, shape.drop, device=device) if shape.drop else None
    kernel = torch.randn(*places(op, shape), shape.taps, device=device)  # (B, T, H, K) or (H, K)
    return Inputs(x, kernel.softmax(-1) if op == "lightconv" else kernel.to(dtype), keep)


def convolve(op: str, inputs: Inputs, shape: Shape, backend: str) -> Tensor:
    """Call our operator on a backend."""
    rest = {"keep": inputs.keep, "keep_prob": keep_probability(shape.drop)}
    if op == "dynamicconv":
        return dynamicconv(inputs.x, inputs.kernel, causal=True, backend=backend, **rest)
    return lightconv(inputs.x, inputs.kernel, causal=True, glu=shape.glu, backend=backend, **rest)


def with_gradients(inputs: Inputs) -> tuple[Inputs, list[Tensor]]:
    """Copy the inputs as leaves of a graph, and return the copies with a list of the leaves."""
    leaves = [part.detach().clone().requires_grad_() for part in (inputs.x, inputs.kernel)]
    return inputs._replace(x=leaves[0], kernel=leaves[1]), leaves


def random_step(
    op: str, shape: Shape, dtype: torch.dtype, device: torch.device, beam: int
) -> tuple[Callable[..., Tensor], tuple[Tensor, ...]]:
    """Return the step function and (values, owner, position, kernel) of a beam that was reordered at random.

    Shape:
        values: (sentences, H, slots, beam, C / H), and N = sentences * beam.
        owner: (N, slots).
        position: (N,).
        kernel: Logits (N, H, K) or weights (1, H, K).
    """
    sentences = max(1, shape.batch // beam)
    count = sentences * beam
    # (sentences, H, slots, beam, C / H); `owner` names the hypothesis that wrote a slot
    size = shape.channels // shape.heads
    values = torch.randn(sentences, shape.heads, shape.length, beam, size, device=device, dtype=dtype)
    owner = torch.randint(0, beam, (count, shape.length), device=device)  # (N, slots)
    position = torch.randint(0, shape.length, (count,), device=device)  # (N,)
    if op == "dynamicconv":
        logits = torch.randn(count, shape.heads, shape.taps, device=device, dtype=dtype)  # (N, H, K)
        return partial(conv_step, softmax=True), (values, owner, position, logits)
    weights = torch.randn(1, shape.heads, shape.taps, device=device).softmax(-1)  # (1, H, K)
    return partial(conv_step, softmax=False), (values, owner, position, weights)
