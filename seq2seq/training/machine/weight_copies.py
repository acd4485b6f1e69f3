"""Cast the weights of all linear layers together, where autocast would cast them layer by layer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from seq2seq.network.model import Seq2Seq

_copy: Any = torch._foreach_copy_  # type: ignore[reportPrivateImportUsage]
_add: Any = torch._foreach_add_  # type: ignore[reportPrivateImportUsage]


def cast_together(model: Seq2Seq, *, device: str = "cuda") -> None:
    """Make a model in training cast its linear layers' weights at the start of each pass, in place.

    Autocast casts each weight at its first use, and its gradient back: two launches a weight, 168 in a base
    Transformer. The bits of the loss and of the gradients do not change. Autocast still casts a weight that a mixer
    reads outside its layer's call. The output layer is left out: the loss casts its weight, which is often a table.

    Args:
        device: The device type on which to do so; a CPU gains nothing.
    """
    # A parametrized layer has another class, and a weight that a hook computes is not a parameter
    plain = (each for each in model.modules() if type(each) is nn.Linear and isinstance(each.weight, nn.Parameter))
    layers = [each for each in plain if each is not model.output]
    features = model.features

    def narrow_features(src: Tensor, *given: Any) -> Tensor:
        kind = src.device.type
        if kind != device or not (model.training and torch.is_grad_enabled() and torch.is_autocast_enabled(kind)):
            return features(src, *given)
        with narrow(layers, torch.get_autocast_dtype(kind)):
            return features(src, *given)

    # Set on the instance, as activation checkpointing does
    model.features = narrow_features  # type: ignore[method-assign]


@contextmanager
def narrow(layers: Iterable[nn.Linear], dtype: torch.dtype) -> Iterator[None]:
    """Make linear layers use narrow copies of their weights and biases inside the block."""
    # Autocast casts float32 alone
    chosen = [layer for layer in layers if layer.weight.dtype == torch.float32]
    weights = list({each: None for layer in chosen for each in (layer.weight, layer.bias) if each is not None})
    copies: Any = dict(zip(weights, _Cast.apply(dtype, *weights), strict=True)) if weights else {}  # type: ignore[misc]
    for layer in chosen:
        # Replaces the method of the class
        vars(layer)["forward"] = partial(F.linear, weight=copies[layer.weight], bias=copies.get(layer.bias))
    try:
        yield
    finally:
        for layer in chosen:
            del vars(layer)["forward"]


class _Cast(torch.autograd.Function):
    """Copy float32 weights to another type, with one launch in each direction."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.weights = weights
        copies = [torch.empty_like(each, dtype=dtype) for each in weights]
        _copy(copies, weights)
        ctx.mark_non_differentiable(*(copies[n] for n, each in enumerate(weights) if not each.requires_grad))
        # The gradient of an unused weight stays None
        ctx.set_materialize_grads(False)
        return tuple(copies)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        places = [number for number, grad in enumerate(grads) if grad is not None]
        found: list[Tensor | None] = [None] * len(grads)
        wide = [torch.empty_like(ctx.weights[number]) for number in places]
        _copy(wide, [grads[number] for number in places])
        sums: list[Tensor] = []
        added: list[Tensor] = []
        for number, grad in zip(places, wide, strict=True):
            # Autograd keeps the first gradient, and would add each later one with a separate launch
            if (before := ctx.weights[number].grad) is None:
                found[number] = grad
            else:
                sums.append(before)
                added.append(grad)
        if sums:
            _add(sums, added)
        return None, *found
